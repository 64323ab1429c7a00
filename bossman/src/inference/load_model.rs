//! Loads a run's model with weights onto workers, to use it.

use crate::events::{Console, Events, Stream};
use crate::run_file::{RunFile, Weights};
use crate::weights::initial_weights::InitialWeights;
use crate::workers::fleet_settings::FleetSettings;
use crate::{BossMan, BossManError, Model};
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

impl InitialWeights {
    /// Gives them to the workers. Parameters that are not among them keep what the seed drew.
    pub(crate) async fn load(&self, boss: &mut BossMan) -> Result<(), BossManError> {
        boss.load_initial_weights(self).await
    }
}
