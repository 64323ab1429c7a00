//! The values of tied parameters, which travel from the stage that owns them to its copies.

use crate::engine::config::StageConfig;
use crate::engine::error::{EngineError, PeerDataError};
use crate::engine::layout::deep_copy;
use crate::engine::params::param_store::ParamStore;
use crate::engine::params::stage_params::shared_params;
use pipeline::ids::StageId;
use pipeline::plan::TiedOwner;
use std::collections::HashMap;
use tch::Tensor;
use tensor::transfer::to_device;
use tensor::TensorError;

/// Tensors for or from other stages.
pub type TensorsByStage = Vec<(StageId, Vec<Tensor>)>;

impl ParamStore {
    /// Copies the tied parameters that this stage owns, for each stage that uses some, descending.
    pub(crate) fn owned_tied_values(
        &self,
        config: &StageConfig,
    ) -> Result<TensorsByStage, EngineError> {
        let mut values: TensorsByStage = Vec::new();
        for TiedOwner { owner, to } in &config.tied_owners {
            let owner = config.layer(*owner)?;
            for (stage, users) in to {
                let list = list_of(&mut values, *stage);
                for (number, _) in shared_params(owner, users.iter()) {
                    let index = self
                        .params
                        .index_of(owner.id, number)
                        .ok_or(PeerDataError::Tied { stage: *stage })?;
                    list.push(deep_copy(&self.params.all[index].tensor)?);
                }
            }
        }
        values.sort_by_key(|(stage, _)| std::cmp::Reverse(*stage));
        Ok(values)
    }

    /// Sets the copies of parameters that other stages own.
    pub(crate) fn set_tied_copies(&mut self, tied: TensorsByStage) -> Result<(), EngineError> {
        let mut tied: HashMap<StageId, std::vec::IntoIter<Tensor>> =
            tied.into_iter().map(|(stage, tensors)| (stage, tensors.into_iter())).collect();
        self.bump_version();
        for param in &self.params.all {
            let Some(stage) = param.owner_stage else { continue };
            let value = tied.get_mut(&stage).and_then(Iterator::next);
            let value = value
                .filter(|value| value.size() == param.tensor.size())
                .ok_or(PeerDataError::Tied { stage })?;
            let value = to_device(&value, param.tensor.device())?;
            tch::no_grad(|| param.tensor.shallow_clone().f_copy_(&value))
                .map_err(TensorError::from)?;
        }
        match tied.into_iter().find(|(_, rest)| rest.len() > 0) {
            Some((stage, _)) => Err(PeerDataError::Tied { stage }.into()),
            None => Ok(()),
        }
    }
}

/// The list of a stage, made if it is missing.
pub(crate) fn list_of(lists: &mut TensorsByStage, stage: StageId) -> &mut Vec<Tensor> {
    let place = lists.iter().position(|(other, _)| *other == stage).unwrap_or_else(|| {
        lists.push((stage, Vec::new()));
        lists.len() - 1
    });
    &mut lists[place].1
}
