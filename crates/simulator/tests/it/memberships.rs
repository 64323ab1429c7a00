//! A run over all its memberships, each with its faults.

use crate::faults::Faults;
use crate::last_fault::{LastFault, Spent};
use crate::network::Conditions;
use crate::planned_faults::{InjectedFaults, PlannedFault, PlannedFaults};
use crate::process::{check, Process};
use crate::processes::{Living, Processes};
use crate::recovering_run::{recover, CompletedSteps, Counts, End, Reference, Run};
use crate::seating::{newcomers, Seating};
use crate::seeds::Log;
use crate::{user, Setting};
use layerspec::LayerGraph;
use pipeline::ids::WorkerId;
use pipeline::recovery::{Check, FailedSession, RejoinWait, Rejoined, RunGrowth, Sufficiency};
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
    /// One in this many workers that come late fits in no session beside the first ones.
    unfit_one_in: Option<u64>,
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
    /// The workers that have left a pool.
    pub left: usize,
    /// Its workers. A pool, whose workers change, leaves this and what follows empty.
    pub workers: usize,
    /// The workers that join again at once.
    pub survivors: usize,
    /// Its steps, if it got its state.
    pub completed: Option<CompletedSteps>,
    /// The number of workers with which the run wanted to begin anew.
    pub grows: Option<usize>,
    /// The unfit workers.
    pub unfit: UnfitWorkers,
}

/// The unfit workers that asked for a place in a membership.
#[derive(Copy, Clone, Default)]
pub struct UnfitWorkers {
    /// Those that got none, as the run knew that they are unfit.
    pub refused: usize,
    /// Those that got none, as the desk found that they are unfit.
    pub found: usize,
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
            unfit_one_in: None,
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

    /// The same, but one in this many workers that come late is unfit beside the first ones.
    pub fn unfit_one_in(mut self, workers: u64) -> Self {
        self.unfit_one_in = Some(workers);
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
        run.growth = self.grows.then(|| RunGrowth::new(settings[0].workers()));
        run.sizes = settings.iter().map(Setting::workers).collect();
        let mut processes = Processes::new(settings[0].workers(), self.unfit_one_in);
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
                processes.resize(stay);
            }
            let unfit = self.let_in(&mut run, &mut processes, memberships.last());
            let here = processes.here.len();
            let way = match run.members.len() {
                0 => setting_for(settings, here),
                workers => setting_of(settings, workers).expect("a setting"),
            };
            // If no setting is for so few, those that are missing are lost at once.
            let missing = here..way.workers();
            log.note(|| {
                format!("membership {}: {} of {} workers", memberships.len(), way.workers(), here)
            });
            let mut user =
                user(&self.graph, way, random.next(), self.conditions, Faults::default(), log);
            let comes = |fault: &&PlannedFault| **fault == PlannedFault::Come;
            let late = faults.events.values().filter(comes).count();
            user.world.plan_faults(faults);
            processes.join(&mut user.world, way.workers());
            if let Some(growth) = &mut run.growth {
                processes.wait_in(&mut user.world, late);
                run.members.clone_from(&processes.members);
                let members = &run.members;
                assert!(!matches!(check(&run.sizes, members), Check::Unfit(_)), "{members:?}");
                growth.session_begins(members);
                run.judged.retain(|one| !members.contains(one));
            }
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
                left: 0,
                events: user.world.events,
                time: user.world.now(),
                frames: user.world.frames(),
                injected: std::mem::take(&mut user.world.injected),
                last_fault: last_fault.clone(),
                workers: way.workers(),
                survivors,
                completed: run.completed,
                unfit,
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

    /// Decides which of the processes that are here are the members of the next session of a run
    /// that takes in late workers, and moves them to the front.
    fn let_in(
        &self,
        run: &mut Run<'_>,
        processes: &mut Processes,
        last: Option<&MembershipResult>,
    ) -> UnfitWorkers {
        run.members.clear();
        let (Some(growth), Some(last)) = (&mut run.growth, last) else {
            return UnfitWorkers::default();
        };
        let lost = usize::from(last.grows.is_none());
        let last = growth.last_session(last.workers, lost);
        let mut asking: Vec<Process> = processes.here.iter().map(|living| living.process).collect();
        // A newcomer may join before the others.
        asking.rotate_right(1);
        let members = Seating { sizes: &run.sizes, last, asking }.seat();
        growth.workers_rejoined(newcomers(growth, &members));
        let mut unfit = UnfitWorkers::default();
        for Living { process, .. } in &processes.here {
            if members.contains(process) {
                continue;
            }
            if run.judged.contains(process) {
                unfit.refused += 1;
            } else if members.first().is_some_and(|one| one.device_kind != process.device_kind) {
                unfit.found += 1;
            }
        }
        processes.put_first(&members);
        run.members = members;
        unfit
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
    let of = |workers: usize| setting_of(settings, workers);
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

/// The setting for this number of workers.
fn setting_of(settings: &[Setting], workers: usize) -> Option<&Setting> {
    settings.iter().find(|way| way.workers() == workers)
}
