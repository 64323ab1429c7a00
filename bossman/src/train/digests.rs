//! The digests of a run: one at each checkpoint, and one at its end.

use crate::checkpoint::begin_snapshot;
use crate::events::{Event, Events};
use crate::{BossMan, BossManError};
use pipeline::{StateDigest, StateForm};
use tokio::task::JoinHandle;

/// Reports digests of the training state. Workers hash what they hold between two steps. A run goes
/// on without a digest that cannot be made.
pub(super) struct Digests {
    events: Events,
    /// The last step of which a digest was asked for.
    last: Option<u64>,
    pending: Option<Pending>,
}

/// A digest whose hashes have not all arrived.
struct Pending {
    step: u64,
    hashing: JoinHandle<Result<StateDigest, BossManError>>,
}

impl Digests {
    pub(super) fn new(events: Events) -> Self {
        Digests { events, last: None, pending: None }
    }

    /// Begins a digest of the state after this step. It ends while training continues.
    pub(super) async fn begin(&mut self, boss: &mut BossMan, step: u64) {
        self.wait_for_pending().await;
        self.last = Some(step);
        let begun = begin_snapshot(&mut boss.trainer, StateForm::Hashes).await;
        let hashing = tokio::spawn(async move { begun?.digest().await });
        self.pending = Some(Pending { step, hashing });
    }

    /// Reports the digest that has ended, if there is one.
    pub(super) async fn report_finished(&mut self) {
        if self.pending.as_ref().is_some_and(|pending| pending.hashing.is_finished()) {
            self.wait_for_pending().await;
        }
    }

    /// Reports the digest of the state after the last step, unless gradients wait for an update.
    pub(super) async fn end(&mut self, boss: &mut BossMan, step: u64) {
        if self.last != Some(step) && boss.trainer.position.is_between_updates() {
            self.begin(boss, step).await;
        }
        self.wait_for_pending().await;
    }

    async fn wait_for_pending(&mut self) {
        let Some(Pending { step, hashing }) = self.pending.take() else { return };
        let problem = match hashing.await {
            Ok(Ok(digest)) => {
                let digest = digest.to_string();
                return self.events.report(&Event::Digest { step, digest });
            }
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        };
        self.events.warn_at(step, format!("there is no digest of step {step}: {problem}"));
    }
}
