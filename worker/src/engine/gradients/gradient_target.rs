//! The target of a backward pass for the gradients of parameters.

use crate::engine::error::EngineError;
use crate::engine::gradients::buffer::GradientBuffer;
use crate::engine::gradients::leaf_writer::LeafWriter;

/// The target to which a microbatch adds the gradients of parameters.
pub(crate) enum GradientTarget<'a> {
    /// The sums of the microbatches before, by layer.
    Accumulate(&'a mut [Vec<GradientBuffer>]),
    /// The leaves of this microbatch, which go into trees.
    Tree(LeafWriter<'a>),
}

impl GradientTarget<'_> {
    /// The gradients of a layer, by its own order of parameters. For a tree, layers must come in
    /// descending order.
    pub(crate) fn layer_gradients(
        &mut self,
        layer: usize,
    ) -> Result<&mut [GradientBuffer], EngineError> {
        match self {
            GradientTarget::Accumulate(gradients) => Ok(&mut gradients[layer]),
            GradientTarget::Tree(leaves) => leaves.layer_gradients(layer),
        }
    }

    /// Ends the pass for this layer and all after it.
    pub(crate) fn finish_layers_from(&mut self, layer: usize) -> Result<(), EngineError> {
        match self {
            GradientTarget::Accumulate(_) => Ok(()),
            GradientTarget::Tree(leaves) => leaves.finish_layers_from(layer),
        }
    }
}
