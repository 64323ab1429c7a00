//! A seeded simulator of a whole fleet. The sessions of the boss and its workers are plain function
//! calls, with delay, reordering, broken links, failing tasks and lost workers. Results are
//! compared with a simple reference that computes the same model without cuts. A failing case is
//! printed with its events, and `BOSSMAN_SIM_SEED=7 cargo test -p simulator NAME` replays one seed.
//!
//! Most tests are about safety: whatever happens, no result is wrong. `liveness.rs` is about
//! progress: faults strike until the last one, a core of workers stays, and the run must be done
//! within a bounded number of events and a bounded time.

#![allow(
    clippy::expect_used,
    clippy::panic,
    unreachable_pub,
    reason = "everything here is part of a test"
)]

mod calls;
mod churn;
mod collective;
mod compute;
mod cuts;
mod every_event;
mod failing;
mod faults;
mod growing;
mod join_player;
mod joining;
mod last_fault;
mod links;
mod liveness;
mod loading;
mod lost_workers;
mod math;
mod memberships;
mod mixed_faults;
mod models;
mod network;
mod oracle;
mod params;
mod planned_faults;
mod pool;
mod pool_faults;
mod predictions;
mod process;
mod processes;
mod recovering_run;
mod recovery;
mod regressions;
mod seating;
mod seeds;
mod state_window;
mod user;
mod world;

use calls::Call;
use faults::Faults;
use layerspec::LayerGraph;
use network::Conditions;
use oracle::Oracle;
use pipeline::replicas::{Sharding, WorkerGroups};
use pipeline::{Cuts, Placement, Plan, ScheduleKind};
use seeds::Log;
use testkit::Random;
use user::User;
use world::World;

/// The setting of a run.
#[derive(Clone, Debug)]
struct Setting {
    cuts: Vec<String>,
    kind: ScheduleKind,
    placement: Placement,
    microbatches: u32,
    max_norm: Option<f64>,
    /// The number of workers for each position of the pipeline.
    replicas: Vec<u16>,
    /// Whether gradients are summed along a tree.
    tree: bool,
    /// Whether replicas sum gradients among their compute threads.
    collective: bool,
    /// The state that replicas shard.
    sharding: Option<Sharding>,
    /// The seed of uneven assignments of microbatches, if any.
    microbatch_assignments: Option<u64>,
    /// Whether workers read inputs and targets from their own files.
    own_data: bool,
}

impl Setting {
    /// One stage on each worker.
    fn plain(cuts: &[&str], kind: ScheduleKind, microbatches: u32) -> Self {
        let cuts = cuts.iter().map(|cut| cut.to_string()).collect();
        Setting::of(cuts, kind, Placement::Plain, microbatches, None)
    }

    /// A setting without replicas.
    fn of(
        cuts: Vec<String>,
        kind: ScheduleKind,
        placement: Placement,
        microbatches: u32,
        max_norm: Option<f64>,
    ) -> Self {
        let replicas = vec![1; (cuts.len() + 1) / placement.chunks()];
        let (tree, collective, sharding, microbatch_assignments, own_data) =
            (false, false, None, None, false);
        Setting {
            cuts,
            kind,
            placement,
            microbatches,
            max_norm,
            replicas,
            tree,
            collective,
            sharding,
            microbatch_assignments,
            own_data,
        }
    }

    fn workers(&self) -> usize {
        self.replicas.iter().map(|replicas| usize::from(*replicas)).sum()
    }

    /// The same with some places doubled or trebled, and microbatches assigned unevenly.
    fn with_replicas(mut self, random: &mut Random) -> Self {
        match random.chance(50) {
            true => self.replicas.fill(1 + random.below(3) as u16),
            false => {
                self.replicas.iter_mut().for_each(|replicas| *replicas = 1 + random.below(3) as u16)
            }
        }
        self.tree = true;
        self.microbatch_assignments = random.chance(60).then(|| random.next());
        let in_order = match self.kind {
            ScheduleKind::GPipe => true,
            ScheduleKind::OneFOneB | ScheduleKind::ZbH1 => self.placement == Placement::Plain,
            ScheduleKind::Ready | ScheduleKind::Interleaved | ScheduleKind::ZbV => false,
        };
        let shardings = [Sharding::Optimizer, Sharding::Gradients, Sharding::Parameters];
        let allowed = if in_order { &shardings[..] } else { &shardings[..2] };
        self.sharding = random.chance(50).then(|| *random.pick(allowed));
        self
    }

    fn plan(&self, graph: &LayerGraph) -> Plan {
        let cuts = Cuts::At(self.cuts.clone());
        let plan = Plan::new(graph, &cuts, WorkerGroups::of(&self.replicas), self.placement)
            .expect("a cut that is allowed");
        plan.sharded(self.sharding)
    }

    /// A random setting.
    fn random(random: &mut Random, graph: &LayerGraph) -> Self {
        let layers = &graph.layers()[1..];
        let mut starts: Vec<u64> =
            (0..random.below(6)).map(|_| random.below(layers.len() as u64)).collect();
        starts.sort();
        starts.dedup();
        let cuts: Vec<String> =
            starts.iter().map(|start| layers[*start as usize].name.clone()).collect();
        let allowed: Vec<_> =
            placements(cuts.len() + 1).into_iter().filter(|(workers, ..)| *workers <= 4).collect();
        let (_, kind, placement) = *random.pick(&allowed);
        let max_norm = random.chance(40).then(|| *random.pick(&[0.5, 500.0, 1e9]));
        let mut setting =
            Setting::of(cuts, kind, placement, *random.pick(&[1, 2, 4, 5, 7]), max_norm);
        setting.own_data = random.chance(30);
        if random.chance(50) {
            setting.with_replicas(random)
        } else {
            setting
        }
    }
}

/// The settings to run `stages` stages: numbers of workers, kinds and placements.
fn placements(stages: usize) -> Vec<(usize, ScheduleKind, Placement)> {
    use ScheduleKind::{GPipe, Interleaved, OneFOneB, Ready, ZbH1, ZbV};
    let mut all: Vec<_> =
        [GPipe, OneFOneB, ZbH1, Ready].map(|kind| (stages, kind, Placement::Plain)).to_vec();
    for chunks in (2..=3).filter(|chunks| stages.is_multiple_of(*chunks)) {
        let placement = Placement::Interleaved { chunks: chunks as u16 };
        all.extend([GPipe, Interleaved, Ready].map(|kind| (stages / chunks, kind, placement)));
    }
    if stages.is_multiple_of(2) {
        all.extend([GPipe, ZbV, Ready].map(|kind| (stages / 2, kind, Placement::V)));
    }
    if stages > 4 {
        all.push((1, Ready, Placement::Interleaved { chunks: stages as u16 }));
    }
    all
}

/// Every cut of a model into 1 to `most` stages.
fn every_cut(graph: &LayerGraph, most: usize) -> Vec<Vec<String>> {
    let mut cuts: Vec<Vec<String>> = vec![Vec::new()];
    for layer in &graph.layers()[1..] {
        let longer = cuts.iter().filter(|cut| cut.len() + 1 < most);
        let longer: Vec<_> =
            longer.map(|cut| [cut.clone(), vec![layer.name.clone()]].concat()).collect();
        cuts.extend(longer);
    }
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
    User::new(graph, plan, setting, world)
}

/// Makes calls of a fleet and of the reference; every answer must be the same.
fn compare(user: &mut User<'_>, oracle: &mut Oracle<'_>, calls: &[Call]) {
    for call in calls {
        let answered = user.call(*call).unwrap_or_else(|failure| panic!("{call:?}: {failure}"));
        assert_eq!(answered, oracle.call(*call), "{call:?} differs from the uncut model");
    }
}
