//! The contract of an op: forward, and backward in two halves.

use crate::engine::error::layer_error;
use crate::engine::layers::op_context::OpContext;
use crate::engine::layers::op_gradients::OpGradients;
use std::fmt;
use tch::Tensor;
use tensor::TensorError;

/// A part of a layer with a forward and a backward pass of its own. Its arguments are those of the
/// layer. Its parameters come with the call.
pub(crate) trait Op: fmt::Debug + Send {
    /// Computes the outputs and, if [`OpContext::saves_for_backward`], the tensors that backward
    /// needs.
    ///
    /// An input may be written to if there is no other reference to it
    /// ([`memory::is_uniquely_owned`]). Outputs may share memory with inputs.
    fn forward(
        &self,
        ctx: &OpContext<'_>,
        inputs: Vec<Tensor>,
    ) -> Result<ForwardOutput, TensorError>;

    /// The first half of backward: computes the gradients of the inputs that need one, from those
    /// of the outputs (at least one of them). `grads` may be written to as inputs of the forward
    /// pass may.
    fn backward(
        &self,
        ctx: &OpContext<'_>,
        saved: SavedForBackward,
        grads: Vec<Option<Tensor>>,
    ) -> Result<BackwardOutput, TensorError>;

    /// The second half: computes the gradients of the parameters from the results of the first
    /// half, and adds them to those of earlier microbatches.
    fn backward_weight(
        &self,
        _: &OpContext<'_>,
        _: Vec<Tensor>,
        _: &mut OpGradients<'_>,
    ) -> Result<(), TensorError> {
        Ok(())
    }

    /// The source of its saved tensors.
    fn save_policy(&self) -> SavePolicy {
        SavePolicy::FromForward
    }

    /// Its saved tensors, for an op with [`SavePolicy::FromInputs`].
    fn save_inputs(
        &self,
        _: &OpContext<'_>,
        _: &[Tensor],
    ) -> Result<SavedForBackward, TensorError> {
        Ok(SavedForBackward::default())
    }

    /// Whether recomputing it is cheap compared with storing its output.
    fn is_cheap(&self) -> bool {
        false
    }

    /// Whether it is a product that mixed precision computes in a 16-bit type.
    fn runs_in_autocast(&self) -> bool {
        false
    }

    /// Whether it has one input and one output, and GPUs compute it and its gradient element by
    /// element in float32 if these are of a 16-bit type, too. Then it has the bits of an op in
    /// float32 whose results are rounded.
    fn is_elementwise(&self) -> bool {
        false
    }

    /// Whether GPUs give the same bits if an input is not widened to float32 before. Its results
    /// are float32.
    fn widens_inputs(&self) -> bool {
        false
    }
}

/// The result of an op's forward pass.
#[derive(Debug)]
pub(crate) struct ForwardOutput {
    pub(crate) outputs: Vec<Tensor>,
    pub(crate) saved: SavedForBackward,
}

/// The tensors that an op saves for its backward pass.
#[derive(Debug, Default)]
pub(crate) struct SavedForBackward {
    pub(crate) tensors: Vec<Tensor>,
    pub(crate) sizes: Vec<Vec<i64>>,
}

/// The result of the first half of a backward pass.
#[derive(Debug, Default)]
pub(crate) struct BackwardOutput {
    /// By port; `None` if no gradient is needed, or none arrives.
    pub(crate) inputs: Vec<Option<Tensor>>,
    /// The tensors for the second half; empty if nothing is left to do.
    pub(crate) weight_inputs: Vec<Tensor>,
}

/// The source of an op's saved tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SavePolicy {
    /// From running it.
    FromForward,
    /// From its inputs alone, by [`Op::save_inputs`].
    FromInputs,
    /// It keeps nothing.
    Nothing,
}

impl ForwardOutput {
    /// The result of an op with one output that saves these tensors.
    pub(crate) fn with_tensors(output: Tensor, tensors: Vec<Tensor>) -> Self {
        ForwardOutput {
            outputs: vec![output],
            saved: SavedForBackward { tensors, sizes: Vec::new() },
        }
    }

    /// The result of an op with one output whose backward pass needs these sizes.
    pub(crate) fn with_sizes(output: Tensor, sizes: Vec<Vec<i64>>) -> Self {
        ForwardOutput {
            outputs: vec![output],
            saved: SavedForBackward { tensors: Vec::new(), sizes },
        }
    }
}

impl BackwardOutput {
    /// The result of an op with one input and no second half.
    pub(crate) fn single_input_grad(input: Tensor) -> Self {
        BackwardOutput { inputs: vec![Some(input)], weight_inputs: Vec::new() }
    }
}

impl SavedForBackward {
    /// The tensors of an op that saves `N` of them.
    pub(crate) fn tensors<const N: usize>(self) -> Result<[Tensor; N], TensorError> {
        let count = self.tensors.len();
        self.tensors
            .try_into()
            .map_err(|_| layer_error(format!("expected {N} saved tensors, got {count}")))
    }
}
