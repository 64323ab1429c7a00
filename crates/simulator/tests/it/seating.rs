//! Gives processes their places in the next session of a run that takes in late workers, as
//! `bossman train` does: by its growth and its join desk.

use crate::process::{check, Process};
use pipeline::ids::WorkerId;
use pipeline::recovery::{fits_beside, Applicant, Check, JoinDesk, LastSession, Next, RunGrowth};
use std::time::Duration;

/// More answers of a desk than one wait has.
const MOST_ANSWERS: usize = 100;

/// The wait for the next session of a run.
pub struct Seating<'a> {
    /// The numbers of workers with which the run can continue, the initial one first.
    pub sizes: &'a [usize],
    pub last: LastSession<Process>,
    /// The processes that ask for a place, in this order.
    pub asking: Vec<Process>,
}

impl Seating<'_> {
    /// Plays the wait to its end. Returns the members of the session by number, or none if too few
    /// ask. Else an unfit worker would end the run.
    pub fn seat(self) -> Vec<Process> {
        let members = self.ask();
        let fits = !matches!(check(self.sizes, &members), Check::Unfit(_));
        assert!(fits, "an unfit worker has a place: {members:?}");
        members
    }

    /// The members with which the desk begins a session, if these ask.
    fn ask(&self) -> Vec<Process> {
        let (sizes, places) = (self.sizes.to_vec(), self.sizes[0]);
        let fits = fits_beside(places, move |members: &[Process]| check(&sizes, members));
        let has_plan = |workers| self.sizes.contains(&workers);
        let mut desk = JoinDesk::again(places, Vec::new(), self.last.clone(), has_plan, fits);
        let mut now = Duration::ZERO;
        for _ in 0..MOST_ANSWERS {
            for process in &self.asking {
                if !desk.joined().any(|one| one.is_same_process(process)) {
                    desk.ask(now, process);
                }
            }
            match desk.poll(now) {
                Next::AskToRejoin(places) => places.into_iter().for_each(|place| desk.left(place)),
                Next::AskForMore => {}
                Next::Wait(Some(until)) => now = until,
                Next::Wait(None) => return Vec::new(),
                Next::Begin(workers) => return desk.joined().take(workers).copied().collect(),
            }
        }
        panic!("the desk does not begin with {:?} for {:?}", self.asking, self.last);
    }
}

/// The numbers of the members that may hold no state of the run.
pub fn newcomers(growth: &RunGrowth<Process>, members: &[Process]) -> Vec<WorkerId> {
    let numbered = (0..).map(WorkerId).zip(members);
    numbered.filter(|(_, one)| !is_among(one, growth.known())).map(|(worker, _)| worker).collect()
}

fn is_among(process: &Process, all: &[Process]) -> bool {
    all.iter().any(|one| one.is_same_process(process))
}
