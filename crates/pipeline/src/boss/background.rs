//! Copies of parameters that travel to the boss while the next request runs, through a window.

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
        let Some((request, collector)) = self.background.get_mut(&id) else {
            return self.drop_slots(slots);
        };
        if let Err(reason) = take(collector, &slots) {
            return self.refuse(from, slots, &reason);
        }
        let arrived = collector.hand_out_state(*request);
        self.outbox.extend(arrived);
        if collector.is_complete() {
            if let Some((request, collector)) = self.background.remove(&id) {
                self.reply(request, collector.into_answer(self.behind()));
            }
        }
    }

    /// The caller has taken a frame of state of a worker, which may send another one.
    pub fn on_state_taken(&mut self, request: u64, worker: WorkerId) {
        let (id, waits) = match &mut self.job {
            Some(Job { id, request: of, phase: Phase::Collecting(collector), .. })
                if *of == request =>
            {
                (*id, collector.state_taken(worker))
            }
            _ => {
                let mut background = self.background.iter_mut();
                let Some((id, (_, collector))) = background.find(|(_, (of, _))| *of == request)
                else {
                    return;
                };
                (*id, collector.state_taken(worker))
            }
        };
        if waits && self.alive(worker) {
            let body = ToWorker::MoreState { id, frames: 1 };
            self.outbox.push(BossEffect::Tell(vec![Message { to: worker, body }]));
        }
    }

    /// Nobody receives the state of this request any more. Workers free what waits there. If they
    /// have not all answered yet, the state still comes.
    pub fn cancel_fetch(&mut self, request: u64) {
        let found = self.background.iter().find(|(_, (of, _))| *of == request);
        if let Some(id) = found.map(|(id, _)| *id) {
            self.cancel_background(id, Failure::new("nobody receives the state any more"));
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

    /// A worker cannot send the state that it still has to send. Only this request fails.
    pub(super) fn background_failed(&mut self, id: u64, from: WorkerId, failure: Failure) {
        if self.background.get(&id).is_some_and(|(_, collector)| collector.misses(from)) {
            self.cancel_background(id, failure.on(from));
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
        let mut told = collector.state_waits_at();
        let slots = collector.take_slots();
        self.drop_slots(slots);
        told.retain(|worker| self.alive(*worker));
        if stores_snapshots {
            told.extend(self.living());
        }
        if !told.is_empty() {
            // The parts that arrived are useless now, and nobody takes what waits.
            let body = ToWorker::Abort { id, batch: None, gradients: false };
            let abort = |to| Message { to, body: body.clone() };
            self.outbox.push(BossEffect::Tell(told.into_iter().map(abort).collect()));
        }
        self.outbox.push(BossEffect::Reply { request, result: Err(failure) });
    }
}
