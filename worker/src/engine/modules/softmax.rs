use super::{of_one, one, Back, Call, Kept, Op, Run};
use layerspec::layers::{LogSoftmax, Softmax};
use tch::Tensor;
use tensor::TensorError;

/// A softmax, whose gradient depends on its output.
macro_rules! softmax {
    ($($Name:ident: $forward:ident, $backward:ident);*) => {$(
        impl Op for $Name {
            fn forward(&self, call: &Call<'_>, inputs: Vec<Tensor>) -> Result<Run, TensorError> {
                let output = one(inputs)?.$forward(self.dim, None)?;
                let kept = if call.keeps() { vec![output.shallow_clone()] } else { Vec::new() };
                Ok(Run::keeping(output, kept))
            }

            fn backward(&self, _: &Call<'_>, kept: Kept, grads: Vec<Option<Tensor>>) -> Result<Back, TensorError> {
                let [output] = kept.tensors()?;
                Ok(Back::to(Tensor::$backward(&of_one(grads)?, &output, self.dim, output.f_kind()?)?))
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
