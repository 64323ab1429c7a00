//! A request to stop training well: after the current step, with everything saved.

use std::time::Duration;
use tokio::sync::watch;

/// Asks a run to stop after its current step. Clones ask the same run.
#[derive(Clone, Debug)]
pub struct StopSignal(watch::Sender<bool>);

impl Default for StopSignal {
    fn default() -> Self {
        StopSignal(watch::Sender::new(false))
    }
}

impl StopSignal {
    /// Asks the run to stop.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }

    /// Whether the run was asked to stop.
    pub fn is_set(&self) -> bool {
        *self.0.borrow()
    }

    /// Ends when the run is asked to stop. Cancel safe.
    pub async fn wait(&self) {
        // The sender is this object, so it is there.
        self.0.subscribe().wait_for(|stop| *stop).await.ok();
    }

    /// Ends this long after the run was asked to stop. Cancel safe.
    pub(super) async fn wait_and_then(&self, patience: Duration) {
        self.wait().await;
        tokio::time::sleep(patience).await;
    }
}
