//! A worker of the fleet: its session, its compute thread, and what its driver holds.

use super::{Kept, Slots};
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
    /// The first of them is being worked on.
    pub(super) tasks: VecDeque<(Ticket, Task<Fake>)>,
    /// When work on that one began.
    pub(super) began: u64,
    /// What it reads by itself.
    pub(super) data: Option<DataSpec>,
    /// What it was last told to read before it is asked for.
    pub(super) ahead_of_time: Vec<Reading>,
    /// By how much its clock is ahead.
    pub(super) ahead: u64,
    /// Neither lost nor told to stop.
    pub(super) alive: bool,
    pub(super) finished: bool,
    /// It left, and its process is still there.
    pub(super) rejoins: bool,
    /// The others could not reach it when it left.
    pub(super) far: bool,
    /// Until then it does nothing.
    pub(super) asleep: u64,
    /// What it keeps beyond the run.
    pub(super) kept: Kept,
    /// The first task waits for other workers.
    pub(super) waits: bool,
    /// No task is to wait for others, or to update parameters, until this worker has cleared up.
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
            kept: Kept::default(),
            waits: false,
            interrupted: false,
        }
    }

    /// What its clock shows.
    pub(super) fn clock(&self, now: Micros) -> Micros {
        Micros(now.0 + self.ahead)
    }

    /// When its session wants to be called, on the common clock.
    pub(super) fn timer(&self) -> Option<u64> {
        self.session.poll_timeout().map(|timer| timer.0.saturating_sub(self.ahead).max(self.asleep))
    }
}
