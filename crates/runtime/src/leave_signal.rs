//! A request to a worker to leave its run.

use tokio::sync::watch;

/// Asks a worker to leave: between two steps, or at once if it does nothing. Clones ask the same
/// worker.
#[derive(Clone, Debug)]
pub struct LeaveSignal(watch::Sender<bool>);

impl Default for LeaveSignal {
    fn default() -> Self {
        LeaveSignal(watch::Sender::new(false))
    }
}

impl LeaveSignal {
    /// Asks the worker to leave.
    pub fn leave(&self) {
        self.0.send_replace(true);
    }

    /// Ends when the worker is asked to leave. Cancel safe.
    pub async fn wait(&self) {
        // The sender is this object, so it is there.
        self.0.subscribe().wait_for(|leave| *leave).await.ok();
    }
}
