//! What went wrong, and where.

use crate::ids::{StageId, WorkerId};
use serde::{Deserialize, Serialize};
use std::fmt;

/// What went wrong, and as much of where as is known.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Failure {
    /// The worker that saw it.
    pub worker: Option<WorkerId>,
    /// The stage at work.
    pub stage: Option<StageId>,
    /// The layer, as `4 (Linear)`.
    pub layer: Option<String>,
    /// What was being done, as `forward`.
    pub action: Option<String>,
    /// Which microbatch of the batch.
    pub microbatch: Option<u32>,
    /// The training step.
    pub step: Option<u64>,
    /// What happened, what was expected, what to do.
    pub message: String,
    /// A number is not finite that [must be](crate::watch::Finite).
    pub not_finite: bool,
    /// The worker is at fault and not what it was given: it has too little memory, or has a defect. Another may do the same.
    pub unfit: bool,
    /// The boss's session refused the request before any worker heard of it, so nothing has changed.
    #[serde(skip)]
    pub refused: bool,
    /// The worker's session only: the parameters were being updated by then, and may have changed.
    #[serde(skip)]
    pub updating: bool,
    /// The boss's session only: a worker was lost, or a link between two. Without that worker the same may succeed.
    #[serde(skip)]
    pub passing: bool,
}

impl Failure {
    /// A failure of which only the text is known.
    pub fn new(message: impl Into<String>) -> Self {
        Failure { message: message.into(), ..Failure::default() }
    }

    /// The same, seen by this worker.
    pub fn on(mut self, worker: WorkerId) -> Self {
        self.worker = Some(worker);
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut place = Vec::new();
        place.extend(self.worker.map(|w| w.to_string()));
        place.extend(self.stage.map(|s| s.to_string()));
        place.extend(self.layer.as_ref().map(|l| format!("layer {l}")));
        place.extend(self.action.clone());
        place.extend(self.microbatch.map(|m| format!("microbatch {m}")));
        place.extend(self.step.map(|s| format!("step {s}")));
        if !place.is_empty() {
            write!(f, "{}: ", place.join(", "))?;
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}
