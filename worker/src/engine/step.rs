//! From gradients to new parameters.

use super::error::EngineError;
use super::health;
use super::optimizer::ParamUpdate;
use super::shards::slice_of;
use super::tied::TensorsByStage;
use super::Engine;
use layerspec::LayerId;
use pipeline::norm::{blocks, summed, Square, BLOCK};
use pipeline::task::Update;
use pipeline::watch::LayerHealth;
use tch::Tensor;
use tensor::{memory, TensorError};

impl Engine {
    /// Adds the gradients of shared parameters that came from other stages, and gives the sums of
    /// squares of every parameter's gradient, or of what of it is here. They depend neither on the
    /// cut nor on the number of threads, nor on who has which part. The owner of a shared parameter
    /// reports it.
    pub fn grad_norm(&mut self, tied: TensorsByStage) -> Result<Vec<Square>, EngineError> {
        self.add_tied_grads(tied)?;
        let mut squares = Vec::new();
        for (index, gradient) in self.total_gradients()?.into_iter().enumerate() {
            let param = &self.params.all[index];
            let Some(gradient) = gradient.filter(|_| param.owner_stage.is_none()) else { continue };
            let begin = self.shards.shard_range(&self.params, index).map_or(0, |part| part.start.unsigned_abs());
            let first = u32::try_from(begin / BLOCK).unwrap_or(u32::MAX);
            let blocks = blocks(param.tensor.numel() as u64);
            let sums = memory::squares_of_blocks(&gradient, BLOCK as usize)?;
            let (layer, number) = (param.owner, param.number);
            let nodes = summed(blocks, first, &sums).into_iter();
            squares.extend(nodes.map(|(node, sum)| Square { layer, number, blocks, node, sum }));
        }
        Ok(squares)
    }

    /// One step of the optimizer over the gradients so far, which are cleared (and nothing else, where it is skipped); a
    /// parameter without one is left alone, as in PyTorch, and so is what other replicas update. `tied` is as for [`Engine::grad_norm`], and empty where that has been. In the result, the new
    /// values of the parameters that the stage lends, for every stage that uses some, descending.
    pub fn optim_step(&mut self, update: &Update, tied: TensorsByStage) -> Result<TensorsByStage, EngineError> {
        self.optim_step_with_health(update, tied, None)
    }

    /// The same, and how the layers fare in it.
    pub fn optim_step_with_health(
        &mut self,
        update: &Update,
        tied: TensorsByStage,
        health: Option<&mut Vec<LayerHealth>>,
    ) -> Result<TensorsByStage, EngineError> {
        if self.optimizer.is_none() {
            return Err(EngineError::NoOptimizer);
        }
        if update.skip {
            // What they saw led to this.
            self.statistics.on_update(true, &self.params);
            self.zero_own_grad();
            return self.owner_values();
        }
        self.add_tied_grads(tied)?;
        let mut totals = self.total_gradients()?;
        for factor in [update.scale, update.clip].into_iter().filter(|factor| *factor != 1.0) {
            for gradient in totals.iter_mut().flatten() {
                let _same = gradient.f_mul_scalar_(factor).map_err(TensorError::from)?;
            }
        }
        let all = self.params.all.iter().zip(&totals).enumerate();
        let due = all.filter_map(|(index, (param, grad))| {
            let grad = grad.as_ref().filter(|_| param.trained && param.owner_stage.is_none())?;
            let tensor =
                match (self.shards.own_shard(&self.params, index), self.shards.shard_range(&self.params, index)) {
                    (Some(kept), _) => Ok(kept.shallow_clone()),
                    (None, Some(part)) => slice_of(&param.tensor, &part),
                    (None, None) => Ok(param.tensor.shallow_clone()),
                };
            Some(tensor.map(|tensor| ParamUpdate { index, tensor, grad }))
        });
        let due = due.collect::<Result<Vec<_>, _>>()?;
        let before = health.as_ref().map(|_| health::probe(&due, &self.params)).transpose()?;
        let untouched = self.params.all.iter().zip(&totals).filter(|(param, grad)| param.trained && grad.is_none());
        let without: Vec<LayerId> = untouched.filter(|(p, _)| p.owner_stage.is_none()).map(|(p, _)| p.owner).collect();
        self.statistics.on_update(false, &self.params);
        self.version += 1;
        if let Some(optimizer) = &mut self.optimizer {
            optimizer.step(due, update.lr)?;
        }
        if let Some((health, before)) = health.zip(before) {
            *health = health::layer_health(before, without)?;
        }
        self.zero_own_grad();
        // What was gathered is of the step before.
        self.reshard()?;
        self.owner_values()
    }

    /// Forgets all gradients. Their memory is kept for the next ones.
    pub fn zero_grad(&mut self) {
        self.tied_grad_sums.clear();
        self.trees.clear();
        self.statistics.clear();
        self.gradients.iter_mut().flatten().for_each(super::gradient::GradientBuffer::clear);
    }

    /// Forgets the gradients of what the stage owns; those of what it borrows are for others to take. Memory of what is shared
    /// out is free then: what the others have updated is about to come.
    fn zero_own_grad(&mut self) {
        self.tied_grad_sums.clear();
        for param in self.params.all.iter().filter(|param| param.owner_stage.is_none()) {
            for &(place, number) in &param.uses {
                match self.shards.shard_range_of_use((place, number)) {
                    Some(_) => drop(self.gradients[place][number].take()),
                    None => self.gradients[place][number].clear(),
                }
            }
        }
    }

    /// The gradients so far by parameter name, none for a parameter that has none yet.
    pub fn gradients(&self) -> Result<Vec<(&str, Option<Tensor>)>, EngineError> {
        let all = self.params.all.iter().zip(self.total_gradients()?).filter(|(param, _)| param.trained);
        Ok(all.map(|(param, gradient)| (param.name.as_str(), gradient)).collect())
    }
}
