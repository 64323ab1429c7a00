//! The receipt of a run: hashes its inputs beside the first steps, and writes the receipt at the
//! end.

use crate::events::{Event, Events};
use crate::receipt::{parts_with_files, Inputs, Receipt};
use crate::run_file::Validation;
use crate::runs::RunFolder;
use crate::train::prepared::Prepared;
use crate::BossManError;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// How long the end of a run that is not done waits for the hashes.
const HARDLY: Duration = Duration::from_secs(2);

/// Writes the receipt of a run with a folder. A run goes on without a receipt that cannot be
/// written.
pub(super) struct ReceiptWriter {
    folder: Arc<RunFolder>,
    events: Events,
    /// Ends when the inputs are hashed.
    hashed: oneshot::Receiver<()>,
}

impl ReceiptWriter {
    /// Begins to hash the inputs of a run. A thread of its own reads the files, so that the end of
    /// the process never waits for it.
    pub(super) fn start(folder: Arc<RunFolder>, prepared: &Prepared<'_>, events: Events) -> Self {
        let validation = prepared.file.data.as_ref().and_then(|data| data.validation.as_ref());
        let is_split = matches!(validation, Some(Validation::Split(_)));
        let data = parts_with_files(&prepared.data, is_split);
        let weights = prepared.weights.clone();
        let (done, hashed) = oneshot::channel();
        let report = events.clone();
        std::thread::spawn(move || {
            match Inputs::hash(&data, weights.as_ref()) {
                Ok(inputs) => report.report(&Event::Inputs(inputs)),
                Err(error) => report.warn(format!("the receipt lacks the data's hashes: {error}")),
            }
            done.send(()).ok();
        });
        ReceiptWriter { folder, events, hashed }
    }

    /// Writes the receipt of what the run has done so far. A run that failed or was interrupted
    /// hardly waits for the hashes, because it has something to say.
    pub(super) async fn write(self, done: bool) {
        let limit = if done { Duration::MAX } else { HARDLY };
        tokio::time::timeout(limit, self.hashed).await.ok();
        let folder = self.folder.clone();
        let write = move || match Receipt::of_folder(folder.path())? {
            Some(receipt) => receipt.write(folder.path()),
            None => Ok(()),
        };
        let written = tokio::task::spawn_blocking(write).await;
        let written = written.unwrap_or_else(|e| Err(BossManError::Usage(e.to_string())));
        if let Err(error) = written {
            self.events.warn(format!("there is no receipt: {error}"));
        }
    }
}
