//! Tensors of other replicas for rounds that have not begun here.
//!
//! The allowed senders depend on the placement in that round, so they are checked when the round
//! begins.

use super::inbox::Item;
use super::{Job, StageSession};
use crate::effect::Peer;
use crate::ids::{MicrobatchKey, Slot};
use crate::message::Head;
use std::collections::BTreeMap;

/// Frames of one worker for more batches than this at a time are refused, and more than so many of each: that of one which
/// keeps to nothing leaves the others theirs.
const BATCHES: usize = 64;
const FRAMES: usize = 1 << 16;

type Came = (Peer, Head, Vec<Slot>);

/// Frames by who sent them and by batch.
#[derive(Default)]
pub(super) struct Early(BTreeMap<Peer, Batches>);

type Batches = BTreeMap<u64, Vec<(Head, Vec<Slot>)>>;

impl Early {
    fn put(&mut self, batch: u64, (from, head, slots): Came) -> Result<(), (Vec<Slot>, String)> {
        let batches = self.0.entry(from).or_default();
        if batches.len() >= BATCHES && !batches.contains_key(&batch) {
            return Err((slots, format!("sent gradients of batch {batch} while {BATCHES} others wait")));
        }
        let of_batch = batches.entry(batch).or_default();
        if of_batch.len() >= FRAMES {
            return Err((slots, format!("sent gradients of batch {batch} while {FRAMES} frames of it wait")));
        }
        of_batch.push((head, slots));
        Ok(())
    }

    /// The arrivals for a batch: of each worker in the order in which it did.
    pub(super) fn take(&mut self, batch: u64) -> Vec<Came> {
        let mut all = Vec::new();
        for (from, batches) in &mut self.0 {
            let came = batches.remove(&batch).unwrap_or_default();
            all.extend(came.into_iter().map(|(head, slots)| (*from, head, slots)));
        }
        all
    }

    /// Lets go of what came for a batch.
    pub(super) fn cancel(&mut self, batch: u64) -> Vec<Slot> {
        self.take(batch).into_iter().flat_map(|(.., slots)| slots).collect()
    }

    /// Lets go of what came for batches up to this one, whose rounds are over.
    pub(super) fn cancel_until(&mut self, batch: u64) -> Vec<Slot> {
        let mut all = Vec::new();
        for batches in self.0.values_mut() {
            let later = batches.split_off(&batch.saturating_add(1));
            let over = std::mem::replace(batches, later);
            all.extend(over.into_values().flatten().flat_map(|(_, slots)| slots));
        }
        self.0.retain(|_, batches| !batches.is_empty());
        all
    }
}

impl StageSession {
    /// A frame of another replica, for a round that may be yet to come.
    pub(super) fn of_replica(&mut self, from: Peer, batch: u64, head: Head, slots: Vec<Slot>) {
        if self.inbox.is_void(batch) {
            return self.drop_slots(slots);
        }
        let has_begun = matches!(&self.job, Some(Job::Round(running)) if running.round.batch == batch);
        if !has_begun {
            if let Err((slots, reason)) = self.early.put(batch, (from, head, slots)) {
                self.refuse(from, slots, reason);
            }
            return;
        }
        let mut index = 0;
        let (stage, item) = match head {
            Head::Sum { stage, bucket, node, .. } => {
                (stage, self.item_of(from, stage, |replica| Item::Sum { bucket, node, replica }))
            }
            Head::Reduced { stage, bucket, .. } => {
                (stage, self.item_of(from, stage, |replica| Item::Reduced { bucket, replica }))
            }
            Head::Updated { stage, bucket, visit, .. } => {
                index = visit;
                (stage, self.item_of(from, stage, |replica| Item::Updated { bucket, replica }))
            }
            Head::Statistics { stage, .. } => {
                (stage, self.item_of(from, stage, |replica| Item::Statistics { replica }))
            }
            _ => return self.refuse(from, slots, "sent what is nothing between replicas".into()),
        };
        if index > 0 && !self.gathers_again(stage, index) {
            return self.refuse(from, slots, format!("sent parameters of {stage} more often than they are gathered"));
        }
        self.arrive(from, MicrobatchKey { batch, index }, stage, item, slots);
    }
}
