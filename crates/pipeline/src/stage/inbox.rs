//! Tensors that have arrived and wait for their action.

use crate::ids::{MicrobatchKey, Slot, StageId};
use crate::replicas::Node;
use layerspec::ValueId;
use std::collections::btree_map::{BTreeMap, Entry};
use std::collections::BTreeSet;

/// The kind of an arrived tensor.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Item {
    /// A variable the stage uses.
    Value(ValueId),
    /// The target.
    Target,
    /// Gradients of a variable the stage made, from a stage that used it or from the boss.
    Gradient { value: ValueId, from: Option<StageId> },
    /// Gradients of parameters that the stage owns, from a stage with tied copies.
    TiedGrads { from: StageId },
    /// New values of the stage's tied copies, from the owner.
    TiedValues { from: StageId },
    /// Gradients of this worker's shard of a bucket, from a replica.
    Sum { bucket: u32, node: Node, replica: usize },
    /// The sum over all microbatches of a replica's shard of a bucket.
    Reduced { bucket: u32, replica: usize },
    /// The values of a replica's shard of a bucket. The number of the all-gather takes the place of
    /// the microbatch.
    Updated { bucket: u32, replica: usize },
    /// The statistics of a replica's batch norms.
    Statistics { replica: usize },
}

/// The most batches with tensors at a time. Peers may be one round ahead.
const BATCHES: usize = 64;
/// The most tensors of a batch at a time.
const TENSORS: usize = 1 << 16;
/// The number of cancelled batches to remember, so that their late tensors are dropped.
const REMEMBERED: usize = 256;

/// The arrived tensors of a batch, by microbatch, stage and kind.
type Arrived = BTreeMap<(u32, StageId, Item), Vec<Slot>>;

/// Arrived tensors by batch; none is empty.
#[derive(Default)]
pub(super) struct Inbox {
    batches: BTreeMap<u64, Arrived>,
    void: BTreeSet<u64>,
}

impl Inbox {
    /// Stores a tensor. Returns the slots if they are not needed, with a reason if the sender is at
    /// fault.
    pub(super) fn put(
        &mut self,
        key: MicrobatchKey,
        stage: StageId,
        item: Item,
        slots: Vec<Slot>,
    ) -> Result<(), (Vec<Slot>, Option<String>)> {
        if self.void.contains(&key.batch) {
            return Err((slots, None));
        }
        if self.batches.len() >= BATCHES && !self.batches.contains_key(&key.batch) {
            return Err((
                slots,
                Some(format!("sent a tensor for {key} while {BATCHES} other batches wait")),
            ));
        }
        let arrived = self.batches.entry(key.batch).or_default();
        if arrived.len() >= TENSORS {
            return Err((
                slots,
                Some(format!("sent a tensor for {key} while {TENSORS} others wait")),
            ));
        }
        match arrived.entry((key.index, stage, item)) {
            Entry::Occupied(_) => {
                Err((slots, Some(format!("sent the same tensor twice for {key}, {stage}"))))
            }
            Entry::Vacant(place) => {
                place.insert(slots);
                Ok(())
            }
        }
    }

    /// Whether a batch was cancelled not long ago.
    pub(super) fn is_void(&self, batch: u64) -> bool {
        self.void.contains(&batch)
    }

    pub(super) fn has(&self, key: MicrobatchKey, stage: StageId, item: Item) -> bool {
        self.batches
            .get(&key.batch)
            .is_some_and(|arrived| arrived.contains_key(&(key.index, stage, item)))
    }

    /// Removes and returns tensors.
    pub(super) fn take(&mut self, key: MicrobatchKey, stage: StageId, item: Item) -> Vec<Slot> {
        let Some(arrived) = self.batches.get_mut(&key.batch) else { return Vec::new() };
        let slots = arrived.remove(&(key.index, stage, item)).unwrap_or_default();
        if arrived.is_empty() {
            self.batches.remove(&key.batch);
        }
        slots
    }

    /// The number of tensors in it.
    pub(super) fn held(&self) -> usize {
        self.batches.values().flat_map(BTreeMap::values).map(Vec::len).sum()
    }

    /// Removes the tensors of all batches but this one.
    pub(super) fn keep_only(&mut self, batch: Option<u64>) -> Vec<Slot> {
        let kept =
            batch.and_then(|batch| self.batches.remove(&batch).map(|arrived| (batch, arrived)));
        let others = std::mem::replace(&mut self.batches, kept.into_iter().collect());
        others.into_values().flat_map(BTreeMap::into_values).flatten().collect()
    }

    /// Removes the tensors of a batch. Later ones are refused.
    pub(super) fn cancel(&mut self, batch: u64) -> Vec<Slot> {
        self.void.insert(batch);
        if self.void.len() > REMEMBERED {
            self.void.pop_first();
        }
        self.batches.remove(&batch).into_iter().flat_map(BTreeMap::into_values).flatten().collect()
    }
}
