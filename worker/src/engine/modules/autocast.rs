//! Ops whose products are computed in a 16-bit type, as under PyTorch's `torch.autocast`.
//!
//! Inputs and parameters are rounded, and outputs are float32 again. So nothing outside the op has
//! another type: neither values between layers and machines, nor parameters and the sums of their
//! gradients.

use crate::engine::layers::lowered_layer::{LoweredLayer, LoweredOp};
use crate::engine::layers::op::{BackwardOutput, ForwardOutput, Op, SavePolicy, SavedForBackward};
use crate::engine::layers::op_context::OpContext;
use crate::engine::layers::op_gradients::OpGradients;
use crate::engine::params::stage_params::Param;
use layerspec::Precision;
use tch::{Kind, Tensor};
use tensor::TensorError;

/// Makes the products of a layer compute in this type.
pub(crate) fn in_precision(layer: LoweredLayer, precision: Precision) -> LoweredLayer {
    let kind = match precision {
        Precision::F32 => return layer,
        Precision::Bf16 => Kind::BFloat16,
        Precision::Fp16 => Kind::Half,
    };
    let autocast = |op: Box<dyn Op>| -> Box<dyn Op> {
        if op.runs_in_autocast() {
            Box::new(AutocastOp { op, kind })
        } else {
            op
        }
    };
    let nodes = layer.nodes.into_iter().map(|node| LoweredOp { op: autocast(node.op), ..node });
    LoweredLayer { nodes: nodes.collect(), outputs: layer.outputs }
}

/// An op that computes in `kind`.
#[derive(Debug)]
struct AutocastOp {
    op: Box<dyn Op>,
    kind: Kind,
}

impl AutocastOp {
    /// Only float32 is rounded. Masks and indices do not change.
    fn cast_down(&self, tensor: Tensor) -> Result<Tensor, TensorError> {
        Ok(if tensor.f_kind()? == Kind::Float { tensor.f_to_kind(self.kind)? } else { tensor })
    }

    fn cast_up(&self, tensor: Tensor) -> Result<Tensor, TensorError> {
        Ok(if tensor.f_kind()? == self.kind { tensor.f_to_kind(Kind::Float)? } else { tensor })
    }

    fn cast_all_down(&self, tensors: Vec<Tensor>) -> Result<Vec<Tensor>, TensorError> {
        tensors.into_iter().map(|tensor| self.cast_down(tensor)).collect()
    }

    /// The op's parameters, rounded once for all microbatches.
    fn params(&self, ctx: &OpContext<'_>) -> Result<Vec<(&'static str, Tensor)>, TensorError> {
        ctx.all_params().map(|(role, param)| Ok((role, self.rounded(param)?))).collect()
    }

    fn rounded(&self, param: &Param) -> Result<Tensor, TensorError> {
        if let Some(kept) = param.rounded.get() {
            // Another layer that shares it may compute in another type.
            if kept.f_kind()? == self.kind {
                return Ok(kept.shallow_clone());
            }
        }
        let rounded = self.cast_down(param.tensor.shallow_clone())?;
        if rounded.f_kind()? == self.kind {
            let _taken = param.rounded.set(rounded.shallow_clone());
        }
        Ok(rounded)
    }
}

impl Op for AutocastOp {
    fn forward(
        &self,
        ctx: &OpContext<'_>,
        inputs: Vec<Tensor>,
    ) -> Result<ForwardOutput, TensorError> {
        let (params, inputs) = (self.params(ctx)?, self.cast_all_down(inputs)?);
        let ForwardOutput { outputs, saved } =
            self.op.forward(&ctx.with_substitute_params(&params), inputs)?;
        let outputs =
            outputs.into_iter().map(|output| self.cast_up(output)).collect::<Result<_, _>>()?;
        Ok(ForwardOutput { outputs, saved })
    }

    fn backward(
        &self,
        ctx: &OpContext<'_>,
        saved: SavedForBackward,
        grads: Vec<Option<Tensor>>,
    ) -> Result<BackwardOutput, TensorError> {
        let params = self.params(ctx)?;
        let grads = grads.into_iter().map(|grad| grad.map(|grad| self.cast_down(grad)).transpose());
        let grads = grads.collect::<Result<_, _>>()?;
        let BackwardOutput { inputs, weight_inputs } =
            self.op.backward(&ctx.with_substitute_params(&params), saved, grads)?;
        let inputs = inputs.into_iter().map(|grad| grad.map(|grad| self.cast_up(grad)).transpose());
        Ok(BackwardOutput { inputs: inputs.collect::<Result<_, _>>()?, weight_inputs })
    }

    /// A microbatch's gradient is computed in the 16-bit type and added to the sum in float32.
    fn backward_weight(
        &self,
        ctx: &OpContext<'_>,
        weight_inputs: Vec<Tensor>,
        grads: &mut OpGradients<'_>,
    ) -> Result<(), TensorError> {
        let params = self.params(ctx)?;
        let ctx = ctx.with_substitute_params(&params);
        grads.add_rounded(|apart| self.op.backward_weight(&ctx, weight_inputs, apart))
    }

    fn save_policy(&self) -> SavePolicy {
        self.op.save_policy()
    }

    fn save_inputs(
        &self,
        ctx: &OpContext<'_>,
        inputs: &[Tensor],
    ) -> Result<SavedForBackward, TensorError> {
        let inputs = self.cast_all_down(inputs.iter().map(Tensor::shallow_clone).collect())?;
        let params = self.params(ctx)?;
        self.op.save_inputs(&ctx.with_substitute_params(&params), &inputs)
    }

    fn is_cheap(&self) -> bool {
        self.op.is_cheap()
    }
}
