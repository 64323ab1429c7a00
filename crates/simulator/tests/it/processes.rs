//! The processes of workers between two memberships of a run, each with the snapshots that it
//! stores.

use crate::process::Process;
use crate::world::{Kept, LeftWorker, World};

/// A process that is alive.
pub struct Living {
    pub process: Process,
    kept: Kept,
}

/// The processes of a run.
pub struct Processes {
    /// Those that take no part in the membership and that the boss reaches.
    pub here: Vec<Living>,
    /// Those that it does not reach yet.
    away: Vec<Living>,
    /// Those of the membership, by number.
    pub members: Vec<Process>,
    /// The number of the next new process.
    next: u64,
    /// One in this many processes that come late has another device than the first ones.
    unlike_one_in: Option<u64>,
}

impl Processes {
    pub fn new(workers: usize, unlike_one_in: Option<u64>) -> Self {
        let (here, away, members) = (Vec::new(), Vec::new(), Vec::new());
        let mut processes = Processes { here, away, members, next: 0, unlike_one_in };
        processes.fill(workers);
        processes
    }

    /// Starts processes like the first ones until this number is here.
    fn fill(&mut self, workers: usize) {
        while self.here.len() < workers {
            let process = Process { number: self.next, device_kind: 0 };
            self.next += 1;
            self.here.push(Living { process, kept: Kept::default() });
        }
    }

    /// Ends or starts processes so that this number is here.
    pub fn resize(&mut self, workers: usize) {
        self.here.truncate(workers);
        self.fill(workers);
    }

    /// Brings at least one process here.
    pub fn replenish(&mut self) {
        if self.here.is_empty() {
            self.here.append(&mut self.away);
        }
        // A new worker replaces the last one.
        self.fill(1);
    }

    /// Takes the first processes as the members of a membership with this number of workers. The
    /// others stay as spares.
    pub fn join(&mut self, world: &mut World, workers: usize) {
        self.fill(workers);
        let spare = self.here.split_off(workers);
        let joined = std::mem::replace(&mut self.here, spare);
        self.members = joined.iter().map(|living| living.process).collect();
        world.bring(joined.into_iter().map(|living| living.kept).collect());
    }

    /// Moves these processes to the front, in this order.
    pub fn put_first(&mut self, members: &[Process]) {
        let place = |living: &Living| members.iter().position(|one| *one == living.process);
        self.here.sort_by_key(|living| place(living).unwrap_or(members.len()));
    }

    /// The spares ask for a place all the time. After them come `late` others: first those that
    /// could not be reached, then new ones.
    pub fn wait_in(&mut self, world: &mut World, late: usize) {
        world.injected.waiting = self.here.iter().map(|living| living.process).collect();
        let away = self.away.iter().map(|living| living.process);
        world.injected.late = away.take(late).collect();
        while world.injected.late.len() < late {
            let is_unlike = self.unlike_one_in.is_some_and(|each| self.next.is_multiple_of(each));
            let process = Process { number: self.next, device_kind: u64::from(is_unlike) };
            self.next += 1;
            world.injected.late.push_back(process);
        }
    }

    /// Takes back the processes of a membership that is over. Returns the number of those that the
    /// boss reaches.
    pub fn leave(&mut self, world: &mut World) -> usize {
        // Workers that could not be reached return with their snapshots.
        self.here.append(&mut self.away);
        let (mut left, far) = self.left(world);
        let survivors = left.len();
        self.here.append(&mut left);
        self.away = far;
        let turn = self.here.len().min(1);
        self.here.rotate_left(turn);
        survivors
    }

    /// The same in a run that takes in waiting workers: the spares, those that could not be reached
    /// and come again, and new ones. Workers that fell silent come again in this way, too.
    pub fn leave_to_grow(&mut self, world: &mut World) -> usize {
        let waiting = std::mem::take(&mut world.injected.waiting);
        let spares = std::mem::take(&mut self.here);
        let (came, away): (Vec<Living>, Vec<Living>) = std::mem::take(&mut self.away)
            .into_iter()
            .partition(|living| waiting.contains(&living.process));
        self.away = away;
        let mut alive: Vec<Living> = spares.into_iter().chain(came).collect();
        world.hold_back_silenced();
        let (left, mut far) = self.left(world);
        self.away.append(&mut far);
        let survivors = left.len();
        self.here = left;
        for process in waiting {
            let place = alive.iter().position(|living| living.process == process);
            let new = || Living { process, kept: Kept::default() };
            self.here.push(place.map_or_else(new, |place| alive.swap_remove(place)));
        }
        survivors
    }

    /// The members that are alive, and separately those that cannot be reached yet.
    fn left(&self, world: &mut World) -> (Vec<Living>, Vec<Living>) {
        let (here, away) = world.left_here_and_away();
        let living = |left: LeftWorker| Living {
            process: self.members[usize::from(left.worker.0)],
            kept: left.kept,
        };
        (here.into_iter().map(living).collect(), away.into_iter().map(living).collect())
    }
}
