//! Workers join and leave at every point of a run, and the result is that of the uncut model.

use crate::calls::{self, Call};
use crate::churn::Churn;
use crate::course::Membership;
use crate::faults::Faults;
use crate::network::Conditions;
use crate::oracle::Oracle;
use crate::seeds::{each, each_seed, Log};
use crate::strikes::Strikes;
use crate::user::User;
use crate::{models, user, Setting};
use layerspec::LayerGraph;
use pipeline::boss::{MembershipChange, Prepare, Request};
use pipeline::ids::{StageId, WorkerId};
use pipeline::message::Failure;
use pipeline::{Plan, ScheduleKind};
use std::collections::{BTreeMap, BTreeSet};
use testkit::Random;

/// What the user's side of a pool knows.
struct Pool<'g> {
    user: User<'g>,
    /// Workers that are being made ready, with the request and a stage that they get.
    preparing: BTreeMap<WorkerId, (u64, StageId)>,
    ready: BTreeMap<WorkerId, StageId>,
    followers: BTreeMap<WorkerId, WorkerId>,
    gone: BTreeSet<WorkerId>,
    unsure: bool,
}

impl Pool<'_> {
    fn is_here(&self, worker: WorkerId) -> bool {
        !self.gone.contains(&worker)
    }

    /// Takes in who has come and gone.
    fn tend(&mut self) {
        loop {
            self.take_note();
            let stage_placement = self
                .gone
                .iter()
                .fold(self.user.plan.stage_placement.clone(), |stage_placement, gone| stage_placement.without(*gone));
            let behind = self.user.world.behind.clone();
            let caught_up = |worker: &WorkerId| behind.contains(&(*worker, 0));
            let like = |guide: &WorkerId| match stage_placement.is_member(*guide) {
                true => *guide,
                false => {
                    stage_placement.of(self.user.plan.stage_placement.stages_of(*guide).next().expect("a stage"))[0]
                }
            };
            let here = self.followers.iter().filter(|(worker, _)| self.is_here(**worker));
            let here: BTreeMap<WorkerId, WorkerId> = here.map(|(worker, guide)| (*worker, like(guide))).collect();
            let (joining, mut followers): (BTreeMap<_, _>, BTreeMap<_, _>) =
                here.into_iter().partition(|(worker, _)| caught_up(worker));
            followers.extend(self.ready.iter().map(|(worker, stage)| (*worker, stage_placement.of(*stage)[0])));
            let stage_placement = stage_placement.joined_by(&joining);
            let same = stage_placement == self.user.plan.stage_placement && followers.keys().eq(self.followers.keys());
            if same && !self.unsure {
                return;
            }
            let plan = Plan { stage_placement, ..self.user.plan.clone() };
            self.user.world.churn.as_mut().expect("a pool").members = plan.stage_placement.clone();
            let membership_change = MembershipChange { plan: plan.clone(), followers: followers.clone() };
            let request = self.user.world.submit(Request::ChangeMembership(Box::new(membership_change)));
            match self.user.world.reply(request).result {
                Ok(_) => {
                    self.user.plan = plan;
                    self.ready.clear();
                    self.followers = followers;
                    self.unsure = false;
                }
                Err(failure) => {
                    // Who has caught up has the state, whether or not the others know.
                    self.user.plan = plan;
                    followers.retain(|worker, _| self.followers.contains_key(worker));
                    self.followers = followers;
                    self.mend(&failure);
                }
            }
        }
    }

    fn take_note(&mut self) {
        let churn = self.user.world.churn.as_mut().expect("a pool");
        let (arrived, gone) = (std::mem::take(&mut churn.arrived), std::mem::take(&mut churn.gone));
        self.gone.extend(gone);
        for worker in arrived.into_iter().filter(|worker| !self.gone.contains(worker)) {
            let stage_placement = &self.user.plan.stage_placement;
            // The stage with the fewest.
            let (stage, of) = stage_placement.iter().min_by_key(|(_, of)| of.len()).expect("a stage");
            let stage_placement = stage_placement.joined_by([(&worker, &of[0])]);
            let plan = Plan { stage_placement, ..self.user.plan.clone() };
            let data = self.user.data();
            let prepare = Prepare { worker, plan, files: Vec::new(), optimizer: calls::optimizer(1), data };
            let request = self.user.world.submit(Request::Prepare(Box::new(prepare)));
            self.preparing.insert(worker, (request, stage));
        }
        for (worker, (request, stage)) in self.preparing.clone() {
            if let Some(reply) = self.user.world.replied(request) {
                self.preparing.remove(&worker);
                match reply.result {
                    Ok(_) if self.is_here(worker) => drop(self.ready.insert(worker, stage)),
                    Ok(_) => {}
                    Err(failure) => assert!(failure.passing, "{worker} is not made ready: {failure}"),
                }
            }
        }
        self.ready.retain(|worker, _| !self.gone.contains(worker));
    }

    fn mend(&mut self, failure: &Failure) {
        assert!(failure.passing, "a failure that no leaving explains: {failure}");
        self.unsure = true;
    }

    /// The same call until it succeeds.
    fn call(&mut self, call: Call, oracle: &mut Oracle<'_>) {
        let expected = oracle.call(call);
        loop {
            self.tend();
            match self.user.call(call) {
                Ok(answered) => return assert_eq!(answered, expected, "{call:?} differs from the uncut model"),
                Err(failure) => self.mend(&failure),
            }
        }
    }
}

/// What happens to a pool: who comes and goes at which event, and what strikes it.
#[derive(Clone, Default, Debug)]
pub struct Fate {
    pub due: BTreeMap<u64, Option<u64>>,
    pub strikes: Strikes,
}

impl Fate {
    fn due(due: BTreeMap<u64, Option<u64>>) -> Self {
        Fate { due, ..Fate::default() }
    }
}

/// Some steps while workers come and go; gives the number of events and of frames, and what struck.
pub fn run(
    graph: &LayerGraph,
    setting: &Setting,
    seed: u64,
    conditions: Conditions,
    Fate { due, strikes }: Fate,
    log: Log,
) -> Membership {
    let mut user = user(graph, setting, seed, conditions, Faults::default(), log);
    let mut oracle = Oracle::new(graph, setting);
    for call in [Call::Distribute, Call::Optimizer(1)] {
        assert_eq!(user.call(call).expect("nobody has left"), oracle.call(call));
    }
    let stage_placement = user.plan.stage_placement.clone();
    user.world.open(Churn::new(stage_placement, due));
    user.world.strike_with(strikes);
    let mut pool = Pool {
        user,
        preparing: BTreeMap::new(),
        ready: BTreeMap::new(),
        followers: BTreeMap::new(),
        gone: BTreeSet::new(),
        unsure: false,
    };
    // Steps whose outputs nobody asks for: those of a worker that leaves would be missing.
    for step in 0..STEPS {
        pool.call(Call::Train(2 * step + 1), &mut oracle);
    }
    pool.call(Call::Digest, &mut oracle);
    pool.call(Call::State, &mut oracle);
    let mut user = pool.user;
    let (events, frames) = (user.world.events, user.world.frames());
    user.world.churn.iter_mut().for_each(Churn::end);
    let left: Vec<u64> = pool.preparing.into_values().map(|(request, _)| request).collect();
    user.world.forget(left);
    user.stop();
    Membership { events, frames, struck: std::mem::take(&mut user.world.struck) }
}

const STEPS: u64 = 8;

pub fn possible(graph: &LayerGraph, setting: &Setting) -> bool {
    setting.plan(graph).stages.iter().all(|stage| stage.tied_copies.is_empty())
}

#[test]
fn simulator_workers_join_and_leave_at_every_point() {
    let graph = models::model("skip");
    let mut random = Random::new(1);
    let mut setting = Setting::plain(&["2"], ScheduleKind::OneFOneB, 4).with_replicas(&mut random);
    (setting.replicas, setting.max_norm, setting.sharding) = (vec![2, 1], Some(500.0), None);
    let quiet = run(&graph, &setting, 5, Conditions::CALM, Fate::default(), Log::default());
    each(1..=quiet.events, |event, log| {
        let due = BTreeMap::from([(event, None), (event + 40, Some(event)), (event + 60, None)]);
        run(&graph, &setting, 5, Conditions::CALM, Fate::due(due), log);
    });
}

#[test]
fn simulator_a_pool_that_comes_and_goes() {
    let models = models::all();
    each_seed(1000, |seed, log| {
        let mut random = Random::new(seed);
        let graph = random.pick(&models);
        let mut setting = Setting::random(&mut random, graph).with_replicas(&mut random);
        // Without the action that finds norms nobody knows that all have all.
        setting.max_norm = Some(*random.pick(&[0.5, 500.0, 1e9]));
        // What is shared out is lost with who leaves.
        setting.sharding = None;
        let conditions = Conditions::random(&mut random);
        let mut due = BTreeMap::new();
        for _ in 0..1 + random.below(12) {
            let come = random.chance(55);
            due.insert(1 + random.below(2500), (!come).then(|| random.next()));
        }
        if possible(graph, &setting) {
            log.note(|| format!("{}: {setting:?}, {conditions:?}, {due:?}", graph.name()));
            run(graph, &setting, random.next(), conditions, Fate::due(due), log);
        }
    });
}
