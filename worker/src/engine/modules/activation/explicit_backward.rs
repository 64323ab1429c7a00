//! Activation functions. If the gradient follows from the output, the output is saved: the next
//! layer saves it anyway.

use crate::engine::layers::op::{BackwardOutput, ForwardOutput, Op, SavePolicy, SavedForBackward};
use crate::engine::layers::op_context::OpContext;
use crate::engine::modules::helpers::{in_place_or_fresh, single_grad, single_input};
use layerspec::layers::{Approximate, Identity, ReLU, Scale, SiLU, Sigmoid, Tanh, GELU};
use tch::Tensor;
use tensor::{memory, TensorError};

/// A function that works in place if it can, and whose gradient depends on its output. A rounded
/// output gives another gradient, unless it is that of ReLU.
macro_rules! by_output {
    (
        $Name:ident, $in_place:ident, $fresh:ident, $backward:expr, $backward_in_place:expr,
        is_elementwise: $elementwise:expr
    ) => {
        impl Op for $Name {
            fn forward(
                &self,
                ctx: &OpContext<'_>,
                inputs: Vec<Tensor>,
            ) -> Result<ForwardOutput, TensorError> {
                let output =
                    in_place_or_fresh(single_input(inputs)?, |x| x.$in_place(), |x| x.$fresh())?;
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
                Ok(BackwardOutput::single_input_grad(elementwise_backward(
                    single_grad(grads)?,
                    &output,
                    $backward,
                    $backward_in_place,
                )?))
            }

            fn is_cheap(&self) -> bool {
                true
            }

            fn is_elementwise(&self) -> bool {
                $elementwise
            }
        }
    };
}

by_output!(ReLU, f_relu_, f_relu, |grad, y| y.f_threshold_backward(grad, 0), |out, grad, y| y
    .f_threshold_backward_grad_input(out, grad, 0), is_elementwise: true);
by_output!(
    Sigmoid,
    f_sigmoid_,
    f_sigmoid,
    Tensor::f_sigmoid_backward,
    Tensor::f_sigmoid_backward_grad_input,
    is_elementwise: false
);
by_output!(
    Tanh,
    f_tanh_,
    f_tanh,
    Tensor::f_tanh_backward,
    Tensor::f_tanh_backward_grad_input,
    is_elementwise: false
);

/// The gradient of an element-wise function, in the memory of `grad` if that is free.
fn elementwise_backward(
    grad: Tensor,
    saved: &Tensor,
    fresh: impl FnOnce(&Tensor, &Tensor) -> Result<Tensor, tch::TchError>,
    in_place: impl FnOnce(&Tensor, &Tensor, &Tensor) -> Result<Tensor, tch::TchError>,
) -> Result<Tensor, TensorError> {
    if memory::is_uniquely_owned(&grad) {
        let _same = in_place(&grad, &grad, saved)?;
        return Ok(grad);
    }
    Ok(fresh(&grad, saved)?)
}

impl Op for GELU {
    fn forward(
        &self,
        ctx: &OpContext<'_>,
        inputs: Vec<Tensor>,
    ) -> Result<ForwardOutput, TensorError> {
        let input = single_input(inputs)?;
        if ctx.saves_for_backward() {
            return Ok(ForwardOutput::with_tensors(input.f_gelu(self.name())?, vec![input]));
        }
        Ok(ForwardOutput::with_tensors(
            in_place_or_fresh(input, |x| x.f_gelu_(self.name()), |x| x.f_gelu(self.name()))?,
            Vec::new(),
        ))
    }

    fn backward(
        &self,
        _: &OpContext<'_>,
        saved: SavedForBackward,
        grads: Vec<Option<Tensor>>,
    ) -> Result<BackwardOutput, TensorError> {
        let [input] = saved.tensors()?;
        let fresh = |grad: &Tensor, x: &Tensor| x.f_gelu_backward(grad, self.name());
        let in_place = |out: &Tensor, grad: &Tensor, x: &Tensor| {
            x.f_gelu_backward_grad_input(out, grad, self.name())
        };
        Ok(BackwardOutput::single_input_grad(elementwise_backward(
            single_grad(grads)?,
            &input,
            fresh,
            in_place,
        )?))
    }

    fn is_cheap(&self) -> bool {
        true
    }

    fn is_elementwise(&self) -> bool {
        true
    }
}

trait Named {
    fn name(&self) -> &'static str;
}

impl Named for GELU {
    fn name(&self) -> &'static str {
        match self.approximate {
            Approximate::None => "none",
            Approximate::Tanh => "tanh",
        }
    }
}

impl Op for SiLU {
    fn forward(
        &self,
        ctx: &OpContext<'_>,
        inputs: Vec<Tensor>,
    ) -> Result<ForwardOutput, TensorError> {
        let input = single_input(inputs)?;
        let output = input.f_silu()?;
        Ok(ForwardOutput::with_tensors(
            output,
            if ctx.saves_for_backward() { vec![input] } else { Vec::new() },
        ))
    }

    fn backward(
        &self,
        _: &OpContext<'_>,
        saved: SavedForBackward,
        grads: Vec<Option<Tensor>>,
    ) -> Result<BackwardOutput, TensorError> {
        let [input] = saved.tensors()?;
        let fresh = |grad: &Tensor, x: &Tensor| x.f_silu_backward(grad);
        let in_place =
            |out: &Tensor, grad: &Tensor, x: &Tensor| x.f_silu_backward_grad_input(out, grad);
        Ok(BackwardOutput::single_input_grad(elementwise_backward(
            single_grad(grads)?,
            &input,
            fresh,
            in_place,
        )?))
    }

    fn is_cheap(&self) -> bool {
        true
    }

    fn is_elementwise(&self) -> bool {
        true
    }
}

impl Op for Identity {
    fn forward(
        &self,
        _: &OpContext<'_>,
        inputs: Vec<Tensor>,
    ) -> Result<ForwardOutput, TensorError> {
        Ok(ForwardOutput::with_tensors(single_input(inputs)?, Vec::new()))
    }

    fn backward(
        &self,
        _: &OpContext<'_>,
        _: SavedForBackward,
        grads: Vec<Option<Tensor>>,
    ) -> Result<BackwardOutput, TensorError> {
        Ok(BackwardOutput::single_input_grad(single_grad(grads)?))
    }

    fn save_policy(&self) -> SavePolicy {
        SavePolicy::Nothing
    }
}

impl Op for Scale {
    fn forward(
        &self,
        _: &OpContext<'_>,
        inputs: Vec<Tensor>,
    ) -> Result<ForwardOutput, TensorError> {
        let times = self.factor;
        Ok(ForwardOutput::with_tensors(
            in_place_or_fresh(
                single_input(inputs)?,
                |x| x.f_mul_scalar_(times),
                |x| x.f_mul_scalar(times),
            )?,
            Vec::new(),
        ))
    }

    fn backward(
        &self,
        _: &OpContext<'_>,
        _: SavedForBackward,
        grads: Vec<Option<Tensor>>,
    ) -> Result<BackwardOutput, TensorError> {
        let times = self.factor;
        Ok(BackwardOutput::single_input_grad(in_place_or_fresh(
            single_grad(grads)?,
            |g| g.f_mul_scalar_(times),
            |g| g.f_mul_scalar(times),
        )?))
    }

    fn save_policy(&self) -> SavePolicy {
        SavePolicy::Nothing
    }

    fn is_cheap(&self) -> bool {
        true
    }
}
