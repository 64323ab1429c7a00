//! A run over all its memberships, each with its faults.

use crate::faults::Faults;
use crate::network::Conditions;
use crate::planned_faults::{InjectedFaults, PlannedFaults};
use crate::recovering_run::{recover, Counts, Reference, Run};
use crate::seeds::Log;
use crate::world::Kept;
use crate::{user, Setting};
use layerspec::LayerGraph;
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
    pub frames: u64,
    pub injected: InjectedFaults,
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
        let (mut random, mut counts) = (Random::new(self.seed), Counts::new());
        let mut run = Run::new(&self.reference, self.every, self.keeps, &mut counts);
        // The snapshots of processes that the boss reaches, and of those that it does not reach
        // yet.
        let (mut here, mut away) = (vec![Kept::default(); usize::from(self.workers())], Vec::new());
        let mut memberships: Vec<MembershipResult> = Vec::new();
        loop {
            assert!(memberships.len() < MOST_MEMBERSHIPS, "the run does not end");
            if here.is_empty() {
                here.append(&mut away);
            }
            // A new worker replaces the last one.
            here.resize_with(here.len().max(1), Kept::default);
            let way = self
                .settings
                .iter()
                .find(|way| way.workers() <= here.len())
                .expect("a way for one worker");
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
            user.world.plan_faults(faults.get(memberships.len()).cloned().unwrap_or_default());
            let spare = here.split_off(way.workers());
            user.world.bring(std::mem::replace(&mut here, spare));
            let result = run.attempt(&mut user, &mut random);
            // Earlier snapshots still arrive.
            run.record_snapshots(&mut user);
            run.note_kept(&mut user);
            user.stop();
            // Workers that could not be reached return with their snapshots.
            here.append(&mut away);
            let (mut left, far) = user.world.left_here_and_away();
            here.append(&mut left);
            away = far;
            let turn = here.len().min(1);
            here.rotate_left(turn);
            let failed = result.inspect_err(|failure| recover(&mut run, &user, failure)).is_err();
            let (events, frames) = (user.world.events, user.world.frames());
            memberships.push(MembershipResult {
                events,
                frames,
                injected: std::mem::take(&mut user.world.injected),
            });
            if !failed {
                return memberships;
            }
        }
    }
}
