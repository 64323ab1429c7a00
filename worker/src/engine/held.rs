//! How much memory a stage keeps for backward passes to come.

use super::forward::SavedLayer;
use super::Engine;
use tch::Tensor;
use tensor::memory;

/// Bytes of tensors that are kept, memory shared by several of them counted once. Parameters do not count, nor what
/// libtorch's autograd keeps beside an op's inputs and outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SavedBytes {
    /// For microbatches that wait for their backward pass.
    pub forward: u64,
    /// For microbatches that wait for the second half of it.
    pub between: u64,
}

impl Engine {
    /// The bytes saved now.
    pub fn saved_bytes(&self) -> SavedBytes {
        let loss_grads = self.saved.values().flat_map(|saved| saved.loss_grads.values());
        let layers = self.saved.values().flat_map(|saved| saved.layers.iter().flatten());
        let kept = layers.flat_map(|layer| -> Box<dyn Iterator<Item = &Tensor>> {
            match layer {
                SavedLayer::Ops(ops) => Box::new(ops.iter().flat_map(|kept| &kept.tensors)),
                SavedLayer::Slots(slots) => Box::new(slots.iter().flatten()),
            }
        });
        let op_weight_inputs =
            self.pending_weight_grads.values().flat_map(|pending_weight_grads| &pending_weight_grads.op_weight_inputs);
        SavedBytes {
            forward: self.bytes(kept.chain(loss_grads)),
            between: self.bytes(op_weight_inputs.flat_map(|rest| &rest.tensors)),
        }
    }

    fn bytes<'a>(&self, tensors: impl Iterator<Item = &'a Tensor>) -> u64 {
        let mut held = memory::StorageCounter::default();
        self.params.all.iter().for_each(|param| held.ignore(&param.tensor));
        tensors.for_each(|tensor| held.count(tensor));
        held.bytes()
    }
}
