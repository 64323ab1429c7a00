//! Ops whose products are computed in a 16-bit type, as under PyTorch's `torch.autocast`.
//!
//! Inputs and parameters are rounded on their way in, and what comes out is float32 again, so that nothing outside the op
//! ever is of another type: neither what passes between layers and machines, nor the parameters and their gradients' sums.

use super::{Back, Call, Gradients, Keeps, Kept, Op, Run};
use tch::{Kind, Tensor};
use tensor::TensorError;

/// An op that computes in `kind`.
#[derive(Debug)]
pub(super) struct Reduced {
    pub(super) op: Box<dyn Op>,
    pub(super) kind: Kind,
}

impl Reduced {
    /// Only float32 is rounded: masks and numbers of rows stay what they are.
    fn rounded(&self, tensor: Tensor) -> Result<Tensor, TensorError> {
        Ok(if tensor.f_kind()? == Kind::Float { tensor.f_to_kind(self.kind)? } else { tensor })
    }

    fn full(&self, tensor: Tensor) -> Result<Tensor, TensorError> {
        Ok(if tensor.f_kind()? == self.kind { tensor.f_to_kind(Kind::Float)? } else { tensor })
    }

    fn all_rounded(&self, tensors: Vec<Tensor>) -> Result<Vec<Tensor>, TensorError> {
        tensors.into_iter().map(|tensor| self.rounded(tensor)).collect()
    }

    /// The op's parameters, rounded.
    fn params(&self, call: &Call<'_>) -> Result<Vec<(&'static str, Tensor)>, TensorError> {
        call.all_params().map(|(role, tensor)| Ok((role, self.rounded(tensor.shallow_clone())?))).collect()
    }
}

impl Op for Reduced {
    fn forward(&self, call: &Call<'_>, inputs: Vec<Tensor>) -> Result<Run, TensorError> {
        let (params, inputs) = (self.params(call)?, self.all_rounded(inputs)?);
        let Run { outputs, kept } = self.op.forward(&call.with_leaves(&params), inputs)?;
        let outputs = outputs.into_iter().map(|output| self.full(output)).collect::<Result<_, _>>()?;
        Ok(Run { outputs, kept })
    }

    fn backward(&self, call: &Call<'_>, kept: Kept, grads: Vec<Option<Tensor>>) -> Result<Back, TensorError> {
        let params = self.params(call)?;
        let grads = grads.into_iter().map(|grad| grad.map(|grad| self.rounded(grad)).transpose());
        let grads = grads.collect::<Result<_, _>>()?;
        let Back { inputs, rest } = self.op.backward(&call.with_leaves(&params), kept, grads)?;
        let inputs = inputs.into_iter().map(|grad| grad.map(|grad| self.full(grad)).transpose());
        Ok(Back { inputs: inputs.collect::<Result<_, _>>()?, rest })
    }

    /// A microbatch's gradient is computed in the 16-bit type and added to the sum in float32.
    fn backward_weight(
        &self,
        call: &Call<'_>,
        rest: Vec<Tensor>,
        grads: &mut Gradients<'_>,
    ) -> Result<(), TensorError> {
        let params = self.params(call)?;
        let call = call.with_leaves(&params);
        grads.add_apart(|apart| self.op.backward_weight(&call, rest, apart), |grad| self.full(grad))
    }

    fn keeps(&self) -> Keeps {
        self.op.keeps()
    }

    fn keep(&self, call: &Call<'_>, inputs: &[Tensor]) -> Result<Kept, TensorError> {
        let inputs = self.all_rounded(inputs.iter().map(Tensor::shallow_clone).collect())?;
        let params = self.params(call)?;
        self.op.keep(&call.with_leaves(&params), &inputs)
    }

    fn is_cheap(&self) -> bool {
        self.op.is_cheap()
    }
}
