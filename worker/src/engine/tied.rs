//! Parameters that layers share: the sum of their gradients over all layers, and what goes between stages for it.
//!
//! Each layer that uses a parameter has a sum over microbatches of its own. At the step these are added by descending
//! layer, the owner's last, whichever stages they are in: so the sum does not depend on the cut.

use super::error::EngineError;
use super::params::shared_params;
use super::sum::OrderedSum;
use super::Engine;
use layerspec::{Layer, LayerId};
use pipeline::ids::StageId;
use pipeline::plan::{TiedCopy, TiedOwner};
use std::collections::hash_map::Entry;
use std::collections::HashMap;
use tch::{Kind, Tensor};
use tensor::TensorError;

/// Tensors for or from other stages.
pub type TensorsByStage = Vec<(StageId, Vec<Tensor>)>;

impl Engine {
    /// Takes out the gradients of the parameters that other stages own: for every such stage, ascending, the tensors
    /// that [`TiedCopy`] describes.
    pub fn tied_grads(&mut self) -> Result<TensorsByStage, EngineError> {
        let mut gradients: TensorsByStage = Vec::new();
        for TiedCopy { owner, from, users } in &self.stage.tied_copies {
            let users: Vec<&Layer> =
                users.iter().filter_map(|user| self.stage.layers.iter().find(|l| l.id == *user)).collect();
            let list = list_of(&mut gradients, *from);
            for (number, spec) in shared_params(owner, users.iter().copied()) {
                for user in users.iter().filter(|user| user.kind.tied_params(&owner.kind).contains(&spec.name)) {
                    let index = self.params.index_of(owner.id, number);
                    let uses = index.map_or(&[][..], |index| &self.params.all[index].uses);
                    let used = uses.iter().find(|(place, _)| self.stage.layers[*place].id == user.id);
                    let gradient = used.and_then(|(place, number)| self.gradients[*place][*number].take());
                    list.push(match gradient {
                        Some(gradient) => gradient,
                        None => Tensor::f_zeros([0], (Kind::Float, self.stage.device)).map_err(TensorError::from)?,
                    });
                }
            }
        }
        Ok(gradients)
    }

    /// Adds gradients that came from stages which use parameters of this one, stages descending.
    pub(super) fn add_tied_grads(&mut self, tied: TensorsByStage) -> Result<(), EngineError> {
        let mut sums = std::mem::take(&mut self.tied_grad_sums);
        for (from, tensors) in tied {
            let mut tensors = tensors.into_iter();
            for TiedOwner { owner, to } in &self.stage.tied_owners {
                let Some((_, users)) = to.iter().find(|(stage, _)| *stage == from) else { continue };
                let owner = self.layer(*owner)?;
                for (number, spec) in shared_params(owner, users.iter()) {
                    for _ in users.iter().filter(|user| user.kind.tied_params(&owner.kind).contains(&spec.name)) {
                        let tensor = tensors.next().ok_or(EngineError::TiedMismatch { stage: from })?;
                        let index =
                            self.params.index_of(owner.id, number).ok_or(EngineError::TiedMismatch { stage: from })?;
                        let param = &self.params.all[index];
                        if tensor.size() == [0] {
                            continue;
                        }
                        if tensor.size() != param.tensor.size() || !param.trained {
                            return Err(EngineError::TiedMismatch { stage: from });
                        }
                        let tensor = tensor.f_to_device(self.stage.device).map_err(TensorError::from)?;
                        match sums.entry(index) {
                            Entry::Occupied(mut sum) => sum.get_mut().add(tensor)?,
                            // A copy, for what came in may not be scaled later on.
                            Entry::Vacant(place) => {
                                place.insert(OrderedSum::default()).add(super::state::copy(&tensor)?)?
                            }
                        }
                    }
                }
            }
            if tensors.next().is_some() {
                return Err(EngineError::TiedMismatch { stage: from });
            }
        }
        self.tied_grad_sums = sums;
        Ok(())
    }

    /// Copies of the parameters that this stage lends, for every stage that uses some, descending.
    pub(super) fn owner_values(&self) -> Result<TensorsByStage, EngineError> {
        let mut values: TensorsByStage = Vec::new();
        for TiedOwner { owner, to } in &self.stage.tied_owners {
            let owner = self.layer(*owner)?;
            for (stage, users) in to {
                let list = list_of(&mut values, *stage);
                for (number, _) in shared_params(owner, users.iter()) {
                    let index =
                        self.params.index_of(owner.id, number).ok_or(EngineError::TiedMismatch { stage: *stage })?;
                    list.push(super::state::copy(&self.params.all[index].tensor)?);
                }
            }
        }
        values.sort_by_key(|(stage, _)| std::cmp::Reverse(*stage));
        Ok(values)
    }

    /// Takes the new values of the parameters that other stages own, and clears their gradients.
    pub fn update_tied(&mut self, tied: TensorsByStage) -> Result<(), EngineError> {
        let mut tied: HashMap<StageId, std::vec::IntoIter<Tensor>> =
            tied.into_iter().map(|(stage, tensors)| (stage, tensors.into_iter())).collect();
        self.version += 1;
        for param in self.params.all.iter().filter(|param| param.owner_stage.is_some()) {
            let Some(stage) = param.owner_stage else { continue };
            let value = tied.get_mut(&stage).and_then(Iterator::next);
            let value =
                value.filter(|value| value.size() == param.tensor.size()).ok_or(EngineError::TiedMismatch { stage })?;
            tch::no_grad(|| param.tensor.shallow_clone().f_copy_(&value)).map_err(TensorError::from)?;
            for &(place, number) in &param.uses {
                self.gradients[place][number].clear();
            }
        }
        match tied.into_iter().find(|(_, rest)| rest.len() > 0) {
            Some((stage, _)) => Err(EngineError::TiedMismatch { stage }),
            None => Ok(()),
        }
    }

    /// The gradient of every parameter, summed over the layers that use it; none where none has come.
    pub(super) fn total_gradients(&self) -> Result<Vec<Option<Tensor>>, TensorError> {
        let all = self.params.all.iter().enumerate();
        all.map(|(index, param)| {
            let mut sum = OrderedSum::default();
            if let Some(others) = self.tied_grad_sums.get(&index).and_then(OrderedSum::get) {
                sum.add(others.shallow_clone())?;
            }
            for &(place, number) in param.uses.iter().rev() {
                if let Some(gradient) = self.gradients[place][number].get() {
                    sum.add(gradient.shallow_clone())?;
                }
            }
            Ok(sum.into_tensor())
        })
        .collect()
    }

    fn layer(&self, id: LayerId) -> Result<&Layer, EngineError> {
        let layer = self.stage.layers.iter().find(|layer| layer.id == id);
        layer.ok_or_else(|| EngineError::UnknownOwner { layer: format!("number {}", id.0), owner: id })
    }
}

fn list_of(lists: &mut TensorsByStage, stage: StageId) -> &mut Vec<Tensor> {
    let place = lists.iter().position(|(other, _)| *other == stage).unwrap_or_else(|| {
        lists.push((stage, Vec::new()));
        lists.len() - 1
    });
    &mut lists[place].1
}
