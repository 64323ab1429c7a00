//! The score of a model on data: a value.

use crate::events::formats::null_as_nan;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The mean loss and accuracy over data.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Score {
    /// The loss that the model was trained with.
    #[serde(deserialize_with = "null_as_nan")]
    pub loss: f64,
    /// The share of targets whose class has the largest logit, from 0 to 1. Ignored targets do not
    /// count. `None` if targets are not classes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<f64>,
}

impl fmt::Display for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.accuracy {
            Some(share) => write!(f, "accuracy {:.2} %, loss {:.4}", share * 100.0, self.loss),
            None => write!(f, "loss {:.6}", self.loss),
        }
    }
}
