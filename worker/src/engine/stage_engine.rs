//! The engine of a stage: its values, and the passes of a microbatch.

use crate::engine::config::{LossInputs, Mode, Pass, StageConfig};
use crate::engine::error::{EngineError, SequenceError};
use crate::engine::gradients::gradient_store::GradientStore;
use crate::engine::gradients::trees::TreeTarget;
use crate::engine::layers::custom_layers::CustomLayers;
use crate::engine::layers::kv_cache::KvCache;
use crate::engine::params::param_store::ParamStore;
use crate::engine::params::running_statistics::RunningStatistics;
use crate::engine::passes::backward::WeightPass;
use crate::engine::passes::compiled_stage::{check_connected, CompiledStage};
use crate::engine::passes::forward::ForwardResult;
use crate::engine::passes::loss;
use crate::engine::passes::runner::PassRunner;
use crate::engine::passes::saved_passes::{
    PendingWeightGrads, SavedBytes, SavedMicrobatch, SavedPasses,
};
use crate::engine::update::optimizer::Optimizer;
use pipeline::ids::MicrobatchKey;
use pipeline::kv_cache_step::KvCacheStep;
use pipeline::task::{EarlyOutput, Ports};
use std::collections::HashMap;
use tch::Tensor;
use tensor::memory;
use tensor::transfer::HostCopy;

/// A stage that computes.
///
/// After an error in the forward or backward pass of a microbatch the step is void. Call
/// [`Engine::discard`], [`Engine::undo_statistics`] and [`Engine::zero_grad`]; then the stage is
/// ready for the next.
#[derive(Debug)]
pub struct Engine {
    pub(super) stage: CompiledStage,
    pub(super) params: ParamStore,
    pub(super) gradients: GradientStore,
    pub(super) saved: SavedPasses,
    pub(super) statistics: RunningStatistics,
    pub(super) kv_cache: KvCache,
    pub(super) optimizer: Option<Optimizer>,
}

impl Engine {
    /// Makes the stage. Its parameters are filled as PyTorch would, from the run's seed and their
    /// names.
    ///
    /// # Errors
    /// The plan is wrong, or a layer cannot be made.
    pub fn build(config: StageConfig, custom_layers: &CustomLayers) -> Result<Self, EngineError> {
        let mut engine = Engine::build_undrawn(config, custom_layers)?;
        engine.draw_parameters()?;
        Ok(engine)
    }

    /// As [`Engine::build`], but random values are drawn by [`Engine::draw_parameters`] only. Until
    /// then do nothing with the stage but set its state.
    ///
    /// # Errors
    /// As [`Engine::build`].
    pub fn build_undrawn(
        config: StageConfig,
        custom_layers: &CustomLayers,
    ) -> Result<Self, EngineError> {
        check_connected(&config)?;
        let params = ParamStore::new(&config, custom_layers.files())?;
        let stage = CompiledStage::build(config, custom_layers, params.params())?;
        Ok(Engine {
            gradients: GradientStore::new(&stage.config, params.params()),
            statistics: RunningStatistics::new(&stage.config, params.params()),
            stage,
            params,
            saved: SavedPasses::default(),
            kv_cache: KvCache::default(),
            optimizer: None,
        })
    }

    /// Draws the initial values of parameters that are neither drawn nor set. Returns at once if
    /// there are none.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn draw_parameters(&mut self) -> Result<(), EngineError> {
        Ok(self.params.draw()?)
    }

    /// The configuration of the stage.
    pub fn stage(&self) -> &StageConfig {
        &self.stage.config
    }

    /// How often the parameters have changed.
    pub fn version(&self) -> u64 {
        self.params.version()
    }

    /// The number of microbatches that wait for their backward pass, or half of it.
    pub fn pending_microbatches(&self) -> usize {
        self.saved.len()
    }

    /// The bytes saved for backward passes.
    pub fn saved_bytes(&self) -> SavedBytes {
        self.saved_bytes_besides(&[])
    }

    /// The bytes saved for backward passes, without the memory of these tensors.
    pub fn saved_bytes_besides(&self, others: &[&Tensor]) -> SavedBytes {
        self.saved.bytes(self.params.params(), others)
    }

    /// Those of these tensors whose memory is saved from forward to backward.
    pub fn saved_of(&self, tensors: &[Tensor]) -> Ports {
        in_memory_of(tensors, self.saved.forward_tensors())
    }

    /// Those of these tensors whose memory is saved between the halves of backward.
    pub fn saved_between_of(&self, tensors: &[Tensor]) -> Ports {
        in_memory_of(tensors, self.saved.tensors_between())
    }

    /// Sets the sequences that the next forward passes continue; `None` for passes that stand
    /// alone.
    ///
    /// # Errors
    /// The rows cannot be brought to the device.
    pub fn begin_cached_pass(&mut self, cached: Option<&KvCacheStep>) -> Result<(), EngineError> {
        self.kv_cache.begin_pass(cached, &self.stage.config)
    }

    /// Runs the stage's layers on one microbatch. Takes the values of [`StageConfig::inputs`] and
    /// returns those of [`StageConfig::outputs`], each in that order. Outputs are contiguous, on
    /// the stage's device, and have no graph.
    ///
    /// In [`Mode::Train`] saves what [`Engine::backward`] needs, under the pass's key. Outputs may
    /// share memory with what is saved: do not write to them. Do not write to the inputs either,
    /// while any reference to them is left.
    ///
    /// # Errors
    /// A layer fails, the microbatch waits for backward already, or an input is missing.
    pub fn forward(
        &mut self,
        pass: &Pass,
        inputs: Vec<Tensor>,
    ) -> Result<Vec<Tensor>, EngineError> {
        if pass.mode == Mode::Train {
            self.saved.check_new(pass.key)?;
        }
        self.params.check_gathered()?;
        let values = self.stage.receive_inputs(inputs)?;
        self.statistics.begin_pass(pass, self.params.params())?;
        let runner = PassRunner::new(&self.stage, &self.params, &self.statistics, &self.kv_cache);
        let ForwardResult { outputs, layers } = runner.forward(pass, values)?;
        if pass.mode == Mode::Train {
            self.saved.insert(SavedMicrobatch {
                pass: *pass,
                version: self.params.version(),
                layers,
                output_sizes: outputs.iter().map(Tensor::size).collect(),
                loss_grads: HashMap::new(),
            });
        }
        Ok(outputs)
    }

    /// The microbatch's mean loss times its weight, a number that adds to the step's loss.
    ///
    /// In [`Mode::Train`] saves the gradient of the prediction for [`Engine::backward`].
    ///
    /// # Errors
    /// The target does not fit the prediction, or in training no forward pass is saved.
    pub fn loss(
        &mut self,
        key: MicrobatchKey,
        inputs: &LossInputs<'_>,
        mode: Mode,
    ) -> Result<HostCopy, EngineError> {
        if mode == Mode::Eval {
            return loss::evaluate(inputs);
        }
        let saved = self.saved.forward_mut(key)?;
        let loss = loss::differentiate(inputs)?;
        saved.loss_grads.insert(inputs.output, loss.grad);
        Ok(loss.loss)
    }

    /// Runs the backward pass of a microbatch. Adds the gradients of the stage's parameters to
    /// those of earlier microbatches, and returns the gradients of the stage's inputs.
    ///
    /// `output_grads[i]` has the gradients of output `i` from others, in the order of summing. It
    /// may be empty. The loss's own gradient comes before them, and those of this stage's uses
    /// after. Memory without other references may be written to.
    ///
    /// In the result, each input that needs its gradient has one tensor for each of this stage's
    /// uses, by descending layer and port, or their sum if the input asks for it. A use that no
    /// gradient reaches has none, so the list may be shorter, or empty. The other inputs have an
    /// empty list. The tensors may share memory with the arguments: do not write to them.
    ///
    /// # Errors
    /// A layer fails, a gradient has a wrong shape, no forward pass is saved, or the parameters
    /// changed after it.
    pub fn backward(
        &mut self,
        key: MicrobatchKey,
        output_grads: Vec<Vec<Tensor>>,
    ) -> Result<Vec<Vec<Tensor>>, EngineError> {
        self.full_backward(key, output_grads, None)
    }

    /// As [`Engine::backward`], but a tree sums the gradients of parameters. [`Engine::reduce`]
    /// adds the sum to the gradients so far. Microbatches may come in any order.
    ///
    /// # Errors
    /// As [`Engine::backward`], and the microbatch is no leaf of the tree.
    pub fn backward_into_tree(
        &mut self,
        key: MicrobatchKey,
        output_grads: Vec<Vec<Tensor>>,
        target: TreeTarget<'_>,
    ) -> Result<Vec<Vec<Tensor>>, EngineError> {
        self.full_backward(key, output_grads, Some(target))
    }

    fn full_backward(
        &mut self,
        key: MicrobatchKey,
        output_grads: Vec<Vec<Tensor>>,
        mut target: Option<TreeTarget<'_>>,
    ) -> Result<Vec<Vec<Tensor>>, EngineError> {
        let saved = self.take_forward(key, output_grads.len())?;
        self.emit_statistics(key.batch, target.as_mut())?;
        let runner = PassRunner::new(&self.stage, &self.params, &self.statistics, &self.kv_cache);
        let mut target = self.gradients.target(key, target.as_mut().map(TreeTarget::reborrow))?;
        runner.backward(saved, output_grads, &mut WeightPass::Immediate(&mut target))
    }

    /// Runs the first half of [`Engine::backward`]: the same result, but the gradients of
    /// parameters are left for [`Engine::backward_weight`]. Frees what only this half needs.
    /// Microbatches may come in any order.
    ///
    /// # Errors
    /// As [`Engine::backward`].
    pub fn backward_input(
        &mut self,
        key: MicrobatchKey,
        output_grads: Vec<Vec<Tensor>>,
    ) -> Result<Vec<Vec<Tensor>>, EngineError> {
        let saved = self.take_forward(key, output_grads.len())?;
        let (pass, version, mut op_weight_inputs) = (saved.pass, saved.version, Vec::new());
        let mut weights = WeightPass::Deferred(&mut op_weight_inputs);
        let runner = PassRunner::new(&self.stage, &self.params, &self.statistics, &self.kv_cache);
        let result = runner.backward(saved, output_grads, &mut weights)?;
        self.saved.insert_pending(PendingWeightGrads { pass, version, op_weight_inputs });
        Ok(result)
    }

    /// Runs the second half of the backward pass: adds the microbatch's gradients of parameters to
    /// those of earlier calls. For sums that do not depend on the schedule, call it for
    /// microbatches in ascending order.
    ///
    /// # Errors
    /// The first half has not been run, or a layer fails.
    pub fn backward_weight(&mut self, key: MicrobatchKey) -> Result<(), EngineError> {
        self.weight_pass(key, None)
    }

    /// As [`Engine::backward_weight`] along a tree. Microbatches may come in any order.
    ///
    /// # Errors
    /// As [`Engine::backward_weight`], and the microbatch is no leaf of the tree.
    pub fn backward_weight_into_tree(
        &mut self,
        key: MicrobatchKey,
        target: TreeTarget<'_>,
    ) -> Result<(), EngineError> {
        self.weight_pass(key, Some(target))
    }

    fn weight_pass(
        &mut self,
        key: MicrobatchKey,
        mut target: Option<TreeTarget<'_>>,
    ) -> Result<(), EngineError> {
        let pending = self.saved.take_pending(key)?;
        self.params.check_version(key, pending.version)?;
        self.params.check_gathered()?;
        self.emit_statistics(key.batch, target.as_mut())?;
        let runner = PassRunner::new(&self.stage, &self.params, &self.statistics, &self.kv_cache);
        let mut target = self.gradients.target(key, target.as_mut().map(TreeTarget::reborrow))?;
        runner.weight_pass(pending, &mut target)?;
        target.finish_layers_from(0)
    }

    /// Clears all gradients. Their memory is kept for the next ones.
    pub fn zero_grad(&mut self) {
        self.gradients.zero();
        self.statistics.clear();
    }

    /// Restores the running statistics of norms to those before this batch, whose step is void, if
    /// it was the last.
    pub fn undo_statistics(&mut self, batch: u64) {
        self.statistics.undo(batch, self.params.params());
    }

    /// Drops all that is saved of a batch's microbatches. Gradients that some of them have added
    /// stay until [`Engine::zero_grad`], unless a tree sums them.
    pub fn discard(&mut self, batch: u64) {
        self.gradients.discard(batch);
        self.statistics.discard(batch);
        self.saved.discard(batch);
    }

    fn take_forward(
        &mut self,
        key: MicrobatchKey,
        grads: usize,
    ) -> Result<SavedMicrobatch, EngineError> {
        let expected = self.stage.config.outputs.len();
        if expected != grads {
            let what = "outputs";
            return Err(SequenceError::CountMismatch { what, expected, got: grads }.into());
        }
        let saved = self.saved.take_forward(key)?;
        self.params.check_version(key, saved.version)?;
        self.params.check_gathered()?;
        Ok(saved)
    }

    /// Emits the statistics of norms, for a tree whose branch asks for them.
    fn emit_statistics(
        &self,
        batch: u64,
        target: Option<&mut TreeTarget<'_>>,
    ) -> Result<(), EngineError> {
        let Some(target) = target.filter(|target| target.branch.emits_statistics) else {
            return Ok(());
        };
        if let Some(tensors) = self.statistics.to_tensors(batch)? {
            (target.emit)(EarlyOutput::Statistics { stage: target.stage, tensors })?;
        }
        Ok(())
    }
}

/// The places of those tensors in whose memory one of `saved` lies.
fn in_memory_of<'a>(tensors: &[Tensor], saved: impl Iterator<Item = &'a Tensor>) -> Ports {
    let saved: Vec<_> = saved.collect();
    let is_saved = |tensor: &Tensor| saved.iter().any(|other| memory::share_memory(tensor, other));
    tensors.iter().enumerate().filter(|(_, t)| is_saved(t)).map(|(port, _)| port).collect()
}
