//! The gradients of an op's parameters, to add to.

use crate::engine::gradients::buffer::GradientBuffer;
use crate::engine::layers::op_bindings::OpBindings;
use tensor::TensorError;

/// The gradients of one op's parameters.
pub(crate) struct OpGradients<'a> {
    bindings: &'a OpBindings,
    /// By the layer's own order of parameters.
    layer: &'a mut [GradientBuffer],
}

impl<'a> OpGradients<'a> {
    pub(crate) fn new(bindings: &'a OpBindings, layer: &'a mut [GradientBuffer]) -> Self {
        OpGradients { bindings, layer }
    }

    /// Computes sums of a 16-bit type separately, and adds them to these in float32.
    pub(crate) fn add_rounded(
        &mut self,
        work: impl FnOnce(&mut OpGradients<'_>) -> Result<(), TensorError>,
    ) -> Result<(), TensorError> {
        let mut apart: Vec<GradientBuffer> =
            self.layer.iter().map(|_| GradientBuffer::default()).collect();
        work(&mut OpGradients::new(self.bindings, &mut apart))?;
        for (sum, mut apart) in self.layer.iter_mut().zip(apart) {
            if let Some(term) = apart.take() {
                sum.add_rounded(term)?;
            }
        }
        Ok(())
    }

    /// The gradient of the parameter that has this name in the op. `None` if it is not trained.
    pub(crate) fn buffer(&mut self, role: &str) -> Option<&mut GradientBuffer> {
        let param =
            self.bindings.params.iter().find(|param| param.role == role && param.trained)?;
        self.layer.get_mut(param.place)
    }
}
