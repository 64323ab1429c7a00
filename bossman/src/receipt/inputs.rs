//! The hashes of what a run starts from: its data and its initial weights.

use crate::inference::load_model::InitialWeights;
use crate::run_file::data_parts::Parts;
use crate::BossManError;
use ::data::{DataHash, Dataset};
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

impl Inputs {
    /// Hashes data and weights. It reads every file once.
    ///
    /// # Errors
    /// A file cannot be read.
    pub(crate) fn hash(
        data: &[(&'static str, Dataset)],
        weights: Option<&InitialWeights>,
    ) -> Result<Self, BossManError> {
        let hashed = data.iter().map(|(part, data)| Ok((part.to_string(), data.hash()?)));
        let data = hashed.collect::<Result<_, BossManError>>()?;
        let initial_weights = weights.map(InitialWeights::digest).transpose()?;
        Ok(Inputs { data, initial_weights: initial_weights.map(|digest| digest.to_string()) })
    }
}

/// The parts of the data that have files of their own. A part that is split off another has none.
pub(crate) fn parts_with_files(parts: &Parts, is_split: bool) -> Vec<(&'static str, Dataset)> {
    let validation = parts.validation.as_ref().filter(|_| !is_split);
    let parts =
        [("train", Some(&parts.train)), ("validation", validation), ("test", parts.test.as_ref())];
    parts.into_iter().filter_map(|(name, data)| Some((name, data?.clone()))).collect()
}
