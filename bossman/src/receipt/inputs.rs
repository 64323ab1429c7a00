//! The hashes of what a run starts from: its data and its initial weights.

use ::data::DataHash;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The hashes of a run's data and of its initial weights.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inputs {
    /// The files of each part of the data: `train`, and `validation` and `test` if they have files
    /// of their own.
    pub data: BTreeMap<String, DataHash>,
    /// The SHA-256 of the weights that the run began with, over names and tensors as in a digest.
    /// `None` if all are drawn from the seed, or if the run resumed.
    pub initial_weights: Option<String>,
}
