//! Tensors that have arrived and wait for their action.

use crate::ids::{MicrobatchKey, Slot, StageId};
use layerspec::ValueId;
use std::collections::{BTreeMap, BTreeSet};

/// What an arrived tensor is.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Item {
    /// A variable the stage uses.
    Value(ValueId),
    /// What the model's output should have been.
    Target,
    /// Gradients of a variable the stage made, from a stage that used it or from the boss.
    Gradient { value: ValueId, from: Option<StageId> },
}

/// How many batches ahead of the newest one known a tensor may be; peers may be a round ahead.
const AHEAD: u64 = 64;
/// How many cancelled batches are remembered, so that their late tensors are let go.
const REMEMBERED: usize = 256;

/// Arrived tensors by microbatch, stage and kind.
#[derive(Default)]
pub(super) struct Inbox {
    items: BTreeMap<(MicrobatchKey, StageId, Item), Vec<Slot>>,
    newest_batch: u64,
    void: BTreeSet<u64>,
}

impl Inbox {
    /// Takes a tensor in. Gives the slots back where they are of no use, with the reason where the
    /// sender is to blame.
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
        if key.batch > self.newest_batch.saturating_add(AHEAD) {
            return Err((slots, Some(format!("sent a tensor for {key} while {} is the newest", self.newest_batch))));
        }
        match self.items.entry((key, stage, item)) {
            std::collections::btree_map::Entry::Occupied(_) => {
                Err((slots, Some(format!("sent the same tensor twice for {key}, {stage}"))))
            }
            std::collections::btree_map::Entry::Vacant(place) => {
                place.insert(slots);
                Ok(())
            }
        }
    }

    pub(super) fn has(&self, key: MicrobatchKey, stage: StageId, item: Item) -> bool {
        self.items.contains_key(&(key, stage, item))
    }

    /// Hands tensors out; they are gone from here.
    pub(super) fn take(&mut self, key: MicrobatchKey, stage: StageId, item: Item) -> Vec<Slot> {
        self.items.remove(&(key, stage, item)).unwrap_or_default()
    }

    /// A round on this batch begins.
    pub(super) fn begin(&mut self, batch: u64) {
        self.newest_batch = self.newest_batch.max(batch);
    }

    /// Lets go of everything of a batch, now and later.
    pub(super) fn cancel(&mut self, batch: u64) -> Vec<Slot> {
        self.void.insert(batch);
        if self.void.len() > REMEMBERED {
            self.void.pop_first();
        }
        let (gone, kept) = std::mem::take(&mut self.items).into_iter().partition(|((key, ..), _)| key.batch == batch);
        self.items = kept;
        let gone: BTreeMap<_, Vec<Slot>> = gone;
        gone.into_values().flatten().collect()
    }
}
