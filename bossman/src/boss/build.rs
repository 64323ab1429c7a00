//! Builds a [`BossMan`] from its settings.

use super::boss_man::BossMan;
use super::builder::Builder;
use crate::workers::host::Workers;
use crate::{BossManError, Model};

impl Builder {
    /// Cuts the model for these workers.
    ///
    /// # Errors
    /// The model cannot be cut as asked. The error states the reason.
    pub fn build(self, workers: Workers) -> Result<BossMan, BossManError> {
        self.check(workers.count)?;
        let host = workers.host.clone();
        let trainer = self.start(workers)?;
        // A rebuilt session must cut batches as this one does, with fewer workers, too.
        let builder = self.microbatches(trainer.strategy.microbatches);
        Ok(BossMan { trainer, builder, host, pool: None, log: None })
    }
}

impl BossMan {
    /// The model on these workers with default settings; see [`Builder`].
    ///
    /// # Errors
    /// The model has fewer layers than there are workers.
    pub fn new(workers: Workers, model: Model) -> Result<Self, BossManError> {
        Self::builder(model).build(workers)
    }

    /// Starts with the settings.
    pub fn builder(model: Model) -> Builder {
        Builder::new(model)
    }
}
