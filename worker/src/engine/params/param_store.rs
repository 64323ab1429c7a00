//! The parameters of a stage at work: their tensors, this replica's shard, and their version.

use crate::engine::config::StageConfig;
use crate::engine::error::{EngineError, PeerDataError, SequenceError};
use crate::engine::layer_files::LayerFiles;
use crate::engine::params::shards::{slice_of, Shards};
use crate::engine::params::stage_params::Params;
use pipeline::ids::MicrobatchKey;
use tch::Tensor;
use tensor::TensorError;

/// The parameters of a stage and what changes with them.
#[derive(Debug)]
pub(crate) struct ParamStore {
    pub(super) params: Params,
    pub(super) shards: Shards,
    /// How often the parameters have changed.
    version: u64,
}

impl ParamStore {
    /// Makes the parameters. [`ParamStore::draw`] fills them as PyTorch would, from the run's seed
    /// and their names.
    pub(crate) fn new(config: &StageConfig, files: &LayerFiles) -> Result<Self, EngineError> {
        let mut params = Params::new(config, files)?;
        // Only shards of them stay.
        if config.shards_parameters {
            params.draw()?;
        }
        let shards = Shards::new(config, &mut params)?;
        Ok(ParamStore { params, shards, version: 0 })
    }

    pub(crate) fn params(&self) -> &Params {
        &self.params
    }

    pub(crate) fn shards(&self) -> &Shards {
        &self.shards
    }

    /// Draws the initial values of parameters that nobody has set.
    pub(crate) fn draw(&mut self) -> Result<(), TensorError> {
        self.params.draw()
    }

    #[cfg(test)]
    pub(crate) fn params_mut(&mut self) -> &mut Params {
        &mut self.params
    }

    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Counts a change of the parameters: saved forward passes and rounded copies no longer fit.
    pub(crate) fn bump_version(&mut self) {
        self.version += 1;
        for param in &mut self.params.all {
            param.rounded.take();
        }
    }

    /// Refuses the backward pass of a microbatch whose forward pass had other parameters.
    pub(crate) fn check_version(
        &self,
        key: MicrobatchKey,
        version: u64,
    ) -> Result<(), EngineError> {
        match version == self.version {
            true => Ok(()),
            false => Err(SequenceError::ParametersChanged { key }.into()),
        }
    }

    /// Refuses to use parameters of which only a shard is here.
    pub(crate) fn check_gathered(&self) -> Result<(), EngineError> {
        match self.shards.are_gathered() {
            true => Ok(()),
            false => {
                let problem = "only this replica's shard of the parameters is here".into();
                Err(PeerDataError::Gathered { problem }.into())
            }
        }
    }

    /// The memory of a parameter that this replica updates: all of it, or its shard.
    pub(crate) fn update_view(&self, index: usize) -> Result<Tensor, TensorError> {
        let own_shard = self.shards.own_shard(&self.params, index);
        match (own_shard, self.shards.shard_range(&self.params, index)) {
            (Some(shard), _) => Ok(shard.shallow_clone()),
            (None, Some(range)) => slice_of(&self.params.all[index].tensor, &range),
            (None, None) => Ok(self.params.all[index].tensor.shallow_clone()),
        }
    }
}
