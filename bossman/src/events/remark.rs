//! Warnings and notices: a text, and what it is about.

use crate::BossManError;
use pipeline::effect::BossNotice;
use pipeline::ids::{StageId, WorkerId};
use serde::{Deserialize, Serialize};

/// A text for the user, and what it is about as far as that is known. The text stands alone: the
/// other fields are for programs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Remark {
    /// What there is to know, and what helps.
    pub message: String,
    /// The step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// The workers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub workers: Vec<WorkerId>,
    /// The stage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<StageId>,
    /// The layers, by their names in the model file. Of many, the first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<String>,
}

impl Remark {
    /// The same about a step.
    pub(crate) fn at_step(self, step: u64) -> Self {
        Remark { step: Some(step), ..self }
    }

    /// The same about layers.
    pub(crate) fn of_layers(self, layers: Vec<String>) -> Self {
        Remark { layers, ..self }
    }

    /// The same about the place of an error.
    pub(crate) fn of_error(self, error: &BossManError) -> Self {
        match error {
            BossManError::Worker(failure) => {
                // A failure has a layer's kind behind its name.
                let layer = failure.layer.as_deref().and_then(|layer| layer.split_once(" ("));
                Remark {
                    step: failure.step.or(self.step),
                    workers: failure.worker.into_iter().collect(),
                    stage: failure.stage,
                    layers: layer.map(|(name, _)| name.to_string()).into_iter().collect(),
                    ..self
                }
            }
            _ => self,
        }
    }
}

impl From<String> for Remark {
    fn from(message: String) -> Self {
        Remark { message, ..Remark::default() }
    }
}

impl From<&str> for Remark {
    fn from(message: &str) -> Self {
        Remark::from(message.to_string())
    }
}

impl From<&String> for Remark {
    fn from(message: &String) -> Self {
        Remark::from(message.as_str())
    }
}

impl From<BossNotice> for Remark {
    fn from(notice: BossNotice) -> Self {
        Remark { workers: notice.workers, ..Remark::from(notice.text) }
    }
}
