//! Errors of steps and calls, with their place.

use crate::ids::{StageId, WorkerId};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The most bytes of a text that a worker sends.
const MAX_TEXT: usize = 16 << 10;

/// Cuts a text of a worker off, because it is repeated in every log.
pub(crate) fn bounded(mut text: String) -> String {
    if text.len() > MAX_TEXT {
        let end = (0..=MAX_TEXT).rev().find(|end| text.is_char_boundary(*end));
        text.truncate(end.unwrap_or_default());
        text.push('…');
    }
    text
}

/// An error, with as much of its place as is known.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Failure {
    /// The worker that saw it.
    pub worker: Option<WorkerId>,
    /// The stage at work.
    pub stage: Option<StageId>,
    /// The layer, as `4 (Linear)`.
    pub layer: Option<String>,
    /// The action, as `forward`.
    pub action: Option<String>,
    /// Which microbatch of the batch.
    pub microbatch: Option<u32>,
    /// The training step.
    pub step: Option<u64>,
    /// The event, the expectation and the remedy.
    pub message: String,
    /// The kind, which decides what may help.
    pub kind: FailureKind,
}

/// The kinds of failures that recovery distinguishes.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum FailureKind {
    /// A worker was lost, or a link between two. The same may succeed without that worker. Only the
    /// boss's session reports it, so no worker can send it.
    #[serde(skip)]
    Lost,
    /// A worker was lost before the request began. No worker received the request, so nothing has
    /// changed. Only the boss's session reports it.
    #[serde(skip)]
    WorkerMissing,
    /// The boss's session refused the request. No worker received it, so nothing has changed.
    #[serde(skip)]
    Refused,
    /// The worker's device fails every later task. The worker leaves the run instead of sending
    /// this.
    #[serde(skip)]
    DeviceBroken,
    /// The worker is at fault and not its input, for example because its compute thread panicked.
    /// Another worker may succeed.
    Unfit,
    /// The worker's device has too little memory for its part. Another worker may succeed, and so
    /// may this one if it stores fewer activations.
    OutOfMemory,
    /// A number is not finite that [must be](crate::watch::FiniteCheck). The data or the weights
    /// are at fault.
    NotFinite,
    /// Anything else.
    #[default]
    Other,
}

impl Failure {
    /// A failure of kind [`FailureKind::Other`] at an unknown place.
    pub fn new(message: impl Into<String>) -> Self {
        Failure { message: message.into(), ..Failure::default() }
    }

    /// A failure of kind [`FailureKind::Lost`].
    pub fn lost(message: impl Into<String>) -> Self {
        Failure { kind: FailureKind::Lost, ..Failure::new(message) }
    }

    /// The same, with texts of bounded length.
    pub(crate) fn bounded(self) -> Self {
        Failure {
            layer: self.layer.map(bounded),
            action: self.action.map(bounded),
            message: bounded(self.message),
            ..self
        }
    }

    /// The same, seen by this worker.
    pub fn on(mut self, worker: WorkerId) -> Self {
        self.worker = Some(worker);
        self
    }

    /// The same, of a request that no worker received.
    pub(crate) fn before_start(mut self) -> Self {
        self.kind = match self.kind {
            FailureKind::Lost | FailureKind::WorkerMissing => FailureKind::WorkerMissing,
            _ => FailureKind::Refused,
        };
        self
    }

    /// Whether a worker or a link was lost, so that the same may succeed without it.
    pub fn is_loss(&self) -> bool {
        matches!(self.kind, FailureKind::Lost | FailureKind::WorkerMissing)
    }

    /// Whether no worker received the request, so that nothing has changed.
    pub fn is_before_start(&self) -> bool {
        matches!(self.kind, FailureKind::WorkerMissing | FailureKind::Refused)
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
