//! Tensors of other replicas for rounds that have not begun here.
//!
//! The allowed senders depend on the placement in that round, so they are checked when the round
//! begins.

use crate::effect::Peer;
use crate::ids::Slot;
use crate::message::TensorHead;
use std::collections::{BTreeMap, VecDeque};

/// The most batches for which frames of one worker may wait.
const MAX_BATCHES: usize = 64;
/// The most frames of one worker that may wait for one batch.
const MAX_FRAMES: usize = 1 << 16;

/// A frame of another replica.
pub(super) struct ReplicaFrame {
    pub(super) from: Peer,
    pub(super) head: TensorHead,
    pub(super) slots: Vec<Slot>,
}

/// Frames by sender and by batch, so that one sender cannot take the place of others.
#[derive(Default)]
pub(super) struct EarlyFrames(BTreeMap<Peer, BTreeMap<u64, VecDeque<ReplicaFrame>>>);

impl EarlyFrames {
    /// Stores a frame. Returns its slots if the sender violates a limit, with the reason.
    pub(super) fn put(
        &mut self,
        batch: u64,
        frame: ReplicaFrame,
    ) -> Result<(), (Vec<Slot>, String)> {
        let batches = self.0.entry(frame.from).or_default();
        if batches.len() >= MAX_BATCHES && !batches.contains_key(&batch) {
            let reason = format!("sent gradients of batch {batch} while {MAX_BATCHES} others wait");
            return Err((frame.slots, reason));
        }
        let of_batch = batches.entry(batch).or_default();
        if of_batch.len() >= MAX_FRAMES {
            let reason =
                format!("sent gradients of batch {batch} while {MAX_FRAMES} frames of it wait");
            return Err((frame.slots, reason));
        }
        of_batch.push_back(frame);
        Ok(())
    }

    /// Removes a frame of a batch. Those of each sender come in the order of arrival.
    pub(super) fn pop(&mut self, batch: u64) -> Option<ReplicaFrame> {
        self.0.values_mut().find_map(|of| {
            let frames = of.get_mut(&batch)?;
            let frame = frames.pop_front();
            if frames.is_empty() {
                of.remove(&batch);
            }
            frame
        })
    }

    /// The number of tensors in all frames.
    pub(super) fn held(&self) -> usize {
        let frames = self.0.values().flat_map(BTreeMap::values).flatten();
        frames.map(|frame| frame.slots.len()).sum()
    }

    /// Removes the frames of a cancelled batch.
    pub(super) fn cancel(&mut self, batch: u64) -> Vec<Slot> {
        std::iter::from_fn(|| self.pop(batch)).flat_map(|frame| frame.slots).collect()
    }

    /// Removes the frames of batches up to this one, whose rounds are over.
    pub(super) fn cancel_until(&mut self, batch: u64) -> Vec<Slot> {
        let mut all = Vec::new();
        for batches in self.0.values_mut() {
            let later = batches.split_off(&batch.saturating_add(1));
            let over = std::mem::replace(batches, later);
            all.extend(over.into_values().flatten().flat_map(|frame| frame.slots));
        }
        self.0.retain(|_, batches| !batches.is_empty());
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{StageId, WorkerId};

    fn frame(from: u16, slot: u64) -> ReplicaFrame {
        let head = TensorHead::Statistics { batch: 0, stage: StageId(0) };
        ReplicaFrame { from: Peer::Worker(WorkerId(from)), head, slots: vec![Slot(slot)] }
    }

    #[test]
    fn frames_are_taken_by_sender_in_the_order_of_arrival() {
        let mut early = EarlyFrames::default();
        for (batch, from, slot) in [(3, 1, 1), (3, 0, 2), (4, 0, 3), (3, 0, 4)] {
            assert!(early.put(batch, frame(from, slot)).is_ok());
        }
        let taken = std::iter::from_fn(|| early.pop(3));
        let slots: Vec<_> = taken.flat_map(|frame| frame.slots).collect();
        assert_eq!(slots, [Slot(2), Slot(4), Slot(1)]);
        assert!(early.pop(3).is_none());
        assert_eq!(early.cancel_until(4), [Slot(3)]);
    }

    #[test]
    fn one_sender_leaves_the_others_their_place() {
        let mut early = EarlyFrames::default();
        for batch in 0..MAX_BATCHES as u64 {
            assert!(early.put(batch, frame(0, batch)).is_ok());
        }
        let refused = early.put(100, frame(0, 100)).err().map(|(slots, _)| slots);
        assert_eq!(refused, Some(vec![Slot(100)]));
        assert!(early.put(100, frame(1, 101)).is_ok());
    }
}
