//! A run over all its memberships, each with its faults.

use crate::faults::Faults;
use crate::last_fault::{LastFault, Spent};
use crate::network::Conditions;
use crate::planned_faults::{InjectedFaults, PlannedFaults};
use crate::recovering_run::{recover, Counts, Reference, Run};
use crate::seeds::Log;
use crate::world::Kept;
use crate::{user, Setting};
use layerspec::LayerGraph;
use pipeline::ids::WorkerId;
use pipeline::recovery::{FailedSession, RejoinWait, Rejoined, Sufficiency};
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
}

/// The result of one membership.
pub struct MembershipResult {
    pub events: u64,
    /// The simulated time.
    pub time: u64,
    pub frames: u64,
    pub injected: InjectedFaults,
    /// The last fault of the run, as it was then.
    pub last_fault: Option<LastFault>,
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
        // The snapshots of processes that the boss reaches, and of those that it does not reach
        // yet.
        let (mut here, mut away) = (vec![Kept::default(); settings[0].workers()], Vec::new());
        let mut memberships: Vec<MembershipResult> = Vec::new();
        loop {
            assert!(memberships.len() < MOST_MEMBERSHIPS, "the run does not end");
            if here.is_empty() {
                here.append(&mut away);
            }
            // A new worker replaces the last one.
            here.resize_with(here.len().max(1), Kept::default);
            let mut faults = faults.get(memberships.len()).cloned().unwrap_or_default();
            if let Some(last) = last_fault.as_mut().filter(|last| last.is_over()) {
                faults = PlannedFaults::default();
                last.begin_membership();
                let stay = if last.only_core { last.core } else { here.len().max(last.core) };
                here.resize_with(stay, Kept::default);
            }
            let way = setting_for(settings, here.len());
            // If no setting is for so few, those that are missing are lost at once.
            let missing = here.len()..way.workers();
            log.note(|| {
                format!(
                    "membership {}: {} of {} workers",
                    memberships.len(),
                    way.workers(),
                    here.len()
                )
            });
            let mut user =
                user(&self.graph, way, random.next(), self.conditions, Faults::default(), log);
            user.world.plan_faults(faults);
            here.resize_with(here.len().max(way.workers()), Kept::default);
            let spare = here.split_off(way.workers());
            user.world.bring(std::mem::replace(&mut here, spare));
            missing.for_each(|worker| user.world.kill(WorkerId(worker as u16)));
            user.world.last_fault = last_fault.take();
            let result = run.attempt(&mut user, &mut random);
            // Earlier snapshots still arrive.
            run.record_snapshots(&mut user);
            run.note_kept(&mut user);
            user.stop();
            last_fault = user.world.last_fault.take();
            // Workers that could not be reached return with their snapshots.
            here.append(&mut away);
            let (mut left, far) = user.world.left_here_and_away();
            here.append(&mut left);
            away = far;
            let turn = here.len().min(1);
            here.rotate_left(turn);
            let failed = result.inspect_err(|failure| recover(&mut run, &user, failure)).is_err();
            memberships.push(MembershipResult {
                events: user.world.events,
                time: user.world.now(),
                frames: user.world.frames(),
                injected: std::mem::take(&mut user.world.injected),
                last_fault: last_fault.clone(),
            });
            if !failed {
                return memberships;
            }
        }
    }
}

/// The setting with which a run continues once no more workers come than are here. The last one if
/// none is for so few.
fn setting_for(settings: &[Setting], here: usize) -> &Setting {
    let all = settings[0].workers();
    let failed = FailedSession { workers: all, local: 0, lost: 0 };
    let of = |workers: usize| settings.iter().find(move |way| way.workers() == workers);
    let (since_begin, since_last) = (Duration::MAX, Duration::MAX);
    let joined = Rejoined { workers: here, has_gap: false, since_begin, since_last };
    let wait = RejoinWait::new(failed, all, |workers| of(workers).is_some());
    let way = match wait.sufficiency(joined) {
        Sufficiency::Enough(workers) => of(workers),
        _ => settings.last(),
    };
    way.expect("a setting")
}
