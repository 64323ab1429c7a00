//! Activation functions. Where the gradient can be told from the output, that is kept, for the next layer keeps it too.

use super::{of_one, one, update, Back, Call, Keeps, Kept, Op, Run};
use layerspec::layers::{Approximate, Identity, ReLU, Scale, SiLU, Sigmoid, Tanh, GELU};
use tch::Tensor;
use tensor::{memory, TensorError};

/// A function that works in place where it can, and whose gradient depends on its output.
macro_rules! by_output {
    ($Name:ident, $in_place:ident, $fresh:ident, $backward:expr, $backward_in_place:expr) => {
        impl Op for $Name {
            fn forward(&self, call: &Call<'_>, inputs: Vec<Tensor>) -> Result<Run, TensorError> {
                let output = update(one(inputs)?, |x| x.$in_place(), |x| x.$fresh())?;
                let kept = if call.keeps() { vec![output.shallow_clone()] } else { Vec::new() };
                Ok(Run::keeping(output, kept))
            }

            fn backward(&self, _: &Call<'_>, kept: Kept, grads: Vec<Option<Tensor>>) -> Result<Back, TensorError> {
                let [output] = kept.tensors()?;
                Ok(Back::to(elementwise(of_one(grads)?, &output, $backward, $backward_in_place)?))
            }

            fn is_cheap(&self) -> bool {
                true
            }
        }
    };
}

by_output!(ReLU, f_relu_, f_relu, |grad, y| y.f_threshold_backward(grad, 0), |out, grad, y| y
    .f_threshold_backward_grad_input(out, grad, 0));
by_output!(Sigmoid, f_sigmoid_, f_sigmoid, Tensor::f_sigmoid_backward, Tensor::f_sigmoid_backward_grad_input);
by_output!(Tanh, f_tanh_, f_tanh, Tensor::f_tanh_backward, Tensor::f_tanh_backward_grad_input);

/// The gradient of an element-wise function, in the memory of `grad` where that is free.
fn elementwise(
    grad: Tensor,
    kept: &Tensor,
    fresh: impl FnOnce(&Tensor, &Tensor) -> Result<Tensor, tch::TchError>,
    in_place: impl FnOnce(&Tensor, &Tensor, &Tensor) -> Result<Tensor, tch::TchError>,
) -> Result<Tensor, TensorError> {
    if memory::is_alone(&grad) {
        let _same = in_place(&grad, &grad, kept)?;
        return Ok(grad);
    }
    Ok(fresh(&grad, kept)?)
}

impl Op for GELU {
    fn forward(&self, call: &Call<'_>, inputs: Vec<Tensor>) -> Result<Run, TensorError> {
        let input = one(inputs)?;
        if call.keeps() {
            return Ok(Run::keeping(input.f_gelu(self.name())?, vec![input]));
        }
        Ok(Run::keeping(update(input, |x| x.f_gelu_(self.name()), |x| x.f_gelu(self.name()))?, Vec::new()))
    }

    fn backward(&self, _: &Call<'_>, kept: Kept, grads: Vec<Option<Tensor>>) -> Result<Back, TensorError> {
        let [input] = kept.tensors()?;
        let fresh = |grad: &Tensor, x: &Tensor| x.f_gelu_backward(grad, self.name());
        let in_place = |out: &Tensor, grad: &Tensor, x: &Tensor| x.f_gelu_backward_grad_input(out, grad, self.name());
        Ok(Back::to(elementwise(of_one(grads)?, &input, fresh, in_place)?))
    }

    fn is_cheap(&self) -> bool {
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
    fn forward(&self, call: &Call<'_>, inputs: Vec<Tensor>) -> Result<Run, TensorError> {
        let input = one(inputs)?;
        let output = input.f_silu()?;
        Ok(Run::keeping(output, if call.keeps() { vec![input] } else { Vec::new() }))
    }

    fn backward(&self, _: &Call<'_>, kept: Kept, grads: Vec<Option<Tensor>>) -> Result<Back, TensorError> {
        let [input] = kept.tensors()?;
        let fresh = |grad: &Tensor, x: &Tensor| x.f_silu_backward(grad);
        let in_place = |out: &Tensor, grad: &Tensor, x: &Tensor| x.f_silu_backward_grad_input(out, grad);
        Ok(Back::to(elementwise(of_one(grads)?, &input, fresh, in_place)?))
    }

    fn is_cheap(&self) -> bool {
        true
    }
}

impl Op for Identity {
    fn forward(&self, _: &Call<'_>, inputs: Vec<Tensor>) -> Result<Run, TensorError> {
        Ok(Run::keeping(one(inputs)?, Vec::new()))
    }

    fn backward(&self, _: &Call<'_>, _: Kept, grads: Vec<Option<Tensor>>) -> Result<Back, TensorError> {
        Ok(Back::to(of_one(grads)?))
    }

    fn keeps(&self) -> Keeps {
        Keeps::Nothing
    }
}

impl Op for Scale {
    fn forward(&self, _: &Call<'_>, inputs: Vec<Tensor>) -> Result<Run, TensorError> {
        let times = self.factor;
        Ok(Run::keeping(update(one(inputs)?, |x| x.f_mul_scalar_(times), |x| x.f_mul_scalar(times))?, Vec::new()))
    }

    fn backward(&self, _: &Call<'_>, _: Kept, grads: Vec<Option<Tensor>>) -> Result<Back, TensorError> {
        let times = self.factor;
        Ok(Back::to(update(of_one(grads)?, |g| g.f_mul_scalar_(times), |g| g.f_mul_scalar(times))?))
    }

    fn keeps(&self) -> Keeps {
        Keeps::Nothing
    }

    fn is_cheap(&self) -> bool {
        true
    }
}
