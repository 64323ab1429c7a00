//! The second half of the backward pass: the gradients of the parameters, and what they are added to.

use super::branch::TreeTarget;
use super::call::PassPurpose;
use super::error::{in_layer, EngineError, LayerPhase};
use super::gradient::{GradientBuffer, OpGradients};
use super::leaves::LeafWriter;
use super::stage::Pass;
use super::Engine;
use pipeline::ids::MicrobatchKey;
use tch::Tensor;

/// The saved state of a microbatch between the halves of its backward pass.
#[derive(Debug)]
pub(super) struct PendingWeightGrads {
    pub(super) pass: Pass,
    pub(super) version: u64,
    /// In the order in which the first half left them.
    pub(super) op_weight_inputs: Vec<OpWeightInputs>,
}

/// The tensors that one op needs for the gradients of its parameters.
#[derive(Debug)]
pub(super) struct OpWeightInputs {
    pub(super) layer: usize,
    pub(super) node: usize,
    pub(super) tensors: Vec<Tensor>,
}

/// The target to which the gradients of parameters are added.
pub(super) enum GradientTarget<'a> {
    /// Those of the microbatches before.
    Accumulate(&'a mut [Vec<GradientBuffer>]),
    /// Those of this microbatch, which go into trees.
    Tree(LeafWriter<'a>),
}

impl Engine {
    /// The second half: adds the microbatch's gradients of the parameters to those of earlier calls. For sums that do
    /// not depend on the schedule, call it for microbatches in ascending order.
    pub fn backward_weight(&mut self, key: MicrobatchKey) -> Result<(), EngineError> {
        self.weight_pass(key, None)
    }

    /// The same along a tree, for which microbatches may come in any order.
    pub fn backward_weight_into_tree(&mut self, key: MicrobatchKey, target: TreeTarget<'_>) -> Result<(), EngineError> {
        self.weight_pass(key, Some(target))
    }

    fn weight_pass(&mut self, key: MicrobatchKey, target: Option<TreeTarget<'_>>) -> Result<(), EngineError> {
        let pending_weight_grads =
            self.pending_weight_grads.remove(&key).ok_or(EngineError::NoBackwardInput { key })?;
        self.check_version(key, pending_weight_grads.version)?;
        self.with_gradient_target(key, target, |engine, sums| {
            pending_weight_grads
                .op_weight_inputs
                .into_iter()
                .try_for_each(|rest| engine.op_weight_pass(rest, &pending_weight_grads.pass, sums))
        })
    }

    /// Lends out what the parameters' gradients are added to.
    pub(super) fn with_gradient_target<T>(
        &mut self,
        key: MicrobatchKey,
        target: Option<TreeTarget<'_>>,
        work: impl FnOnce(&Engine, &mut GradientTarget<'_>) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        let Some(mut target) = target else {
            let mut gradients = std::mem::take(&mut self.gradients);
            let result = tch::no_grad(|| work(self, &mut GradientTarget::Accumulate(&mut gradients)));
            self.gradients = gradients;
            return result;
        };
        if target.branch.tells {
            self.emit_statistics(key.batch, &mut target)?;
        }
        let mut trees = std::mem::take(&mut self.trees);
        let result = tch::no_grad(|| {
            let target = TreeTarget { emit: &mut *target.emit, ..target };
            let mut sums = GradientTarget::Tree(trees.begin_pass(key, target)?);
            let result = work(self, &mut sums)?;
            sums.finish_layers_from(0)?;
            Ok(result)
        });
        self.trees = trees;
        result
    }

    pub(super) fn op_weight_pass(
        &self,
        rest: OpWeightInputs,
        pass: &Pass,
        sums: &mut GradientTarget<'_>,
    ) -> Result<(), EngineError> {
        let node = &self.layers[rest.layer].nodes[rest.node];
        let ctx = self.op_context(rest.layer, node, pass, PassPurpose::Backward);
        let mut gradients = OpGradients::new(node, sums.layer_gradients(rest.layer)?);
        let done = node.op.backward_weight(&ctx, rest.tensors, &mut gradients);
        done.map_err(in_layer(&self.stage.layers[rest.layer], LayerPhase::Backward))
    }
}

impl GradientTarget<'_> {
    fn layer_gradients(&mut self, layer: usize) -> Result<&mut [GradientBuffer], EngineError> {
        match self {
            GradientTarget::Accumulate(gradients) => Ok(&mut gradients[layer]),
            GradientTarget::Tree(leaves) => leaves.layer_gradients(layer),
        }
    }

    /// Layers from this one on have added theirs.
    pub(super) fn finish_layers_from(&mut self, layer: usize) -> Result<(), EngineError> {
        match self {
            GradientTarget::Accumulate(_) => Ok(()),
            GradientTarget::Tree(leaves) => leaves.finish_layers_from(layer),
        }
    }
}
