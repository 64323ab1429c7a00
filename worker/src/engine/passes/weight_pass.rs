//! The second half of the backward pass: the gradients of the parameters.

use crate::engine::config::Pass;
use crate::engine::error::{in_layer, EngineError, LayerPhase};
use crate::engine::gradients::gradient_target::GradientTarget;
use crate::engine::layers::op_context::PassPurpose;
use crate::engine::layers::op_gradients::OpGradients;
use crate::engine::passes::runner::{LayerCall, PassRunner};
use crate::engine::passes::saved_passes::{OpWeightInputs, PendingWeightGrads};

impl PassRunner<'_> {
    /// Adds the gradients of all parameters, in the order in which the first half left them.
    pub(crate) fn weight_pass(
        &self,
        pending: PendingWeightGrads,
        target: &mut GradientTarget<'_>,
    ) -> Result<(), EngineError> {
        let PendingWeightGrads { pass, op_weight_inputs, .. } = pending;
        tch::no_grad(|| {
            op_weight_inputs
                .into_iter()
                .try_for_each(|inputs| self.op_weight_pass(inputs, &pass, target))
        })
    }

    /// Adds the gradients of one op's parameters.
    pub(super) fn op_weight_pass(
        &self,
        inputs: OpWeightInputs,
        pass: &Pass,
        target: &mut GradientTarget<'_>,
    ) -> Result<(), EngineError> {
        let OpWeightInputs { layer, node, tensors } = inputs;
        let node = &self.stage.layers[layer].nodes[node];
        let call = LayerCall { place: layer, pass, purpose: PassPurpose::Backward };
        let ctx = self.op_context(call, node);
        let mut gradients = OpGradients::new(&node.bindings, target.layer_gradients(layer)?);
        let done = node.op.backward_weight(&ctx, tensors, &mut gradients);
        done.map_err(in_layer(&self.stage.config.layers[layer], LayerPhase::Backward))
    }
}
