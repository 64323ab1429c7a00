//! Workers join and leave at every point of a run, and the result is that of the uncut model.

use crate::calls::{self, Call};
use crate::churn::Churn;
use crate::faults::Faults;
use crate::last_fault::LastFault;
use crate::memberships::MembershipResult;
use crate::network::Conditions;
use crate::oracle::Oracle;
use crate::planned_faults::PlannedFaults;
use crate::seeds::{each, each_seed, Log};
use crate::user::User;
use crate::{models, user, Setting};
use layerspec::LayerGraph;
use pipeline::boss::{Instruction, MembershipChange, Prepare};
use pipeline::ids::{StageId, WorkerId};
use pipeline::membership::{Change, Decision, Membership, Position, Process, StepDone, StepTimes};
use pipeline::message::Failure;
use pipeline::recovery::{Cause, Remedy};
use pipeline::replicas::{MicrobatchAssignment, Speed};
use pipeline::{Plan, ScheduleKind};
use std::collections::BTreeMap;
use testkit::Random;

/// Updates in one call, so that an evicted worker is soon tried again.
const UPDATES: u64 = 100;

/// The user's side of a pool: carries out what its membership decides.
struct Pool<'g> {
    user: User<'g>,
    membership: Membership,
    /// The requests to prepare workers.
    preparing: BTreeMap<WorkerId, u64>,
    /// A worker that slows the others down, if any.
    slow: Option<WorkerId>,
    /// The number of completed calls.
    completed: u64,
}

impl Pool<'_> {
    /// Applies joins and leaves.
    fn update(&mut self) {
        loop {
            self.take_events();
            let change = self.decide();
            while let Some(decision) = self.membership.poll_decision() {
                self.carry_out(decision);
            }
            let Some(Change { placement, followers }) = change.clone() else { return };
            self.user.world.churn.as_mut().expect("a pool").members = placement.clone();
            let plan = Plan { stage_placement: placement, ..self.user.plan.clone() };
            let request = Box::new(MembershipChange { plan, followers });
            let request = self.user.world.submit(request);
            let change = change.expect("a change");
            match self.user.world.reply(request).result {
                Ok(_) => self.membership.on_changed(change, self.behind()),
                Err(failure) => {
                    self.recover(&failure);
                    self.membership.on_change_failed(change);
                }
            }
            self.user.plan.stage_placement = self.membership.placement().clone();
        }
    }

    fn take_events(&mut self) {
        let churn = self.user.world.churn.as_mut().expect("a pool");
        let (arrived, gone) = (std::mem::take(&mut churn.arrived), std::mem::take(&mut churn.gone));
        for worker in arrived {
            self.membership.on_joined(worker, process(worker));
        }
        for worker in std::mem::take(&mut churn.leaving) {
            self.membership.on_leaving(worker);
        }
        for worker in gone {
            self.membership.on_left(worker, "it is gone");
        }
        for (worker, request) in self.preparing.clone() {
            let Some(reply) = self.user.world.replied(request) else { continue };
            self.preparing.remove(&worker);
            if let Err(failure) = &reply.result {
                let cause = Cause::of(failure);
                assert_eq!(cause, Cause::Lost, "{worker} is not prepared: {failure}");
            }
            self.membership.on_prepared(worker, reply.result.map(drop));
        }
    }

    /// The next change of members. A worker is slow only while its replicas live, so that the last
    /// worker of a stage is not evicted.
    fn decide(&mut self) -> Option<Change> {
        let User { plan, world, microbatches, .. } = &self.user;
        let others_live = |slow: WorkerId| {
            let members = plan.stage_placement.members();
            members.iter().all(|worker| *worker == slow || world.alive(*worker))
        };
        let slow = self.slow.filter(|slow| others_live(*slow));
        let speed = |_: StageId, worker| Speed::from(if Some(worker) == slow { 1000 } else { 1 });
        let times = StepTimes { stages: &plan.stages, microbatches: *microbatches, speed: &speed };
        self.membership
            .update(&times)
            .unwrap_or_else(|failure| panic!("not done: {failure}; {}", world.waits_for()))
    }

    fn carry_out(&mut self, decision: Decision) {
        let world = &mut self.user.world;
        world.log.note(|| format!("{:>9} {decision:?}", world.now()));
        match decision {
            Decision::Prepare { worker, placement } => {
                let plan = Plan { stage_placement: placement, ..self.user.plan.clone() };
                let (optimizer, data) = (calls::optimizer(1), self.user.data());
                let prepare = Prepare { worker, plan, files: Vec::new(), optimizer, data };
                let request = self.user.world.submit(Instruction::Prepare(Box::new(prepare)));
                self.preparing.insert(worker, request);
            }
            Decision::Disconnect { worker, .. } => world.disconnect(worker),
            Decision::Notice(_) | Decision::ForgetTimes(_) => {}
        }
    }

    fn recover(&mut self, failure: &Failure) {
        let remedy = self.membership.on_failure(failure);
        assert_eq!(remedy, Remedy::Repeat, "a failure that no leaving explains: {failure}");
    }

    fn behind(&self) -> BTreeMap<WorkerId, usize> {
        self.user.world.behind.iter().copied().collect()
    }

    /// Repeats a call until it succeeds.
    fn call(&mut self, call: Call, oracle: &mut Oracle<'_>) {
        let expected = oracle.call(call);
        loop {
            self.update();
            match self.user.call(call) {
                Ok(answered) => {
                    assert_eq!(answered, expected, "{call:?} differs from the uncut model");
                    return self.completed();
                }
                Err(failure) => self.recover(&failure),
            }
        }
    }

    fn completed(&mut self) {
        self.completed += 1;
        let (step, microbatches) = (self.completed, self.user.microbatches);
        let assignment = MicrobatchAssignment::even(self.membership.placement(), microbatches);
        self.membership.set_position(Position { step, updates: step * UPDATES });
        self.membership.on_step(StepDone {
            step,
            samples: microbatches.into(),
            microbatches,
            assignment: &assignment,
            behind: self.behind(),
        });
    }
}

/// The process of a worker. None comes twice. As in containers, all have one process id.
fn process(worker: WorkerId) -> Process {
    Process { id: 1, instance: worker.0.into(), ..Process::default() }
}

/// The joins, leaves and faults of a pool, by event.
#[derive(Clone, Default, Debug)]
pub struct Scenario {
    pub due: BTreeMap<u64, Option<u64>>,
    /// The workers that are told to go, by event.
    pub told: BTreeMap<u64, WorkerId>,
    pub faults: PlannedFaults,
    /// A worker that slows the others down, if any.
    pub slow: Option<WorkerId>,
    /// The last fault, if progress after it is bounded. Its core stays from the beginning.
    pub last_fault: Option<LastFault>,
}

impl Scenario {
    fn due(due: BTreeMap<u64, Option<u64>>) -> Self {
        Scenario { due, ..Scenario::default() }
    }
}

/// Some steps while workers join and leave. Returns the numbers of events and of frames, and the
/// injected faults.
pub fn run(
    graph: &LayerGraph,
    setting: &Setting,
    seed: u64,
    conditions: Conditions,
    Scenario { due, told, faults, slow, last_fault }: Scenario,
    log: Log,
) -> MembershipResult {
    let mut user = user(graph, setting, seed, conditions, Faults::default(), log);
    let mut oracle = Oracle::new(graph, setting);
    for call in [Call::Distribute, Call::Optimizer(1)] {
        assert_eq!(user.call(call).expect("nobody has left"), oracle.call(call));
    }
    let placement = user.plan.stage_placement.clone();
    let mut churn = Churn::new(placement.clone(), due);
    churn.told = told;
    churn.core = last_fault.as_ref().map_or(churn.core, |last_fault| last_fault.core);
    user.world.open(churn);
    user.world.plan_faults(faults);
    user.world.last_fault = last_fault;
    let processes = placement.members().into_iter().map(|worker| (worker, process(worker)));
    let membership = Membership::new(placement, processes.collect());
    let mut pool = Pool { user, membership, preparing: BTreeMap::new(), slow, completed: 0 };
    // The steps request no outputs, because those of a worker that leaves would be missing.
    for step in 0..if slow.is_some() { STEPS_IF_SLOW } else { STEPS } {
        pool.call(Call::Train(2 * step + 1), &mut oracle);
    }
    pool.call(Call::Digest, &mut oracle);
    pool.call(Call::State, &mut oracle);
    let left = pool.membership.members().filter(|(_, member)| member.state.has_left()).count();
    let mut user = pool.user;
    let (events, frames) = (user.world.events, user.world.frames());
    user.world.churn.iter_mut().for_each(Churn::end);
    user.world.forget(pool.preparing.into_values().collect());
    user.stop();
    MembershipResult {
        events,
        time: user.world.now(),
        frames,
        injected: std::mem::take(&mut user.world.injected),
        left,
        last_fault: user.world.last_fault.take(),
        ..MembershipResult::default()
    }
}

const STEPS: u64 = 8;
/// More steps, in which a slow worker is evicted, tried again, and becomes active.
const STEPS_IF_SLOW: u64 = 14;

pub fn possible(graph: &LayerGraph, setting: &Setting) -> bool {
    setting.plan(graph).stages.iter().all(|stage| stage.tied_copies.is_empty())
}

#[test]
fn simulator_workers_join_and_leave_at_every_point() {
    let graph = models::model("skip");
    let mut random = Random::new(1);
    let mut setting = Setting::plain(&["2"], ScheduleKind::OneFOneB, 4).with_replicas(&mut random);
    (setting.replicas, setting.max_norm, setting.sharding) = (vec![2, 1], Some(500.0), None);
    let quiet = run(&graph, &setting, 5, Conditions::CALM, Scenario::default(), Log::default());
    each(1..=quiet.events, |event, log| {
        let due = BTreeMap::from([(event, None), (event + 40, Some(event)), (event + 60, None)]);
        run(&graph, &setting, 5, Conditions::CALM, Scenario::due(due), log);
    });
}

/// The event by which a run of two workers has opened its pool.
const OPEN_BY: u64 = 20;

/// A worker that is told to go, and alone has a stage, hands it over to one that has just come and
/// is on its way there. In every other run that one goes soon, and another one comes.
#[test]
fn simulator_the_last_worker_of_a_stage_hands_it_over() {
    let graph = models::model("skip");
    let mut random = Random::new(1);
    let mut setting = Setting::plain(&["2"], ScheduleKind::OneFOneB, 4).with_replicas(&mut random);
    (setting.replicas, setting.max_norm, setting.sharding) = (vec![1, 1], Some(500.0), None);
    let quiet = run(&graph, &setting, 5, Conditions::CALM, Scenario::default(), Log::default());
    each(OPEN_BY..=quiet.events, |event, log| {
        let told = BTreeMap::from([(event + 1, WorkerId(0))]);
        let mut due = BTreeMap::from([(event, None)]);
        if event % 2 == 1 {
            // Worker 2 is the only one without which the others can go on.
            due.extend([(event + 30, Some(1)), (event + 40, None)]);
        }
        let scenario = Scenario { due, told, ..Scenario::default() };
        let result = run(&graph, &setting, 5, Conditions::CALM, scenario, log);
        // Later, the run may end first.
        assert!(result.left == 1 || event > quiet.events / 2, "it has not handed over");
    });
}

#[test]
fn simulator_a_pool_that_comes_and_goes() {
    let models = models::all();
    each_seed(1000, |seed, log| {
        let mut random = Random::new(seed);
        let graph = random.pick(&models);
        let mut setting = Setting::random(&mut random, graph).with_replicas(&mut random);
        // Only norms prove that every worker has all gradients.
        setting.max_norm = Some(*random.pick(&[0.5, 500.0, 1e9]));
        // Shards are lost when their workers leave.
        setting.sharding = None;
        let conditions = Conditions::random(&mut random);
        let mut due = BTreeMap::new();
        for _ in 0..1 + random.below(12) {
            let come = random.chance(55);
            due.insert(1 + random.below(2500), (!come).then(|| random.next()));
        }
        if possible(graph, &setting) {
            let slow = WorkerId(random.below(setting.workers() as u64) as u16);
            let slow = random.chance(50).then_some(slow);
            let scenario = Scenario { due, slow, ..Scenario::default() };
            log.note(|| format!("{}: {setting:?}, {conditions:?}, {scenario:?}", graph.name()));
            run(graph, &setting, random.next(), conditions, scenario, log);
        }
    });
}
