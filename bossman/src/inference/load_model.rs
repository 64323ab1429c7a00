//! Loads a run's model with weights onto workers, to use it.

use crate::events::{Console, Events, Stream};
use crate::run_file::RunFile;
use crate::workers::fleet_settings::FleetSettings;
use crate::{BossMan, BossManError, Model, StateDict};
use std::path::Path;

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
        let host = fleet.host_with_data(workers, self);
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
        let (found, fresh) = match (weights, &self.weights) {
            (Some(path), _) => (StateDict::load(path)?, Vec::new()),
            (None, Some(weights)) => {
                let found = weights.rename.apply(&StateDict::load(&weights.path)?, model)?;
                (found, weights.rename.fresh_parameters(model))
            }
            (None, None) => return Ok(None),
        };
        Ok(Some(InitialWeights {
            weights: found.fit_to_except(model.graph(), &fresh)?,
            complete: fresh.is_empty(),
        }))
    }
}

/// Weights to start from, checked against the model.
pub(crate) struct InitialWeights {
    weights: StateDict,
    /// Whether they are complete, so that no parameter is initialised from the seed.
    complete: bool,
}

impl InitialWeights {
    /// The weights, which share memory with these.
    pub(crate) fn weights(&self) -> StateDict {
        let mut weights = StateDict::default();
        self.weights.iter().for_each(|(name, tensor)| weights.insert(name, tensor));
        weights
    }

    /// Sends them to the workers, whose parameters were initialised from the seed.
    pub(crate) async fn load(&self, boss: &mut BossMan) -> Result<(), BossManError> {
        let mut all = self.weights();
        if !self.complete {
            let drawn = boss.state_dict().await?;
            let missing = drawn.iter().filter(|(name, _)| all.get(name).is_none());
            let missing: Vec<_> =
                missing.map(|(name, tensor)| (name.to_string(), tensor.shallow_clone())).collect();
            missing.iter().for_each(|(name, tensor)| all.insert(name, tensor));
        }
        boss.load_state_dict(&all).await
    }
}
