//! The microbatches that wait for their backward pass, and the memory that they hold.

use crate::engine::config::Pass;
use crate::engine::error::SequenceError;
use crate::engine::layers::op::SavedForBackward;
use crate::engine::params::stage_params::Params;
use pipeline::ids::MicrobatchKey;
use std::collections::HashMap;
use tch::Tensor;
use tensor::memory::StorageCounter;

/// The saved state of a microbatch between forward and backward.
#[derive(Debug)]
pub(crate) struct SavedMicrobatch {
    pub(crate) pass: Pass,
    /// The version of the parameters.
    pub(crate) version: u64,
    /// By layer of the stage; `None` for a layer through which no gradient flows.
    pub(crate) layers: Vec<Option<SavedLayer>>,
    /// By output of the stage.
    pub(crate) output_sizes: Vec<Vec<i64>>,
    /// The gradient of the loss, by output of the stage.
    pub(crate) loss_grads: HashMap<usize, Tensor>,
}

/// The saved state of one layer.
#[derive(Debug)]
pub(crate) enum SavedLayer {
    /// The saved tensors of each op.
    Ops(Vec<SavedForBackward>),
    /// The slots from which the others are recomputed.
    Slots(Vec<Option<Tensor>>),
}

/// The saved state of a microbatch between the halves of its backward pass.
#[derive(Debug)]
pub(crate) struct PendingWeightGrads {
    pub(crate) pass: Pass,
    /// The version of the parameters.
    pub(crate) version: u64,
    /// In the order in which the first half left them.
    pub(crate) op_weight_inputs: Vec<OpWeightInputs>,
}

/// The tensors that one op needs for the gradients of its parameters.
#[derive(Debug)]
pub(crate) struct OpWeightInputs {
    pub(crate) layer: usize,
    pub(crate) node: usize,
    pub(crate) tensors: Vec<Tensor>,
}

/// Bytes of saved tensors. Shared memory counts once. Parameters do not count, and neither do
/// tensors that libtorch's autograd keeps besides an op's inputs and outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SavedBytes {
    /// For microbatches that wait for their backward pass.
    pub forward: u64,
    /// For microbatches that wait for the second half of it.
    pub between: u64,
}

/// The saved state of microbatches that wait for backward.
#[derive(Debug, Default)]
pub(crate) struct SavedPasses {
    forward: HashMap<MicrobatchKey, SavedMicrobatch>,
    weights: HashMap<MicrobatchKey, PendingWeightGrads>,
}

impl SavedPasses {
    /// Refuses a second forward pass of a microbatch that waits for backward.
    pub(crate) fn check_new(&self, key: MicrobatchKey) -> Result<(), SequenceError> {
        match self.forward.contains_key(&key) || self.weights.contains_key(&key) {
            true => Err(SequenceError::AlreadyForwarded { key }),
            false => Ok(()),
        }
    }

    /// Saves a forward pass.
    pub(crate) fn insert(&mut self, saved: SavedMicrobatch) {
        self.forward.insert(saved.pass.key, saved);
    }

    /// A forward pass that is saved.
    pub(crate) fn forward_mut(
        &mut self,
        key: MicrobatchKey,
    ) -> Result<&mut SavedMicrobatch, SequenceError> {
        self.forward.get_mut(&key).ok_or(SequenceError::UnknownMicrobatch { key })
    }

    /// Takes out a forward pass.
    pub(crate) fn take_forward(
        &mut self,
        key: MicrobatchKey,
    ) -> Result<SavedMicrobatch, SequenceError> {
        self.forward.remove(&key).ok_or(SequenceError::UnknownMicrobatch { key })
    }

    /// Saves what the second half of a backward pass needs.
    pub(crate) fn insert_pending(&mut self, pending: PendingWeightGrads) {
        self.weights.insert(pending.pass.key, pending);
    }

    /// Takes out what the second half of a backward pass needs.
    pub(crate) fn take_pending(
        &mut self,
        key: MicrobatchKey,
    ) -> Result<PendingWeightGrads, SequenceError> {
        self.weights.remove(&key).ok_or(SequenceError::NoBackwardInput { key })
    }

    /// Drops the microbatches of a batch.
    pub(crate) fn discard(&mut self, batch: u64) {
        self.forward.retain(|key, _| key.batch != batch);
        self.weights.retain(|key, _| key.batch != batch);
    }

    /// The number of microbatches.
    pub(crate) fn len(&self) -> usize {
        self.forward.len() + self.weights.len()
    }

    /// The bytes that are saved, without parameters and without the memory of `others`.
    pub(crate) fn bytes(&self, params: &Params, others: &[&Tensor]) -> SavedBytes {
        SavedBytes {
            forward: bytes(params, others, self.forward_tensors()),
            between: bytes(params, others, self.tensors_between()),
        }
    }

    /// Everything that is kept from forward to backward.
    pub(crate) fn forward_tensors(&self) -> impl Iterator<Item = &Tensor> {
        let loss_grads = self.forward.values().flat_map(|saved| saved.loss_grads.values());
        let layers = self.forward.values().flat_map(|saved| saved.layers.iter().flatten());
        let saved = layers.flat_map(|layer| -> Box<dyn Iterator<Item = &Tensor>> {
            match layer {
                SavedLayer::Ops(ops) => Box::new(ops.iter().flat_map(|saved| &saved.tensors)),
                SavedLayer::Slots(slots) => Box::new(slots.iter().flatten()),
            }
        });
        saved.chain(loss_grads)
    }

    /// Everything that is kept between the halves of backward.
    pub(crate) fn tensors_between(&self) -> impl Iterator<Item = &Tensor> {
        let pending = self.weights.values().flat_map(|pending| &pending.op_weight_inputs);
        pending.flat_map(|inputs| &inputs.tensors)
    }
}

fn bytes<'a>(
    params: &Params,
    others: &[&Tensor],
    tensors: impl Iterator<Item = &'a Tensor>,
) -> u64 {
    let mut counter = StorageCounter::default();
    others.iter().for_each(|other| counter.ignore(other));
    for param in &params.all {
        counter.ignore(&param.tensor);
        param.rounded.get().into_iter().for_each(|rounded| counter.ignore(rounded));
    }
    tensors.for_each(|tensor| counter.count(tensor));
    counter.bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::config::Mode;

    fn saved(index: u32) -> SavedMicrobatch {
        let key = MicrobatchKey { batch: 1, index };
        let pass =
            Pass { key, step: 0, mode: Mode::Train, defer_statistics: false, check_finite: false };
        let (layers, output_sizes, loss_grads) = (Vec::new(), Vec::new(), HashMap::new());
        SavedMicrobatch { pass, version: 0, layers, output_sizes, loss_grads }
    }

    #[test]
    fn a_microbatch_waits_until_both_halves_are_done() {
        let mut passes = SavedPasses::default();
        let key = saved(3).pass.key;
        passes.insert(saved(3));
        assert_eq!(passes.check_new(key), Err(SequenceError::AlreadyForwarded { key }));
        let SavedMicrobatch { pass, version, .. } = passes.take_forward(key).unwrap();
        passes.insert_pending(PendingWeightGrads { pass, version, op_weight_inputs: Vec::new() });
        assert_eq!(passes.check_new(key), Err(SequenceError::AlreadyForwarded { key }));
        passes.take_pending(key).unwrap();
        assert_eq!((passes.check_new(key), passes.len()), (Ok(()), 0));
    }

    #[test]
    fn a_discarded_batch_leaves_nothing() {
        let mut passes = SavedPasses::default();
        passes.insert(saved(0));
        passes.discard(2);
        assert_eq!(passes.len(), 1);
        passes.discard(1);
        assert_eq!(passes.len(), 0);
    }
}
