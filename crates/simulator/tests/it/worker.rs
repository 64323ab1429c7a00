//! A worker of the fleet: its session, its compute thread, and what its driver holds.

use super::{short, Kept, Slots};
use crate::compute::Compute;
use crate::math::Fake;
use pipeline::effect::Micros;
use pipeline::ids::Ticket;
use pipeline::samples::{DataSpec, Reading};
use pipeline::stage::StageSession;
use pipeline::task::Task;
use std::collections::VecDeque;

pub(super) struct Worker {
    pub(super) session: StageSession,
    pub(super) slots: Slots,
    pub(super) compute: Compute,
    /// The tasks at its compute thread. It works on the first.
    pub(super) tasks: VecDeque<(Ticket, Task<Fake>)>,
    /// The time at which the first task began.
    pub(super) began: u64,
    /// The data that it reads itself.
    pub(super) data: Option<DataSpec>,
    /// The latest prefetch commands.
    pub(super) ahead_of_time: Vec<Reading>,
    /// The lead of its clock.
    pub(super) ahead: u64,
    /// Whether it is neither lost nor told to stop.
    pub(super) alive: bool,
    pub(super) finished: bool,
    /// Whether it left, but its process is still alive.
    pub(super) rejoins: bool,
    /// Whether the others could not reach it when it left.
    pub(super) far: bool,
    /// The time until which it does nothing.
    pub(super) asleep: u64,
    /// Whether it fell silent, so that the boss gives it up.
    pub(super) silenced: bool,
    /// Whether it is told to leave.
    pub(super) told: bool,
    /// The snapshots that it stores beyond the run.
    pub(super) kept: Kept,
    /// Whether the first task waits for other workers.
    pub(super) waits: bool,
    /// Whether no task may wait for others or update parameters, until this worker has cleaned up.
    pub(super) interrupted: bool,
}

impl Worker {
    pub(super) fn new(ahead: u64) -> Self {
        Worker {
            session: StageSession::new(),
            slots: Slots::default(),
            compute: Compute::default(),
            tasks: VecDeque::new(),
            began: 0,
            data: None,
            ahead_of_time: Vec::new(),
            ahead,
            alive: true,
            finished: false,
            rejoins: false,
            far: false,
            asleep: 0,
            silenced: false,
            told: false,
            kept: Kept::default(),
            waits: false,
            interrupted: false,
        }
    }

    /// The time on its clock.
    pub(super) fn clock(&self, now: Micros) -> Micros {
        Micros(now.0 + self.ahead)
    }

    /// Whether it takes part and will not be given up.
    pub(super) fn lasts(&self) -> bool {
        self.alive && !self.silenced && !self.far && !self.told
    }

    /// What it does or waits for, for a failure.
    pub(super) fn waits_for(&self, now: u64) -> String {
        if self.finished {
            return "was told to stop".to_string();
        }
        if !self.alive {
            return "is gone".to_string();
        }
        if self.asleep > now {
            return format!("does nothing until {}", self.asleep);
        }
        let task = self.tasks.front().map(|(_, task)| short(task));
        let (tasks, tensors) = (self.tasks.len(), self.slots.held().len());
        let timer = self.timer();
        format!("has {tasks} tasks, first {task:?}, {tensors} tensors, its timer at {timer:?}")
    }

    /// The time at which its session must be called, on the common clock.
    pub(super) fn timer(&self) -> Option<u64> {
        self.session.poll_timeout().map(|timer| timer.0.saturating_sub(self.ahead).max(self.asleep))
    }
}
