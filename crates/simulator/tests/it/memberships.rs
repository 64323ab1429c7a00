//! A run over all its memberships, each with its faults.

use crate::faults::Faults;
use crate::last_fault::{LastFault, Spent};
use crate::network::Conditions;
use crate::planned_faults::{InjectedFaults, PlannedFaults};
use crate::processes::Processes;
use crate::recovering_run::{recover, CompletedSteps, Counts, End, Reference, Run};
use crate::seeds::Log;
use crate::world::{Kept, World};
use crate::{user, Setting};
use layerspec::LayerGraph;
use pipeline::ids::WorkerId;
use pipeline::recovery::{FailedSession, Growth, RejoinWait, Rejoined, Sufficiency};
use std::time::Duration;
use testkit::Random;

/// More memberships than any run here has.
const MOST_MEMBERSHIPS: usize = 12;

/// A run with faults in every membership.
pub struct MembershipRun {
    graph: LayerGraph,
    /// The settings for each number of workers, descending; the last is for one worker.
    settings: Vec<Setting>,
    reference: Reference,
    conditions: Conditions,
    /// Steps between two snapshots of the state, at the boss and at workers.
    every: u64,
    keeps: Option<u64>,
    seed: u64,
    /// Whether it takes in workers that wait.
    grows: bool,
}

/// The result of one membership.
#[derive(Default)]
pub struct MembershipResult {
    pub events: u64,
    /// The simulated time.
    pub time: u64,
    pub frames: u64,
    pub injected: InjectedFaults,
    /// The last fault of the run, as it was then.
    pub last_fault: Option<LastFault>,
    /// Its workers. A pool, whose workers change, leaves this and what follows empty.
    pub workers: usize,
    /// The workers that join again at once.
    pub survivors: usize,
    /// Its steps, if it got its state.
    pub completed: Option<CompletedSteps>,
    /// The number of workers with which the run wanted to begin anew.
    pub grows: Option<usize>,
}

impl MembershipRun {
    pub fn new(
        graph: LayerGraph,
        settings: Vec<Setting>,
        (every, keeps): (u64, Option<u64>),
        steps: u64,
    ) -> Self {
        let reference = Reference::new(&graph, &settings[0], Some(7), steps);
        MembershipRun {
            graph,
            settings,
            reference,
            conditions: Conditions::CALM,
            every,
            keeps,
            seed: 5,
            grows: false,
        }
    }

    pub fn workers(&self) -> u16 {
        self.settings[0].workers() as u16
    }

    /// The same with another network.
    pub fn under(mut self, conditions: Conditions, seed: u64) -> Self {
        (self.conditions, self.seed) = (conditions, seed);
        self
    }

    /// The same, but it takes in workers that wait.
    pub fn growing(mut self) -> Self {
        self.grows = true;
        self
    }

    /// Plays the run to its end. The results must equal those of a run without faults.
    pub fn play(&self, faults: &[PlannedFaults], log: Log) -> Vec<MembershipResult> {
        self.play_with(&self.settings, faults, None, log)
    }

    /// The same, with a bound after the last fault. Returns the progress since, at the end.
    pub fn play_until(
        &self,
        faults: &[PlannedFaults],
        last_fault: LastFault,
        log: Log,
    ) -> LastFault {
        let mut memberships = self.play_with(&self.settings, faults, Some(last_fault), log);
        memberships.pop().and_then(|last| last.last_fault).expect("what was given")
    }

    /// The most that a run without faults takes, over all numbers of workers.
    pub fn quiet(&self) -> Spent {
        let mut most = Spent::default();
        for way in &self.settings {
            let quiet = self.play_with(std::slice::from_ref(way), &[], None, Log::default());
            assert_eq!(quiet.len(), 1, "a run without faults fails");
            most.events = most.events.max(quiet[0].events);
            most.time = most.time.max(quiet[0].time);
        }
        most
    }

    fn play_with(
        &self,
        settings: &[Setting],
        faults: &[PlannedFaults],
        mut last_fault: Option<LastFault>,
        log: Log,
    ) -> Vec<MembershipResult> {
        let (mut random, mut counts) = (Random::new(self.seed), Counts::new());
        let mut run = Run::new(&self.reference, self.every, self.keeps, &mut counts);
        run.growth = self.grows.then(|| Growth::new(settings[0].workers()));
        run.sizes = settings.iter().map(Setting::workers).collect();
        let mut processes = Processes::new(settings[0].workers());
        let mut memberships: Vec<MembershipResult> = Vec::new();
        loop {
            assert!(memberships.len() < MOST_MEMBERSHIPS, "the run does not end");
            processes.replenish();
            let mut faults = faults.get(memberships.len()).cloned().unwrap_or_default();
            if let Some(last) = last_fault.as_mut().filter(|last| last.is_over()) {
                faults = PlannedFaults::default();
                last.begin_membership();
                let here = processes.here.len();
                let stay = if last.only_core { last.core } else { here.max(last.core) };
                processes.here.resize_with(stay, Kept::default);
            }
            let here = processes.here.len();
            let way = setting_for(settings, here);
            // If no setting is for so few, those that are missing are lost at once.
            let missing = here..way.workers();
            log.note(|| {
                format!("membership {}: {} of {} workers", memberships.len(), way.workers(), here)
            });
            let mut user =
                user(&self.graph, way, random.next(), self.conditions, Faults::default(), log);
            user.world.plan_faults(faults);
            self.join(&mut user.world, &mut processes, way.workers());
            missing.for_each(|worker| user.world.kill(WorkerId(worker as u16)));
            user.world.last_fault = last_fault.take();
            let result = run.attempt(&mut user, &mut random);
            // Earlier snapshots still arrive.
            run.record_snapshots(&mut user);
            run.note_kept(&mut user);
            user.stop();
            last_fault = user.world.last_fault.take();
            let survivors = match self.grows {
                true => processes.leave_to_grow(&mut user.world),
                false => processes.leave(&mut user.world),
            };
            let end = result.inspect_err(|failure| recover(&mut run, &user, failure)).ok();
            memberships.push(MembershipResult {
                events: user.world.events,
                time: user.world.now(),
                frames: user.world.frames(),
                injected: std::mem::take(&mut user.world.injected),
                last_fault: last_fault.clone(),
                workers: way.workers(),
                survivors,
                completed: run.completed,
                grows: match end {
                    Some(End::Grows(workers)) => Some(workers),
                    Some(End::Done) | None => None,
                },
            });
            if end == Some(End::Done) {
                self.check_growth(&memberships);
                return memberships;
            }
        }
    }

    /// Lets processes join a world as its workers.
    fn join(&self, world: &mut World, processes: &mut Processes, workers: usize) {
        let mut joined = processes.join(workers);
        if self.grows {
            // A newcomer may join before the others, and spares ask for a place all the time.
            joined.rotate_right(1);
            world.injected.waiting = processes.here.len();
        }
        world.bring(joined);
    }

    /// Checks that growth repeats no step. Only survivors that are lost on the way, with the
    /// snapshot that they store, may cost some.
    fn check_growth(&self, memberships: &[MembershipResult]) {
        for pair in memberships.windows(2) {
            let [before, after] = pair else { continue };
            let (Some(held), Some(resumed)) = (before.completed, after.completed) else { continue };
            let is_stored = self.keeps.is_none() || before.survivors == before.workers;
            if before.grows.is_some() && is_stored {
                assert_eq!(resumed.from, held.until, "growth repeats steps");
            }
        }
    }
}

/// The setting with which a run continues once no more workers come than are here. The last one if
/// none is for so few.
fn setting_for(settings: &[Setting], here: usize) -> &Setting {
    let all = settings[0].workers();
    let failed = FailedSession { workers: all, local: 0, lost: 0, newcomers: 0 };
    let of = |workers: usize| settings.iter().find(move |way| way.workers() == workers);
    let (since_begin, since_last) = (Duration::MAX, Duration::MAX);
    let (workers, known) = (here, here);
    let joined = Rejoined { workers, known, has_gap: false, since_begin, since_last };
    let wait = RejoinWait::new(failed, all, |workers| of(workers).is_some());
    let way = match wait.sufficiency(joined) {
        Sufficiency::Enough(workers) => of(workers),
        _ => settings.last(),
    };
    way.expect("a setting")
}
