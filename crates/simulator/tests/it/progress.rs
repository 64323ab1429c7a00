//! Plays events: until a reply comes, until nothing is left to happen, and no more after the last
//! fault than are allowed.

use super::{Replied, Worker, World};
use crate::last_fault::Spent;
use pipeline::ids::WorkerId;
use pipeline::message::Failure;
use std::collections::BTreeMap;

/// More events than any run here takes. With more, the sessions send messages without end.
const MOST_EVENTS: u64 = 200_000;

impl World {
    /// Lets the fleet work until there is a reply.
    pub fn reply(&mut self, request: u64) -> Replied {
        loop {
            // No process is left that could use it.
            if self.injected.boss_killed {
                let result = Err(Failure::lost("the boss was killed"));
                return Replied { at: self.now(), result };
            }
            if let Some(reply) = self.replies.remove(&request) {
                return reply;
            }
            let happened = self.step();
            assert!(
                happened,
                "not done: request {request} hangs, nothing is left to happen; {}",
                self.waits_for()
            );
        }
    }

    /// Plays all pending events, and checks that nothing remains.
    pub fn settle(&mut self) {
        while self.step() {}
        if self.injected.boss_killed {
            return assert!(
                self.workers.iter().all(|w| !w.alive),
                "a worker does not learn that the boss is gone"
            );
        }
        assert!(
            self.boss_slots.held().is_empty(),
            "the boss still holds {:?}",
            self.boss_slots.held()
        );
        self.fetches.assert_empty();
        self.assert_parts_equal();
        // Nothing is left to happen, so a request that is still open hangs for ever. It would show
        // nowhere else if nobody waits for its reply.
        assert!(self.unanswered.is_empty(), "requests that hang: {}", self.waits_for());
        assert!(self.boss.is_at_rest(), "the boss is not at rest: {}", self.waits_for());
        self.assert_last_steps();
        self.assert_replicas_equal();
        // Duplicates that came too late are discarded with the next command.
        let all = !self.injected.has_duplicates();
        for (index, worker) in
            self.workers.iter().enumerate().filter(|(_, w)| w.alive && all || w.finished)
        {
            assert!(
                worker.slots.held().is_empty(),
                "worker {index} still holds {:?}",
                worker.slots.held()
            );
            assert!(worker.tasks.is_empty(), "worker {index} still has tasks");
            // A worker that was told to stop may have been at work.
            if worker.alive {
                assert!(worker.session.is_idle(), "worker {index} waits for a task or a read");
                // In a pool, a follower may wait for tensors of a worker that has left.
                let rests = self.churn.is_some() || worker.session.is_between_commands();
                assert!(rests, "worker {index} still has a command");
            }
        }
    }

    /// Checks that all workers completed the same step last. A failed request may leave some of
    /// them ahead, and in a pool newcomers have completed none.
    fn assert_last_steps(&self) {
        if self.has_failed || self.churn.is_some() {
            return;
        }
        let mut steps = self.workers.iter().filter(|w| w.alive).map(|w| w.session.last_step());
        if let Some(first) = steps.next() {
            assert!(steps.all(|step| step == first), "workers differ in their last step");
        }
    }

    /// Checks that replicas have equal parameters and equal optimizer state. A digest leaves the
    /// latter out. A failed request may leave replicas at different steps, until state is loaded.
    fn assert_replicas_equal(&self) {
        if self.has_failed || self.churn.is_some() {
            return;
        }
        let mut stages = BTreeMap::new();
        for worker in self.workers.iter().filter(|w| w.alive) {
            for (stage, params) in worker.compute.whole_params() {
                let first = *stages.entry(stage).or_insert(params);
                assert!(first.has_equal_state(params), "replicas of {stage} differ");
            }
        }
    }

    /// Plays up to `events` further events. Workers may be lost without any.
    pub fn linger(&mut self, events: u64) {
        for _ in 0..events {
            self.step();
        }
    }

    /// The next event, if any is left.
    fn step(&mut self) -> bool {
        self.draw_faults();
        let timer = self.workers.iter().filter(|w| w.alive).filter_map(Worker::timer).min();
        let event = self.network.next_time();
        if timer.is_none() && event.is_none() {
            return false;
        }
        let began = self.now();
        self.events += 1;
        assert!(
            self.events < MOST_EVENTS,
            "the sessions do not come to rest; {}",
            self.waits_for()
        );
        self.approach_last_fault();
        self.inject_faults();
        self.apply_changes();
        self.inject_planned_faults();
        match timer {
            Some(timer) if event.is_none_or(|event| timer <= event) => self.on_timer(timer),
            _ => {
                if let Some(event) = self.network.next() {
                    self.on_event(event);
                }
            }
        }
        self.check_progress(began);
        true
    }

    /// Plays all pending events, and drops the replies to these requests.
    pub fn forget(&mut self, requests: Vec<u64>) {
        while self.step() {}
        // A follower waits for tensors that a lost worker has not sent.
        let stuck: Vec<WorkerId> =
            self.boss.behind().into_iter().filter(|(_, n)| *n > 0).map(|(w, _)| w).collect();
        stuck.into_iter().for_each(|worker| self.vanish(worker));
        self.settle();
        requests.iter().for_each(|request| drop(self.replies.remove(request)));
    }

    /// The reply to a request, if it is there.
    pub fn replied(&mut self, request: u64) -> Option<Replied> {
        self.replies.remove(&request)
    }

    fn on_timer(&mut self, time: u64) {
        self.network.now = self.network.now.max(time);
        let now = self.network.time();
        for index in 0..self.workers.len() {
            let worker = &mut self.workers[index];
            if worker.alive && worker.timer().is_some_and(|timer| timer <= now.0) {
                self.log.note(|| format!("{:>9} worker {index}: timeout", now.0));
                worker.session.on_timeout(worker.clock(now));
                assert!(
                    worker.timer().is_none_or(|timer| timer > now.0),
                    "a timer that does not move on"
                );
                self.drain_worker(WorkerId(index as u16));
            }
        }
    }

    /// Counts an event after the last fault, and the time since `began`. Too many, or too long a
    /// time, are a failure.
    fn check_progress(&mut self, began: u64) {
        let time = self.now() - began;
        let Some(last) = self.last_fault.as_mut().filter(|last| last.is_over()) else { return };
        last.spent = Spent { events: last.spent.events + 1, time: last.spent.time + time };
        let overdue = last.is_overdue();
        assert!(!overdue, "not done: {}", self.waits_for());
    }

    /// The position of the run, and what everybody waits for.
    pub fn waits_for(&self) -> String {
        let run = self.last_fault.as_ref().map_or_else(String::new, |last| format!("{last}; "));
        let (now, next) = (self.now(), self.network.next_time());
        let boss = format!(
            "{run}event {} of these sessions, at {now}, the next at {next:?}; the boss owes \
             replies to {:?}, and its followers are behind by {:?}",
            self.events,
            self.unanswered,
            self.boss.behind()
        );
        let workers = (0..).map(WorkerId).zip(&self.workers);
        let workers = workers.map(|(id, worker)| format!("{id} {}", worker.waits_for(now)));
        std::iter::once(boss).chain(workers).collect::<Vec<String>>().join("; ")
    }
}
