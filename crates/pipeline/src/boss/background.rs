//! Copies of parameters that travel to the boss while the next request runs.

use super::work::Work;
use super::{BossSession, Collector, Job, Phase};
use crate::effect::{BossEffect, Message};
use crate::ids::{Slot, WorkerId};
use crate::message::{Failure, ToWorker};

impl BossSession {
    /// Sets a request aside that only waits for copied tensors. The next request begins.
    pub(super) fn move_to_background(&mut self) {
        let travels = |job: &mut Job| {
            let Phase::Collecting(collector) = &job.phase else { return false };
            job.work == Work::Sending && collector.is_answered() && !collector.is_complete()
        };
        if let Some(Job { id, request, phase: Phase::Collecting(collector), .. }) =
            self.job.take_if(travels)
        {
            self.background.insert(id, (request, *collector));
        }
    }

    /// Takes a part of a request that was set aside. Replies with the last part.
    pub(super) fn take_background(
        &mut self,
        id: u64,
        from: WorkerId,
        slots: Vec<Slot>,
        take: impl FnOnce(&mut Collector, &[Slot]) -> Result<(), String>,
    ) {
        let Some((_, collector)) = self.background.get_mut(&id) else {
            return self.drop_slots(slots);
        };
        if let Err(reason) = take(collector, &slots) {
            return self.refuse(from, slots, &reason);
        }
        if collector.is_complete() {
            if let Some((request, collector)) = self.background.remove(&id) {
                self.reply(request, collector.into_answer(self.behind()));
            }
        }
    }

    /// A worker is lost, with the tensors that it had not sent yet.
    pub(super) fn background_lost(&mut self, worker: WorkerId, reason: &str) {
        let of_worker = |(id, (_, collector)): (&u64, &(u64, Collector))| {
            collector.misses(worker).then_some(*id)
        };
        let lost: Vec<u64> = self.background.iter().filter_map(of_worker).collect();
        for id in lost {
            self.cancel_background(id, self.lost_failure(worker, reason));
        }
    }

    /// A link between workers broke, so snapshots in flight between them may be lost.
    pub(super) fn snapshots_lost(&mut self) {
        let kept = |(id, (_, collector)): (&u64, &(u64, Collector))| {
            collector.stores_snapshots().then_some(*id)
        };
        for id in self.background.iter().filter_map(kept).collect::<Vec<_>>() {
            self.cancel_background(id, Failure::lost("a link between workers broke"));
        }
    }

    fn cancel_background(&mut self, id: u64, failure: Failure) {
        let Some((request, mut collector)) = self.background.remove(&id) else { return };
        let stores_snapshots = collector.stores_snapshots();
        let slots = collector.take_slots();
        self.drop_slots(slots);
        if stores_snapshots {
            // The parts that arrived are useless now.
            let body = ToWorker::Abort { id, batch: None, gradients: false };
            let abort = |to| Message { to, body: body.clone() };
            let to = self.living().into_iter().map(abort).collect();
            self.effects.push_back(BossEffect::Tell(to));
        }
        self.effects.push_back(BossEffect::Reply { request, result: Err(failure) });
    }
}
