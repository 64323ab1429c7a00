//! Loads a run's model with weights onto workers, to use it.

use crate::checkpoint::is_checkpoint;
use crate::events::{Console, Events, Stream};
use crate::run_file::{FileReader, RunFile, Weights};
use crate::weights::weight_files::WeightFiles;
use crate::workers::fleet_settings::FleetSettings;
use crate::{BossMan, BossManError, Model};
use ::data::HashedWeight;
use pipeline::StateDigest;
use std::path::Path;
use std::sync::Arc;

impl RunFile {
    /// Loads the run's model onto workers, with the weights in `weights` or those that the run file
    /// names. Reads them before it waits for workers.
    ///
    /// # Errors
    /// There are no weights, or they do not fit. Also any error of the files, the workers or the
    /// network.
    pub async fn load_model(
        &self,
        fleet: &FleetSettings,
        weights: Option<&Path>,
    ) -> Result<BossMan, BossManError> {
        let model = Model::from_file(&self.model)?;
        let missing = || {
            let hint = "no weights: give --weights FILE, as `bossman train --save FILE` writes \
                        it, or `weights:` in the run file";
            BossManError::Usage(hint.into())
        };
        let weights = self.initial_weights(weights, &model)?.ok_or_else(missing)?;
        let workers = fleet.worker_count(self)?;
        let builder = self.builder(model);
        builder.check(workers)?;
        let host = fleet.host_with_files(workers, self, Some(&weights));
        let host = match fleet.local == workers {
            true => host.quiet(),
            false => host.events(Events::on(Console::new(Stream::Stderr))),
        };
        let mut boss = builder.build(host.wait().await?)?;
        boss.distribute_model().await?;
        weights.load(&mut boss).await?;
        boss.eval();
        Ok(boss)
    }

    /// The weights to start from, those of the command line before those of the run file, checked
    /// against the model. `None` if they are initialised from the seed.
    pub(crate) fn initial_weights(
        &self,
        weights: Option<&Path>,
        model: &Model,
    ) -> Result<Option<InitialWeights>, BossManError> {
        let weights = match (weights, &self.weights) {
            (Some(path), _) => &Weights::of(path),
            (None, Some(weights)) => weights,
            (None, None) => return Ok(None),
        };
        InitialWeights::find(weights, model).map(Some)
    }
}

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
    fn find(weights: &Weights, model: &Model) -> Result<Self, BossManError> {
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

    /// Their digest, as [`StateDict::digest`]. May read their files.
    pub(crate) fn digest(&self) -> Result<StateDigest, BossManError> {
        match self {
            InitialWeights::InFiles(files) => files.digest(),
            InitialWeights::OnWorkers(weights) => {
                let hashes = weights.iter().map(|weight| (weight.name.clone(), weight.hash));
                Ok(StateDigest::of(&hashes.collect()))
            }
        }
    }

    /// Gives them to the workers. Parameters that are not among them keep what the seed drew.
    pub(crate) async fn load(&self, boss: &mut BossMan) -> Result<(), BossManError> {
        boss.load_initial_weights(self).await
    }
}
