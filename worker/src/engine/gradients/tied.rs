//! The gradients of tied parameters, which travel from the copies to the stage that owns them.
//!
//! Each layer that uses a parameter has its own sum over microbatches. At the step these are added
//! by descending layer, the owner's last. The stages of the layers make no difference, so the sum
//! does not depend on the cut.

use crate::engine::config::StageConfig;
use crate::engine::error::{EngineError, PeerDataError};
use crate::engine::gradients::gradient_store::GradientStore;
use crate::engine::gradients::ordered_sum::OrderedSum;
use crate::engine::layout::deep_copy;
use crate::engine::params::stage_params::{shared_params, Params};
use crate::engine::params::tied_params::{list_of, TensorsByStage};
use layerspec::Layer;
use pipeline::plan::{TiedCopy, TiedOwner};
use std::collections::hash_map::Entry;
use tch::{Kind, Tensor};
use tensor::transfer::to_device;
use tensor::TensorError;

impl GradientStore {
    /// Takes out the gradients of the parameters that other stages own: for each such stage,
    /// ascending, the tensors that [`TiedCopy`] describes. An empty tensor stands for no gradient.
    pub(crate) fn take_tied(
        &mut self,
        config: &StageConfig,
        params: &Params,
    ) -> Result<TensorsByStage, EngineError> {
        let mut gradients: TensorsByStage = Vec::new();
        for TiedCopy { owner, from, users } in &config.tied_copies {
            let users: Vec<&Layer> = users
                .iter()
                .filter_map(|user| config.layers.iter().find(|layer| layer.id == *user))
                .collect();
            let list = list_of(&mut gradients, *from);
            for (number, spec) in shared_params(owner, users.iter().copied()) {
                for user in users.iter().filter(|user| uses(user, owner, spec.name)) {
                    let index = params.index_of(owner.id, number);
                    let used = index.and_then(|index| {
                        let mut uses = params.all[index].uses.iter();
                        uses.find(|used| config.layers[used.layer].id == user.id)
                    });
                    let gradient = used.and_then(|used| self.buffer(*used).take());
                    list.push(match gradient {
                        Some(gradient) => gradient,
                        None => Tensor::f_zeros([0], (Kind::Float, config.device))
                            .map_err(TensorError::from)?,
                    });
                }
            }
        }
        Ok(gradients)
    }

    /// Adds the gradients from stages that use parameters of this one, stages descending.
    pub(crate) fn add_tied(
        &mut self,
        config: &StageConfig,
        params: &Params,
        tied: TensorsByStage,
    ) -> Result<(), EngineError> {
        for (from, tensors) in tied {
            let wrong = || PeerDataError::Tied { stage: from };
            let mut tensors = tensors.into_iter();
            for TiedOwner { owner, to } in &config.tied_owners {
                let Some((_, users)) = to.iter().find(|(stage, _)| *stage == from) else {
                    continue;
                };
                let owner = config.layer(*owner)?;
                for (number, spec) in shared_params(owner, users.iter()) {
                    for _ in users.iter().filter(|user| uses(user, owner, spec.name)) {
                        let tensor = tensors.next().ok_or_else(wrong)?;
                        let index = params.index_of(owner.id, number).ok_or_else(wrong)?;
                        let param = &params.all[index];
                        if tensor.size() == [0] {
                            continue;
                        }
                        if tensor.size() != param.tensor.size() || !param.trained {
                            return Err(wrong().into());
                        }
                        self.add_tied_gradient(index, &tensor, config)?;
                    }
                }
            }
            if tensors.next().is_some() {
                return Err(wrong().into());
            }
        }
        Ok(())
    }

    fn add_tied_gradient(
        &mut self,
        index: usize,
        gradient: &Tensor,
        config: &StageConfig,
    ) -> Result<(), EngineError> {
        let gradient = to_device(gradient, config.device)?;
        match self.from_tied_copies.entry(index) {
            Entry::Occupied(mut sum) => sum.get_mut().add(gradient)?,
            // A copy: the received tensor must not be scaled later.
            Entry::Vacant(place) => {
                place.insert(OrderedSum::default()).add(deep_copy(&gradient)?)?
            }
        }
        Ok(())
    }

    /// Clears the gradients of parameters that other stages own.
    pub(crate) fn clear_tied_copies(&mut self, params: &Params) {
        for param in params.all.iter().filter(|param| param.owner_stage.is_some()) {
            param.uses.iter().for_each(|used| self.buffer(*used).clear());
        }
    }
}

/// Whether a layer shares this parameter of another.
fn uses(user: &Layer, owner: &Layer, param: &str) -> bool {
    user.kind.tied_params(&owner.kind).contains(&param)
}
