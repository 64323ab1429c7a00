//! Ops that go back by libtorch's autograd: one piece of graph each, from the outputs to the op's own leaves.

use super::{missing, Back, Gradients, Kept, Op, Run};
use crate::engine::call::Call;
use std::fmt;
use tch::Tensor;
use tensor::{grad, Attempt, TensorError};

/// What is computed by functions that autograd knows.
pub(super) trait Differentiable: fmt::Debug + Send {
    /// The outputs. Inputs are never written to.
    fn compute(&self, call: &Call<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError>;

    /// Whether computing it a second time takes little beside the memory of its output.
    fn is_cheap(&self) -> bool {
        false
    }

    /// Whether libtorch gives other bits where it records a graph.
    fn depends_on_graph(&self) -> bool {
        false
    }

    /// As [`Op::reduces`].
    fn reduces(&self) -> bool {
        false
    }
}

/// Both halves of the backward pass are done at once, for autograd would keep all of its graph between them; what the
/// first one leaves for the second is the parameters' gradients themselves.
#[derive(Debug)]
pub(super) struct ByAutograd<T>(pub(super) T);

impl<T: Differentiable> Op for ByAutograd<T> {
    fn forward(&self, call: &Call<'_>, inputs: Vec<Tensor>) -> Result<Run, TensorError> {
        // What is computed again before backward must have the same bits then as now.
        let as_if_kept = self.0.depends_on_graph() && call.goes_back();
        if !call.keeps() && !as_if_kept {
            return Ok(Run { outputs: self.0.compute(call, &inputs)?, kept: Kept::default() });
        }
        let leaf =
            |tensor: &Tensor, wanted| tensor.f_detach()?.f_set_requires_grad(wanted).attempt("asking for a gradient");
        let inputs = inputs.iter().enumerate().map(|(port, input)| leaf(input, call.wants(port)));
        let inputs: Vec<Tensor> = inputs.collect::<Result<_, _>>()?;
        let params = call.trained().map(|(role, tensor)| Ok((role, leaf(tensor, true)?)));
        let params: Vec<(&'static str, Tensor)> = params.collect::<Result<_, TensorError>>()?;
        let made = tch::with_grad(|| self.0.compute(&call.with_leaves(&params), &inputs))?;
        let outputs = made.iter().map(Tensor::f_detach).collect::<Result<_, _>>()?;
        if !call.keeps() {
            return Ok(Run { outputs, kept: Kept::default() });
        }
        let tensors = inputs.into_iter().chain(params.into_iter().map(|(_, leaf)| leaf)).chain(made).collect();
        Ok(Run { outputs, kept: Kept { tensors, sizes: Vec::new() } })
    }

    fn backward(&self, call: &Call<'_>, kept: Kept, grads: Vec<Option<Tensor>>) -> Result<Back, TensorError> {
        let (inputs, params) = (call.ports(), call.trained().count());
        let Some((leaves, made)) = kept.tensors.split_at_checked(inputs + params) else {
            return Err(missing("its forward pass kept no graph"));
        };
        let reached = made.iter().zip(&grads).filter_map(|(output, grad)| Some((output, grad.as_ref()?)));
        let (outputs, output_grads): (Vec<_>, Vec<_>) = reached.filter(|(output, _)| output.requires_grad()).unzip();
        let wanted: Vec<&Tensor> = leaves.iter().filter(|leaf| leaf.requires_grad()).collect();
        let mut found = grad::backward(&outputs, &output_grads, &wanted)?.into_iter();
        let mut of = |leaf: &Tensor| if leaf.requires_grad() { found.next().flatten() } else { None };
        let inputs = leaves[..inputs].iter().map(&mut of).collect();
        let rest = leaves[call.ports()..].iter().map(|leaf| of(leaf).unwrap_or_default()).collect();
        Ok(Back { inputs, rest })
    }

    fn backward_weight(
        &self,
        call: &Call<'_>,
        rest: Vec<Tensor>,
        grads: &mut Gradients<'_>,
    ) -> Result<(), TensorError> {
        for ((role, _), grad) in call.trained().zip(rest) {
            if let Some(sum) = grads.of(role).filter(|_| grad.defined()) {
                sum.add(grad)?;
            }
        }
        Ok(())
    }

    fn is_cheap(&self) -> bool {
        self.0.is_cheap()
    }

    fn reduces(&self) -> bool {
        self.0.reduces()
    }
}
