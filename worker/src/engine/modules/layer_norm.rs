use super::{of_one, one, sizes, Back, Call, Gradients, Kept, Op, Run};
use layerspec::layers::LayerNorm;
use tch::Tensor;
use tensor::kernels::{self, Wanted};
use tensor::TensorError;

impl Op for LayerNorm {
    fn forward(&self, call: &Call<'_>, inputs: Vec<Tensor>) -> Result<Run, TensorError> {
        let input = one(inputs)?;
        let (shape, weight, bias) = (sizes(&self.normalized_shape)?, call.optional("weight"), call.optional("bias"));
        let (output, mean, rstd) = input.f_native_layer_norm(shape, weight, bias, self.eps)?;
        Ok(Run::keeping(output, if call.keeps() { vec![input, mean, rstd] } else { Vec::new() }))
    }

    /// Both halves read all of input and gradient, and the parameters are small: all is done in one pass, and between
    /// the halves only the parameters' gradients are kept.
    fn backward(&self, call: &Call<'_>, kept: Kept, grads: Vec<Option<Tensor>>) -> Result<Back, TensorError> {
        let [input, mean, rstd] = kept.tensors()?;
        let (shape, weight, bias) = (sizes(&self.normalized_shape)?, call.optional("weight"), call.optional("bias"));
        let (input, mean, rstd, shape) = (&input, &mean, &rstd, &shape[..]);
        let norm = kernels::LayerNorm { input, shape, mean, rstd, weight, bias };
        let trained = |role| call.trained().any(|(other, _)| other == role);
        let wanted = Wanted { input: call.wants(0), weight: trained("weight"), bias: trained("bias") };
        let found = norm.backward(&of_one(grads)?, wanted)?;
        Ok(Back { inputs: vec![found.input], rest: found.weight.into_iter().chain(found.bias).collect() })
    }

    fn backward_weight(
        &self,
        call: &Call<'_>,
        rest: Vec<Tensor>,
        grads: &mut Gradients<'_>,
    ) -> Result<(), TensorError> {
        for ((role, _), grad) in call.trained().zip(rest) {
            if let Some(sum) = grads.of(role) {
                sum.add(grad)?;
            }
        }
        Ok(())
    }

    fn is_cheap(&self) -> bool {
        true
    }
}
