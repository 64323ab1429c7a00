//! A run over all its memberships, each with what strikes it.

use crate::faults::Faults;
use crate::going_on::{check, Counts, Reference, Run};
use crate::network::Conditions;
use crate::seeds::Log;
use crate::strikes::{Strikes, Struck};
use crate::world::Kept;
use crate::{user, Setting};
use layerspec::LayerGraph;
use testkit::Random;

/// No run here has as many.
const MOST_MEMBERSHIPS: usize = 12;

/// How a run goes that is struck again and again in different ways.
pub struct Course {
    graph: LayerGraph,
    /// How the model is run, on as many workers as there are or fewer; the last is for one.
    ways: Vec<Setting>,
    reference: Reference,
    conditions: Conditions,
    /// After every so many steps the boss has a copy, and workers have one.
    every: u64,
    keeps: Option<u64>,
    seed: u64,
}

/// What came of one membership.
pub struct Membership {
    pub events: u64,
    pub frames: u64,
    pub struck: Struck,
}

impl Course {
    pub fn new(graph: LayerGraph, ways: Vec<Setting>, (every, keeps): (u64, Option<u64>), steps: u64) -> Self {
        let reference = Reference::new(&graph, &ways[0], Some(7), steps);
        Course { graph, ways, reference, conditions: Conditions::CALM, every, keeps, seed: 5 }
    }

    pub fn workers(&self) -> u16 {
        self.ways[0].workers() as u16
    }

    /// The same with another network.
    pub fn under(mut self, conditions: Conditions, seed: u64) -> Self {
        (self.conditions, self.seed) = (conditions, seed);
        self
    }

    /// Plays the run to its end, which must be that of a run which nothing strikes.
    pub fn play(&self, strikes: &[Strikes], log: Log) -> Vec<Membership> {
        let (mut random, mut counts) = (Random::new(self.seed), Counts::new());
        let mut run = Run::new(&self.reference, self.every, self.keeps, &mut counts);
        // What the processes keep that are there, and of those that the boss cannot reach yet.
        let (mut here, mut away) = (vec![Kept::default(); usize::from(self.workers())], Vec::new());
        let mut memberships: Vec<Membership> = Vec::new();
        loop {
            assert!(memberships.len() < MOST_MEMBERSHIPS, "the run does not end");
            if here.is_empty() {
                here.append(&mut away);
            }
            // Somebody comes in the place of the last.
            here.resize_with(here.len().max(1), Kept::default);
            let way = self.ways.iter().find(|way| way.workers() <= here.len()).expect("a way for one worker");
            log.note(|| format!("membership {}: {} of {} workers", memberships.len(), way.workers(), here.len()));
            let mut user = user(&self.graph, way, random.next(), self.conditions, Faults::default(), log);
            user.world.strike_with(strikes.get(memberships.len()).cloned().unwrap_or_default());
            let spare = here.split_off(way.workers());
            user.world.bring(std::mem::replace(&mut here, spare));
            let result = run.attempt(&mut user, &mut random);
            // What was copied before still comes.
            run.take_note(&mut user);
            run.note_kept(&mut user);
            user.stop();
            // Who could not be reached before comes again, with whatever it keeps.
            here.append(&mut away);
            let (mut left, far) = user.world.left_here_and_away();
            here.append(&mut left);
            away = far;
            let turn = here.len().min(1);
            here.rotate_left(turn);
            let failed = result.inspect_err(|failure| check(&user, failure)).is_err();
            let (events, frames) = (user.world.events, user.world.frames());
            memberships.push(Membership { events, frames, struck: std::mem::take(&mut user.world.struck) });
            if !failed {
                return memberships;
            }
        }
    }
}
