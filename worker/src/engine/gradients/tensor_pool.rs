//! Memory of old gradients, for new ones.

use std::collections::HashMap;
use tch::Tensor;
use tensor::memory;

/// Tensors by shape. Some may still be in flight to other workers.
#[derive(Debug, Default)]
pub(crate) struct TensorPool(HashMap<Vec<i64>, Vec<Tensor>>);

impl TensorPool {
    /// Memory of this shape without other references.
    pub(crate) fn take(&mut self, shape: &[i64]) -> Option<Tensor> {
        let kept = self.0.get_mut(shape)?;
        let free = kept.iter().rposition(memory::is_uniquely_owned)?;
        Some(kept.swap_remove(free))
    }

    /// Keeps a tensor for later.
    pub(crate) fn put(&mut self, tensor: Tensor) {
        self.0.entry(tensor.size()).or_default().push(tensor);
    }

    /// The number of tensors to keep.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }
}
