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
    /// The processes that the run has judged unfit.
    pub judged: &'a [Process],
    /// The processes that ask for a place, in this order.
    pub asking: Vec<Process>,
}

/// The workers of the next session.
#[derive(Default)]
pub struct Seated {
    /// Its members, by number. Empty if too few ask.
    pub members: Vec<Process>,
    /// The number of unfit workers that got a place because nobody had judged them, and that the
    /// user ended.
    pub ended: usize,
}

impl Seating<'_> {
    /// Plays the wait to its end. A session beside an unfit worker that was not judged would end
    /// the run, so its user ends that worker and resumes the run.
    pub fn seat(mut self) -> Seated {
        let mut ended = 0;
        loop {
            let members = self.ask();
            let Check::Unfit(_) = check(self.sizes, &members) else {
                return Seated { members, ended };
            };
            let is_judged = |one: &Process| is_among(one, self.judged);
            assert!(!members.iter().any(is_judged), "an unfit worker has a place: {members:?}");
            let (known, newcomers) = (&self.last.known, &self.last.newcomers);
            let stays = members.iter().find(|one| is_among(one, known)).unwrap_or(&members[0]);
            let is_ended =
                |one: &Process| is_among(one, &members) && one.device_kind != stays.device_kind;
            assert!(!newcomers.iter().any(is_ended), "an unfit worker was taken in: {members:?}");
            let before = self.asking.len();
            self.asking.retain(|one| !is_ended(one));
            ended += before - self.asking.len();
        }
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
