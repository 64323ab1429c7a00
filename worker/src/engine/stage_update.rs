//! The engine between passes: sums over replicas, the optimizer step, and state by name.

use crate::engine::error::{EngineError, SequenceError};
use crate::engine::gradients::all_reduce::AllReduce;
use crate::engine::params::state_dict::{Missing, StateTensor};
use crate::engine::params::tied_params::TensorsByStage;
use crate::engine::stage_engine::Engine;
use crate::engine::update::grad_squares::{grad_squares, GradSquares};
use crate::engine::update::optimizer::Optimizer;
use crate::engine::update::optimizer_state::{self, OptimizerStateScope, OptimizerTensor};
use crate::engine::update::step::{HealthCheck, OptimStep};
use pipeline::optimizer::OptimizerSpec;
use pipeline::task::Update;
use pipeline::watch::LayerHealth;
use pipeline::TensorMeta;
use tch::Tensor;

/// The result of an optimizer step.
#[derive(Debug)]
pub struct StepResult {
    /// The new values of the tied parameters that the stage owns, for each stage that uses some,
    /// descending.
    pub owned_tied_values: TensorsByStage,
    /// The health of each layer; empty without a [`HealthCheck`].
    pub health: Vec<LayerHealth>,
}

impl Engine {
    /// Adds the sums over all microbatches of a batch to the gradients so far, and applies the
    /// statistics of norms. A parameter without a gradient has none, as in PyTorch.
    ///
    /// `buckets` has for each bucket and replica the slices of that replica's shard, of a sharded
    /// bucket only this one's. `statistics` has what each other replica emitted. Both are empty if
    /// all microbatches were computed here.
    ///
    /// # Errors
    /// The tensors do not fit the stage, or the sum is not complete.
    pub fn reduce(
        &mut self,
        batch: u64,
        buckets: Vec<Vec<Vec<Tensor>>>,
        statistics: Vec<Vec<Tensor>>,
    ) -> Result<(), EngineError> {
        tch::no_grad(|| {
            self.gradients.reduce(&self.params, buckets, self.stage.config.device)?;
            self.statistics.apply_batch(batch, &statistics, self.params.params())
        })
    }

    /// As [`Engine::reduce`], but the replicas' devices sum the gradients among themselves. A
    /// replica without microbatches takes part with zeros.
    ///
    /// # Errors
    /// The statistics do not fit the stage, or the other replicas cannot be reached.
    pub fn all_reduce(
        &mut self,
        batch: u64,
        statistics: Vec<Vec<Tensor>>,
        replicas: &mut impl AllReduce,
    ) -> Result<(), EngineError> {
        let (params, device) = (self.params.params(), self.stage.config.device);
        tch::no_grad(|| {
            self.gradients.all_reduce(params, device, replicas)?;
            self.statistics.apply_batch(batch, &statistics, params)
        })
    }

    /// Takes out the gradients of the parameters that other stages own: for each such stage,
    /// ascending, the tensors that [`pipeline::plan::TiedCopy`] describes.
    ///
    /// # Errors
    /// The device fails.
    pub fn tied_grads(&mut self) -> Result<TensorsByStage, EngineError> {
        self.gradients.take_tied(&self.stage.config, self.params.params())
    }

    /// Adds the gradients of tied parameters from other stages, and returns the sums of squares of
    /// each parameter's gradient, or of this replica's shard of it. They depend neither on the cut
    /// nor on the number of threads or the sharding. The owner of a tied parameter reports it.
    ///
    /// # Errors
    /// The gradients of other stages do not fit.
    pub fn grad_norm(&mut self, tied: TensorsByStage) -> Result<GradSquares, EngineError> {
        self.gradients.add_tied(&self.stage.config, self.params.params(), tied)?;
        grad_squares(&self.params, &self.gradients)
    }

    /// Sets the optimizer. Its state starts anew.
    pub fn set_optimizer(&mut self, spec: OptimizerSpec) {
        self.optimizer = Some(Optimizer::new(spec));
    }

    /// Runs one step of the optimizer over the gradients so far, and clears them. A skipped step
    /// does nothing else. A parameter without a gradient stays as it is, as in PyTorch, and so do
    /// the parts that other replicas update. `tied` is as for [`Engine::grad_norm`], and empty if
    /// that was called.
    ///
    /// # Errors
    /// No optimizer is set, the gradients of other stages do not fit, or the device fails.
    pub fn optim_step(
        &mut self,
        update: &Update,
        tied: TensorsByStage,
        check: HealthCheck,
    ) -> Result<StepResult, EngineError> {
        let optimizer = self.optimizer.as_mut().ok_or(SequenceError::NoOptimizer)?;
        if !update.skip {
            self.gradients.add_tied(&self.stage.config, self.params.params(), tied)?;
        }
        let step = OptimStep {
            store: &mut self.params,
            gradients: &mut self.gradients,
            statistics: &mut self.statistics,
            optimizer,
        };
        let health = if update.skip {
            step.skip();
            Vec::new()
        } else {
            step.run(update, check)?
        };
        let owned_tied_values = self.params.owned_tied_values(&self.stage.config)?;
        Ok(StepResult { owned_tied_values, health })
    }

    /// Sets the new values of the parameters that other stages own, and clears their gradients.
    ///
    /// # Errors
    /// The values do not fit.
    pub fn update_tied(&mut self, tied: TensorsByStage) -> Result<(), EngineError> {
        self.params.set_tied_copies(tied)?;
        self.gradients.clear_tied_copies(self.params.params());
        Ok(())
    }

    /// Emits copies of this replica's shard of the parameters, bucket by bucket.
    ///
    /// # Errors
    /// A copy fails, or `emit` does.
    pub fn emit_shard(
        &self,
        emit: impl FnMut(u32, Vec<Tensor>) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        self.params.emit_shard(&self.stage.config.buckets, emit)
    }

    /// Takes in the shards that the other replicas have updated: for each bucket and replica the
    /// slices of its shard. This replica and buckets without shards have none.
    /// Nothing changes unless everything fits.
    ///
    /// # Errors
    /// The slices do not fit the stage.
    pub fn all_gather(&mut self, buckets: Vec<Vec<Vec<Tensor>>>) -> Result<(), EngineError> {
        if self.params.shards().are_split() {
            self.gradients.buckets()?;
        }
        self.params.all_gather(&self.stage.config.buckets, buckets)
    }

    /// Frees the other replicas' shards of the parameters, if parameters are sharded.
    ///
    /// # Errors
    /// The device fails.
    pub fn reshard(&mut self) -> Result<(), EngineError> {
        Ok(self.params.reshard()?)
    }

    /// Copies all parameters and buffers, which must be here, named `<layer>.<name>` as in PyTorch.
    /// A shared one is there once, under its owner's name. Those of other stages are not there.
    ///
    /// # Errors
    /// Only a shard of the parameters is here.
    pub fn state(&self) -> Result<Vec<(String, Tensor)>, EngineError> {
        self.params.state()
    }

    /// As [`Engine::state`], without copies.
    ///
    /// # Errors
    /// Only a shard of the parameters is here.
    pub fn state_in_place(&self) -> Result<Vec<StateTensor>, EngineError> {
        self.params.state_in_place()
    }

    /// Sets all parameters and buffers. Nothing changes unless everything fits.
    ///
    /// Shared ones may come under any of their names, or under several with equal contents. Copies
    /// of parameters that another stage owns are set, too.
    ///
    /// # Errors
    /// Tensors are missing, unexpected, or of another shape or dtype; all are listed.
    pub fn load_state(&mut self, state: Vec<(String, Tensor)>) -> Result<(), EngineError> {
        self.set_state(state, Missing::Refused)
    }

    /// As [`Engine::load_state`], for some of the tensors. Others stay as they are.
    ///
    /// # Errors
    /// A tensor is unexpected, or of another shape or dtype. Then nothing is changed.
    pub fn load_part(&mut self, state: Vec<(String, Tensor)>) -> Result<(), EngineError> {
        self.set_state(state, Missing::Kept)
    }

    /// Sets elements of a parameter or buffer, from `start` on in row-major order.
    ///
    /// # Errors
    /// There is no such parameter, it has fewer elements, or another dtype. Nothing is changed.
    pub fn load_slice(
        &mut self,
        name: &str,
        start: u64,
        values: &Tensor,
    ) -> Result<(), EngineError> {
        self.statistics.forget_restore_points();
        self.params.set_slice(name, start, values)
    }

    fn set_state(
        &mut self,
        state: Vec<(String, Tensor)>,
        missing: Missing,
    ) -> Result<(), EngineError> {
        let fitting = self.params.match_state(state, missing)?;
        self.statistics.forget_restore_points();
        self.params.set_state(&fitting)
    }

    /// The dtype and the shape of the parameter or buffer of this name.
    ///
    /// # Errors
    /// It has a type that BossMan does not know.
    pub fn meta_of(&self, name: &str) -> Result<Option<TensorMeta>, EngineError> {
        self.params.meta_of(name)
    }

    /// Whether a parameter or buffer has this name, here or in the stage that owns it.
    pub fn has_tensor(&self, name: &str) -> bool {
        self.params.has_tensor(name)
    }

    /// The trained parameters that the stage owns, by name.
    pub fn trained_params(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.params.trained_params()
    }

    /// The trained parameters of which each replica of the stage has all.
    pub fn replicated_trained_params(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.params.replicated_trained_params()
    }

    /// Copies the optimizer's state. It is empty before the first step.
    ///
    /// # Errors
    /// A copy fails.
    pub fn optimizer_state(
        &self,
        scope: OptimizerStateScope,
    ) -> Result<Vec<OptimizerTensor>, EngineError> {
        match &self.optimizer {
            Some(optimizer) => optimizer_state::optimizer_state(optimizer, &self.params, scope),
            None => Ok(Vec::new()),
        }
    }

    /// As [`Engine::optimizer_state`], without copies. Only an update of the parameters or a new
    /// optimizer state changes the values.
    ///
    /// # Errors
    /// libtorch fails.
    pub fn optimizer_state_in_place(
        &self,
        scope: OptimizerStateScope,
    ) -> Result<Vec<OptimizerTensor>, EngineError> {
        let Some(optimizer) = &self.optimizer else { return Ok(Vec::new()) };
        Ok(optimizer_state::optimizer_state_in_place(optimizer, &self.params, scope)?)
    }

    /// Sets the optimizer's state, whole and named `<layer>.<name>.<state>` (`0.weight.exp_avg`),
    /// for the same parameters and optimizer. Of a sharded parameter this replica keeps its shard.
    /// Missing state starts fresh.
    ///
    /// # Errors
    /// It is not the state of this stage's parameters or of this optimizer. The state is then
    /// empty.
    pub fn load_optimizer_state(
        &mut self,
        state: Vec<(String, Tensor)>,
    ) -> Result<(), EngineError> {
        let optimizer = self.optimizer.as_mut().ok_or(SequenceError::NoOptimizer)?;
        optimizer_state::load_optimizer_state(optimizer, &self.params, state)
    }

    /// Sets a tensor of the optimizer's state (`0.weight.exp_avg`), or with `start` a flat slice of
    /// it from that element on. Other state stays as it is. Of a sharded parameter this replica
    /// keeps its shard. State that the parameter does not have yet begins with zeros.
    ///
    /// # Errors
    /// It is not state of a parameter of this stage or of this optimizer, or it has another size or
    /// type. Nothing is changed.
    pub fn load_optimizer_part(
        &mut self,
        name: &str,
        start: Option<u64>,
        values: &Tensor,
    ) -> Result<(), EngineError> {
        let optimizer = self.optimizer.as_mut().ok_or(SequenceError::NoOptimizer)?;
        optimizer_state::load_optimizer_part(optimizer, &self.params, name, start, values)
    }

    /// The gradients so far by parameter name; `None` for a parameter without one.
    ///
    /// # Errors
    /// The device fails.
    pub fn gradients(&self) -> Result<Vec<(&str, Option<Tensor>)>, EngineError> {
        let params = self.params.params();
        let all = params.all.iter().zip(self.gradients.totals(params)?);
        let trained = all.filter(|(param, _)| param.trained);
        Ok(trained.map(|(param, gradient)| (param.name.as_str(), gradient)).collect())
    }
}
