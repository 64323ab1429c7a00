//! Ops whose backward pass is libtorch's autograd. Each has a graph of its own, from its outputs to
//! its leaves.

use crate::engine::error::layer_error;
use crate::engine::layers::op::{BackwardOutput, ForwardOutput, Op, SavedForBackward};
use crate::engine::layers::op_context::OpContext;
use crate::engine::layers::op_gradients::OpGradients;
use std::fmt;
use tch::Tensor;
use tensor::{dtype_of, grad, Attempt, TensorError};

/// An op whose functions autograd knows.
pub(crate) trait Differentiable: fmt::Debug + Send {
    /// The outputs. Inputs are never written to.
    fn compute(&self, ctx: &OpContext<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError>;

    /// Whether recomputing it is cheap compared with storing its output.
    fn is_cheap(&self) -> bool {
        false
    }

    /// Whether libtorch gives other bits when it records a graph.
    fn depends_on_graph(&self) -> bool {
        false
    }

    /// As [`Op::runs_in_autocast`].
    fn runs_in_autocast(&self) -> bool {
        false
    }
}

/// Computes both halves of the backward pass at once, because autograd would keep its whole graph
/// between them. The first half leaves the parameters' gradients themselves for the second.
#[derive(Debug)]
pub(crate) struct AutogradOp<T>(pub(crate) T);

impl<T: Differentiable> Op for AutogradOp<T> {
    fn forward(
        &self,
        ctx: &OpContext<'_>,
        inputs: Vec<Tensor>,
    ) -> Result<ForwardOutput, TensorError> {
        // A recomputed forward pass must have the same bits as this one.
        let as_if_kept = self.0.depends_on_graph() && ctx.has_backward();
        if !ctx.saves_for_backward() && !as_if_kept {
            return Ok(ForwardOutput {
                outputs: self.0.compute(ctx, &inputs)?,
                saved: SavedForBackward::default(),
            });
        }
        // Truth values and whole numbers have no gradient, even those of something trained.
        let leaf = |tensor: &Tensor, wanted: bool| {
            let wanted = wanted && dtype_of(tensor)?.is_floating();
            tensor.f_detach()?.f_set_requires_grad(wanted).attempt("asking for a gradient")
        };
        let inputs =
            inputs.iter().enumerate().map(|(port, input)| leaf(input, ctx.needs_input_grad(port)));
        let inputs: Vec<Tensor> = inputs.collect::<Result<_, _>>()?;
        let params = ctx.trained().map(|(role, tensor)| Ok((role, leaf(tensor, true)?)));
        let params: Vec<(&'static str, Tensor)> = params.collect::<Result<_, TensorError>>()?;
        let made =
            tch::with_grad(|| self.0.compute(&ctx.with_substitute_params(&params), &inputs))?;
        let outputs = made.iter().map(Tensor::f_detach).collect::<Result<_, _>>()?;
        if !ctx.saves_for_backward() {
            return Ok(ForwardOutput { outputs, saved: SavedForBackward::default() });
        }
        let tensors = inputs
            .into_iter()
            .chain(params.into_iter().map(|(_, leaf)| leaf))
            .chain(made)
            .collect();
        Ok(ForwardOutput { outputs, saved: SavedForBackward { tensors, sizes: Vec::new() } })
    }

    fn backward(
        &self,
        ctx: &OpContext<'_>,
        saved: SavedForBackward,
        grads: Vec<Option<Tensor>>,
    ) -> Result<BackwardOutput, TensorError> {
        let (inputs, params) = (ctx.input_count(), ctx.trained().count());
        let Some((leaves, made)) = saved.tensors.split_at_checked(inputs + params) else {
            return Err(layer_error("its forward pass kept no graph"));
        };
        let reached =
            made.iter().zip(&grads).filter_map(|(output, grad)| Some((output, grad.as_ref()?)));
        let (outputs, output_grads): (Vec<_>, Vec<_>) =
            reached.filter(|(output, _)| output.requires_grad()).unzip();
        let wanted: Vec<&Tensor> = leaves.iter().filter(|leaf| leaf.requires_grad()).collect();
        let mut found = grad::backward(&outputs, &output_grads, &wanted)?.into_iter();
        let mut of =
            |leaf: &Tensor| if leaf.requires_grad() { found.next().flatten() } else { None };
        let inputs = leaves[..inputs].iter().map(&mut of).collect();
        let weight_inputs =
            leaves[ctx.input_count()..].iter().map(|leaf| of(leaf).unwrap_or_default()).collect();
        Ok(BackwardOutput { inputs, weight_inputs })
    }

    fn backward_weight(
        &self,
        ctx: &OpContext<'_>,
        weight_inputs: Vec<Tensor>,
        grads: &mut OpGradients<'_>,
    ) -> Result<(), TensorError> {
        for ((role, _), grad) in ctx.trained().zip(weight_inputs) {
            if let Some(sum) = grads.buffer(role).filter(|_| grad.defined()) {
                sum.add(grad)?;
            }
        }
        Ok(())
    }

    fn is_cheap(&self) -> bool {
        self.0.is_cheap()
    }

    fn runs_in_autocast(&self) -> bool {
        self.0.runs_in_autocast()
    }
}
