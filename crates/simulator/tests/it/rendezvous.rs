//! Compute threads at work, and those that wait for each other: to make communicators, and to sum
//! gradients.

use super::{hold_all, short, World};
use crate::compute::Handed;
use crate::math::Fake;
use pipeline::effect::Micros;
use pipeline::ids::{StageId, WorkerId};
use pipeline::message::Failure;
use pipeline::replicas::UniqueId;
use pipeline::task::{Outcome, Task};
use std::collections::BTreeMap;

/// Collective operations, in which workers wait for each other.
#[derive(Clone, PartialEq, Debug)]
enum Rendezvous {
    /// To sum the gradients of a stage.
    Sum(StageId, u64),
    /// To make communicators with these ids.
    Communicators(BTreeMap<u16, UniqueId>),
}

impl World {
    /// The collective operation that a worker's task has reached, if any.
    fn rendezvous(&self, id: WorkerId) -> Option<(Rendezvous, StageId)> {
        match self.workers[id.0 as usize].tasks.front()?.1 {
            Task::AllReduce { stage, batch, .. } => Some((Rendezvous::Sum(stage, batch), stage)),
            Task::Communicate { ref stages } => {
                let ids = stages.iter().map(|(stage, _, id)| (stage.0, id.clone())).collect();
                Some((Rendezvous::Communicators(ids), stages.first()?.0))
            }
            _ => None,
        }
    }

    /// A worker's oldest task is done, unless it waits for other workers.
    pub(super) fn computed(&mut self, id: WorkerId) {
        let Some((meeting, stage)) = self.rendezvous(id) else {
            let result = self.carry_out(id);
            return self.finish(id, result);
        };
        let worker = &mut self.workers[id.0 as usize];
        let task = &worker.tasks[0].1;
        if let Some(failure) = self.trouble.fail(id, task) {
            return self.finish(id, Err(failure));
        }
        if worker.interrupted {
            return self.finish(id, Err(called_off()));
        }
        worker.waits = true;
        let all = self.stage_placement.of(stage).to_vec();
        let there = |worker: &WorkerId| {
            let here = &self.workers[worker.0 as usize];
            here.alive
                && here.waits
                && self.rendezvous(*worker).is_some_and(|(other, _)| other == meeting)
        };
        if !all.iter().all(there) {
            return;
        }
        self.log.note(|| format!("{:>9} {all:?} meet: {}", self.network.now, short(&meeting)));
        let sums = match meeting {
            Rendezvous::Sum(stage, _) => {
                let own: Vec<Handed> = all
                    .iter()
                    .filter_map(|w| self.workers[w.0 as usize].compute.own_sums(stage))
                    .collect();
                (own.len() == all.len()).then(|| (stage, Handed::together(own)))
            }
            Rendezvous::Communicators(_) => None,
        };
        for worker in all {
            let compute = &mut self.workers[worker.0 as usize].compute;
            let result = match (&meeting, &sums) {
                (Rendezvous::Communicators(ids), _) => {
                    compute.communicate(ids.keys().map(|stage| StageId(*stage)));
                    Ok(Outcome::Done)
                }
                (_, Some((stage, sums))) => {
                    compute.all_reduce(*stage, sums).map(|()| Outcome::Done)
                }
                (_, None) => Err(Failure::new("there is no communicator")),
            };
            self.finish(worker, result);
        }
    }

    /// Runs the current task of a worker.
    fn carry_out(&mut self, id: WorkerId) -> Result<Outcome<Fake>, Failure> {
        let worker = &mut self.workers[id.0 as usize];
        let (_, task) = worker.tasks.front().expect("a task at work");
        if let Task::Discard { .. } = task {
            worker.interrupted = false;
        }
        // It was submitted before that was known.
        if worker.interrupted && matches!(task, Task::OptimStep { .. }) {
            return Err(called_off());
        }
        match self.trouble.fail(id, task) {
            Some(failure) => {
                worker.compute.failed = true;
                Err(failure)
            }
            None => worker.compute.run(task.clone()),
        }
    }

    /// A worker is done with its oldest task, and begins the next.
    fn finish(&mut self, id: WorkerId, result: Result<Outcome<Fake>, Failure>) {
        let now = self.network.time();
        let worker = &mut self.workers[id.0 as usize];
        worker.waits = false;
        let (ticket, task) = worker.tasks.pop_front().expect("a task at work");
        self.log.note(|| format!("{:>9} {id}: computed {}", now.0, short(&task)));
        worker.interrupted |=
            result.is_err() && matches!(task, Task::AllReduce { .. } | Task::Communicate { .. });
        let result = result.map(|outcome| hold_all(outcome, &mut worker.slots));
        for handed in std::mem::take(&mut worker.compute.handed) {
            let handed = handed.map(|tensor| worker.slots.hold(tensor));
            worker.session.on_early_output(worker.clock(now), handed);
        }
        let span = (worker.clock(Micros(worker.began)), worker.clock(now));
        if let Some((_, task)) = worker.tasks.front() {
            worker.began = now.0;
            self.network.compute(id, task);
        }
        worker.session.on_done(worker.clock(now), ticket, result.map_err(Into::into), span);
        self.drain_worker(id);
    }

    /// Interrupts the waits of a worker until it has cleaned up.
    pub(super) fn interrupt(&mut self, id: WorkerId) {
        self.workers[id.0 as usize].interrupted = true;
        if self.workers[id.0 as usize].waits {
            self.finish(id, Err(called_off()));
        }
    }
}

fn called_off() -> Failure {
    Failure::new("called off")
}
