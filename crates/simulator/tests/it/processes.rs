//! The processes of workers between two memberships of a run, each with the snapshots that it
//! stores.

use crate::world::{Kept, World};

/// The processes that take no part in a membership.
pub struct Processes {
    /// Those that the boss reaches.
    pub here: Vec<Kept>,
    /// Those that it does not reach yet.
    away: Vec<Kept>,
}

impl Processes {
    pub fn new(workers: usize) -> Self {
        Processes { here: vec![Kept::default(); workers], away: Vec::new() }
    }

    /// Brings at least one process here.
    pub fn replenish(&mut self) {
        if self.here.is_empty() {
            self.here.append(&mut self.away);
        }
        // A new worker replaces the last one.
        self.here.resize_with(self.here.len().max(1), Kept::default);
    }

    /// Takes the processes of a membership with this number of workers. The others stay as spares.
    pub fn join(&mut self, workers: usize) -> Vec<Kept> {
        self.here.resize_with(self.here.len().max(workers), Kept::default);
        let spare = self.here.split_off(workers);
        std::mem::replace(&mut self.here, spare)
    }

    /// Takes back the processes of a membership that is over. Returns the number of those that the
    /// boss reaches.
    pub fn leave(&mut self, world: &mut World) -> usize {
        // Workers that could not be reached return with their snapshots.
        self.here.append(&mut self.away);
        let (mut left, far) = world.left_here_and_away();
        let survivors = left.len();
        self.here.append(&mut left);
        self.away = far;
        let turn = self.here.len().min(1);
        self.here.rotate_left(turn);
        survivors
    }

    /// The same in a run that takes in waiting workers: the spares, those that could not be reached
    /// and come again, and new ones. Workers that fell silent come again in this way, too. The
    /// places of survivors are reserved.
    pub fn leave_to_grow(&mut self, world: &mut World) -> usize {
        let waiting = world.injected.waiting;
        let mut came = std::mem::take(&mut self.here);
        let again = waiting.saturating_sub(came.len()).min(self.away.len());
        came.extend(self.away.drain(..again));
        came.resize_with(waiting, Kept::default);
        world.hold_back_silenced();
        let (left, mut far) = world.left_here_and_away();
        self.away.append(&mut far);
        let survivors = left.len();
        self.here = left;
        self.here.append(&mut came);
        survivors
    }
}
