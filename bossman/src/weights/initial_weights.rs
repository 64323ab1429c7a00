//! Weights to start from, in files of the boss or of the workers.

use super::weight_files::WeightFiles;
use crate::checkpoint::is_checkpoint;
use crate::run_file::{FileReader, Weights};
use crate::{BossManError, Model};
use ::data::HashedWeight;
use pipeline::StateDigest;
use std::sync::Arc;

/// Weights to start from, checked against the model.
#[derive(Clone)]
pub(crate) enum InitialWeights {
    /// In files that the boss reads when the workers are there.
    InFiles(WeightFiles),
    /// In files of the workers, each with its description and its hash.
    OnWorkers(Arc<Vec<HashedWeight>>),
}

impl InitialWeights {
    /// Checks the weights against the model, by the headers of their files alone if they are
    /// safetensors files. If workers read them, each is hashed.
    pub(crate) fn find(weights: &Weights, model: &Model) -> Result<Self, BossManError> {
        let Weights { path, rename, reader } = weights;
        if *reader == FileReader::Workers && path.is_dir() && is_checkpoint(path)? {
            let problem = "is a checkpoint, which workers cannot read; leave out `on: workers` in \
                           `weights`, or name a safetensors file";
            return Err(BossManError::file(path, problem));
        }
        let files = WeightFiles::find(path, rename, model)?;
        Ok(match reader {
            FileReader::Boss => InitialWeights::InFiles(files),
            FileReader::Workers => InitialWeights::OnWorkers(files.hashed()?.into()),
        })
    }

    /// Their digest, as [`crate::StateDict::digest`]. May read their files.
    pub(crate) fn digest(&self) -> Result<StateDigest, BossManError> {
        match self {
            InitialWeights::InFiles(files) => files.digest(),
            InitialWeights::OnWorkers(weights) => {
                let hashes = weights.iter().map(|weight| (weight.name.clone(), weight.hash));
                Ok(StateDigest::of(&hashes.collect()))
            }
        }
    }
}
