//! A run's model on its workers with weights, for using it.

use crate::fleet::FleetSettings;
use crate::run_file::RunFile;
use crate::{BossMan, BossManError, Model, StateDict};
use std::path::Path;

impl RunFile {
    /// The run's model with weights on workers: those of `weights`, as `bossman train --save` writes them, or else those that
    /// the run file names. Weights are read before any worker is waited for.
    ///
    /// # Errors
    /// There are no weights or they do not fit; anything in the files, the workers or the network.
    pub async fn ready(&self, fleet: &FleetSettings, weights: Option<&Path>) -> Result<BossMan, BossManError> {
        let model = Model::from_file(&self.model)?;
        let missing = || {
            let hint = "no weights: give --weights FILE, as `bossman train --save FILE` writes it, or `weights:` in the run file";
            BossManError::Usage(hint.into())
        };
        let weights = self.initial(weights, &model)?.ok_or_else(missing)?;
        let workers = fleet.count(self)?;
        let builder = self.builder(model);
        builder.check(workers)?;
        let host = fleet.host(workers);
        let host = if fleet.local == workers { host.quiet() } else { host };
        let mut boss = builder.build(host.wait().await?)?;
        boss.distribute_model().await?;
        boss.load_state_dict(&weights).await?;
        boss.eval();
        Ok(boss)
    }

    /// The weights to start from, those of the command line before those of the run file, checked against the model; nothing
    /// where they are drawn from the seed.
    pub(crate) fn initial(&self, weights: Option<&Path>, model: &Model) -> Result<Option<StateDict>, BossManError> {
        let found = match (weights, &self.weights) {
            (Some(path), _) => StateDict::load(path)?,
            (None, Some(weights)) => weights.rename.apply(&StateDict::load(&weights.path)?, model)?,
            (None, None) => return Ok(None),
        };
        found.fitting(model.graph()).map(Some)
    }
}
