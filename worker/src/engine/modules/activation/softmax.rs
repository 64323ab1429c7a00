use crate::engine::layers::op::{BackwardOutput, ForwardOutput, Op, SavedForBackward};
use crate::engine::layers::op_context::OpContext;
use crate::engine::modules::helpers::{single_grad, single_input};
use layerspec::layers::{LogSoftmax, Softmax};
use tch::Tensor;
use tensor::TensorError;

/// A softmax, whose gradient depends on its output.
macro_rules! softmax {
    ($($Name:ident: $forward:ident, $backward:ident);*) => {$(
        impl Op for $Name {
            fn forward(
                &self,
                ctx: &OpContext<'_>,
                inputs: Vec<Tensor>,
            ) -> Result<ForwardOutput, TensorError> {
                let output = single_input(inputs)?.$forward(self.dim, None)?;
                let saved = if ctx.saves_for_backward() {
                    vec![output.shallow_clone()]
                } else {
                    Vec::new()
                };
                Ok(ForwardOutput::with_tensors(output, saved))
            }

            fn backward(
                &self,
                _: &OpContext<'_>,
                saved: SavedForBackward,
                grads: Vec<Option<Tensor>>,
            ) -> Result<BackwardOutput, TensorError> {
                let [output] = saved.tensors()?;
                Ok(BackwardOutput::single_input_grad(Tensor::$backward(
                    &single_grad(grads)?,
                    &output,
                    self.dim,
                    output.f_kind()?,
                )?))
            }

            fn is_cheap(&self) -> bool {
                true
            }
        }
    )*};
}

softmax! {
    Softmax: f_softmax, f_internal_softmax_backward_data;
    LogSoftmax: f_log_softmax, f_internal_log_softmax_backward_data
}
