//! Hashes what a run starts from.

use super::inputs::Inputs;
use crate::run_file::data_parts::Parts;
use crate::weights::initial_weights::InitialWeights;
use crate::BossManError;
use ::data::Dataset;

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
