use crate::engine::layers::op::{BackwardOutput, ForwardOutput, Op, SavedForBackward};
use crate::engine::layers::op_context::OpContext;
use crate::engine::layers::op_gradients::OpGradients;
use crate::engine::modules::helpers::{single_grad, single_input};
use crate::engine::sizes::sizes;
use layerspec::layers::LayerNorm;
use tch::Tensor;
use tensor::kernels::{self, GradMask};
use tensor::TensorError;

impl Op for LayerNorm {
    fn forward(
        &self,
        ctx: &OpContext<'_>,
        inputs: Vec<Tensor>,
    ) -> Result<ForwardOutput, TensorError> {
        let input = single_input(inputs)?;
        let (shape, weight, bias) = (
            sizes(&self.normalized_shape)?,
            ctx.optional_param("weight"),
            ctx.optional_param("bias"),
        );
        let (output, mean, rstd) = input.f_native_layer_norm(shape, weight, bias, self.eps)?;
        Ok(ForwardOutput::with_tensors(
            output,
            if ctx.saves_for_backward() { vec![input, mean, rstd] } else { Vec::new() },
        ))
    }

    /// Both halves read the whole input and gradient, and the parameters are small. So one pass
    /// computes both, and only the parameters' gradients are kept between the halves.
    fn backward(
        &self,
        ctx: &OpContext<'_>,
        saved: SavedForBackward,
        grads: Vec<Option<Tensor>>,
    ) -> Result<BackwardOutput, TensorError> {
        let [input, mean, rstd] = saved.tensors()?;
        let (shape, weight, bias) = (
            sizes(&self.normalized_shape)?,
            ctx.optional_param("weight"),
            ctx.optional_param("bias"),
        );
        let (input, mean, rstd, shape) = (&input, &mean, &rstd, &shape[..]);
        let norm = kernels::LayerNorm { input, shape, mean, rstd, weight, bias };
        let trained = |role| ctx.trained().any(|(other, _)| other == role);
        let wanted = GradMask {
            input: ctx.needs_input_grad(0),
            weight: trained("weight"),
            bias: trained("bias"),
        };
        let found = norm.backward(&single_grad(grads)?, wanted)?;
        Ok(BackwardOutput {
            inputs: vec![found.input],
            weight_inputs: found.weight.into_iter().chain(found.bias).collect(),
        })
    }

    fn backward_weight(
        &self,
        ctx: &OpContext<'_>,
        weight_inputs: Vec<Tensor>,
        grads: &mut OpGradients<'_>,
    ) -> Result<(), TensorError> {
        for ((role, _), grad) in ctx.trained().zip(weight_inputs) {
            if let Some(sum) = grads.buffer(role) {
                sum.add(grad)?;
            }
        }
        Ok(())
    }

    fn is_cheap(&self) -> bool {
        true
    }
}
