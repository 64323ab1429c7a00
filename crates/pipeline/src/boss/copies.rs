//! Copies of parameters that travel to the boss while the next request runs.

use super::{BossSession, Job, Phase, Work};
use crate::effect::{BossEffect, Destination, Micros, Peer};
use crate::ids::{Slot, WorkerId};
use crate::message::{Failure, Head};

impl BossSession {
    /// Sets a request aside that only waits for copied tensors. The next request begins.
    pub(super) fn set_aside(&mut self) {
        let travels = |job: &mut Job| {
            matches!(&job.phase, Phase::Gathering(copies) if job.work == Work::Sending && copies.is_answered()
                && !copies.is_complete())
        };
        if let Some(Job { id, request, phase: Phase::Gathering(copies), .. }) = self.job.take_if(travels) {
            self.copies.insert(id, (request, *copies));
        }
    }

    /// Whether a frame belongs to a request that was set aside.
    pub(super) fn is_copy(&self, head: &Head) -> bool {
        matches!(head, Head::State { id, .. } | Head::Kept { id, .. } if self.copies.contains_key(id))
    }

    /// Takes a part of a request that was set aside. Replies with the last part.
    pub(super) fn copy_arrives(&mut self, now: Micros, from: WorkerId, head: Head, slots: Vec<Slot>) {
        let (Head::State { id, .. } | Head::Kept { id, .. }) = head else { return self.drop_slots(slots) };
        let Some((_, copies)) = self.copies.get_mut(&id) else { return self.drop_slots(slots) };
        if let Err(reason) = copies.take(now, from, head, &slots) {
            return self.refuse(from, slots, &reason);
        }
        if copies.is_complete() {
            if let Some((request, copies)) = self.copies.remove(&id) {
                self.effects.push_back(BossEffect::Reply { request, result: Ok(copies.into_answer()) });
            }
        }
    }

    /// A worker is lost, with the tensors that it had not sent yet.
    pub(super) fn copies_lost(&mut self, worker: WorkerId, reason: &str) {
        let of_worker = |(id, (_, copies)): (&u64, &(u64, super::Gathering))| copies.misses(worker).then_some(*id);
        let lost: Vec<u64> = self.copies.iter().filter_map(of_worker).collect();
        for id in lost {
            self.give_up_copies(id, self.lost_failure(worker, reason));
        }
    }

    /// A link between workers broke, so snapshots in flight between them may be lost.
    pub(super) fn copies_broken(&mut self) {
        let kept = |(id, (_, copies)): (&u64, &(u64, super::Gathering))| copies.is_kept().then_some(*id);
        for id in self.copies.iter().filter_map(kept).collect::<Vec<_>>() {
            self.give_up_copies(id, Failure { passing: true, ..Failure::new("a link between workers broke") });
        }
    }

    fn give_up_copies(&mut self, id: u64, failure: Failure) {
        let Some((request, mut copies)) = self.copies.remove(&id) else { return };
        let slots = copies.give_up();
        self.drop_slots(slots);
        if copies.is_kept() {
            // The parts that arrived are useless now.
            let abort = |worker| Destination {
                peer: Peer::Worker(worker),
                route: None,
                head: Head::Abort { id, batch: None, gradients: false },
            };
            let to = self.living().into_iter().map(abort).collect();
            self.effects.push_back(BossEffect::Send { to, slots: Vec::new() });
        }
        self.effects.push_back(BossEffect::Reply { request, result: Err(failure) });
    }
}
