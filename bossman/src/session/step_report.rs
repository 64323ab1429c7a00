//! The report of a training step.

use crate::events::formats;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The report of a training step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct StepReport {
    /// The number of the call of [`crate::BossMan::train_step`], from 1.
    pub step: u64,
    /// The mean loss over the batch, before the update. NaN if none of its targets counts.
    #[serde(deserialize_with = "formats::null_as_nan")]
    pub loss: f32,
    /// Samples in the batch.
    pub samples: u64,
    /// The targets in the batch that are not ignored, if a sample has a class for each position,
    /// such as the tokens of a text.
    pub tokens: Option<u64>,
    /// The time from call to results.
    #[serde(rename = "step_ms", with = "formats::milliseconds")]
    pub time: Duration,
    /// The learning rate of the update. `None` if gradients were only accumulated
    /// ([`crate::Builder::accumulate`]), overflowed ([`crate::Builder::precision`]), or were not
    /// finite and the step was skipped ([`crate::NonFinite::Skip`]).
    pub lr: Option<f64>,
    /// The norm of all gradients before clipping. `None` unless requested
    /// ([`crate::Builder::clip_grad_norm`]).
    pub grad_norm: Option<f64>,
}
