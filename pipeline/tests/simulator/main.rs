//! A seeded simulator of a whole fleet: the sessions of the boss and its workers as plain function
//! calls, with delay, reordering, broken links, failing tasks and lost workers, compared with a plain
//! reference that computes the same uncut. A failing case is printed with its events, and
//! `BOSSMAN_SIM_SEED=7 cargo test -p pipeline --test simulator NAME` replays one seed.

#![allow(clippy::expect_used, clippy::panic, unreachable_pub, reason = "everything here is part of a test")]

mod calls;
mod compute;
mod cuts;
mod failing;
mod faults;
mod links;
mod lost;
mod math;
mod models;
mod network;
mod oracle;
#[path = "../support/random.rs"]
mod random;
mod seeds;
mod user;
mod world;

use calls::Call;
use faults::Faults;
use layerspec::LayerGraph;
use network::Conditions;
use oracle::Oracle;
use pipeline::{Cuts, Plan, ScheduleKind};
use random::Random;
use seeds::Log;
use user::User;
use world::World;

/// How a model is run.
#[derive(Clone, Debug)]
struct Setting {
    cuts: Vec<String>,
    kind: ScheduleKind,
    microbatches: u32,
}

impl Setting {
    fn plan(&self, graph: &LayerGraph) -> Plan {
        Plan::new(graph, &Cuts::At(self.cuts.clone()), self.cuts.len() + 1).expect("a cut that is allowed")
    }

    /// One of all there are.
    fn random(random: &mut Random, graph: &LayerGraph) -> Self {
        let layers = &graph.layers()[1..];
        let allowed = |cuts: &[String]| Plan::new(graph, &Cuts::At(cuts.to_vec()), cuts.len() + 1).is_ok();
        let cuts = loop {
            let stages = 1 + random.below(4);
            let mut starts: Vec<u64> = (1..stages).map(|_| random.below(layers.len() as u64)).collect();
            starts.sort();
            starts.dedup();
            let cuts: Vec<String> = starts.iter().map(|start| layers[*start as usize].name.clone()).collect();
            if allowed(&cuts) {
                break cuts;
            }
        };
        let kind = *random.pick(&[ScheduleKind::GPipe, ScheduleKind::OneFOneB]);
        Setting { cuts, kind, microbatches: *random.pick(&[1, 4, 5]) }
    }
}

/// Every cut of a model into 1 to `most` stages that leaves tied layers together.
fn every_cut(graph: &LayerGraph, most: usize) -> Vec<Vec<String>> {
    let mut cuts: Vec<Vec<String>> = vec![Vec::new()];
    for layer in &graph.layers()[1..] {
        let longer = cuts.iter().filter(|cut| cut.len() + 1 < most);
        let longer: Vec<_> = longer.map(|cut| [cut.clone(), vec![layer.name.clone()]].concat()).collect();
        cuts.extend(longer);
    }
    cuts.retain(|cut| Plan::new(graph, &Cuts::At(cut.clone()), cut.len() + 1).is_ok());
    cuts
}

/// A user with a fleet that works as `setting` says.
fn user<'g>(
    graph: &'g LayerGraph,
    setting: &Setting,
    seed: u64,
    conditions: Conditions,
    faults: Faults,
    log: Log,
) -> User<'g> {
    let plan = setting.plan(graph);
    let world = World::new(plan.clone(), seed, conditions, faults, log);
    User::new(graph, plan, setting.kind, setting.microbatches, world)
}

/// Makes calls of a fleet and of the reference; every answer must be the same.
fn compare(user: &mut User<'_>, oracle: &mut Oracle<'_>, calls: &[Call]) {
    for call in calls {
        let answered = user.call(*call).unwrap_or_else(|failure| panic!("{call:?}: {failure}"));
        assert_eq!(answered, oracle.call(*call), "{call:?} differs from the uncut model");
    }
}
