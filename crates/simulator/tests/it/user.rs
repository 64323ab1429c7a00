//! The user's side: turns calls into requests with their tensors, and waits for answers.

mod state;

use crate::calls::{self, Answered, Call};
use crate::world::World;
use crate::Setting;
use layerspec::LayerGraph;
use pipeline::boss::{
    Digest, Instruction, IntoRequest, ListSnapshots, MakeIds, Measure, Request, RunRequest,
    SendState, SnapshotRequest,
};
use pipeline::ids::{StageId, WorkerId};
use pipeline::message::{Failure, Mode, Reduction, RoundLoss};
use pipeline::peer_snapshot::{neighbours, recall, CompleteSnapshot, SnapshotId};
use pipeline::replicas::MicrobatchAssignment;
use pipeline::round_outputs::RoundOutputs;
use pipeline::samples::{DataSpec, Samples};
use pipeline::schedule::{Action, Ending, Order, Terms};
use pipeline::watch::{FiniteCheck, Watch};
use pipeline::{ModelParameters, Plan, ScheduleKind, StateForm};
pub use state::together;
use std::collections::BTreeMap;
use testkit::Random;

/// A user with a fleet.
pub struct User<'g> {
    pub world: World,
    graph: &'g LayerGraph,
    parameters: ModelParameters,
    pub plan: Plan,
    kind: ScheduleKind,
    pub microbatches: u32,
    max_norm: Option<f64>,
    reduction: Reduction,
    /// Draws the assignments of microbatches; None if replicas get equal shares.
    microbatch_assignments: Option<Random>,
    /// The number of the last batch.
    batch: u64,
    /// The batches of steps carried out by hand.
    open: BTreeMap<u64, (u64, MicrobatchAssignment)>,
    /// The requests without a waiting caller.
    gathers: Vec<u64>,
    own_data: bool,
    /// The result of the last `State`, for `Load`, and of the last `Checkpoint`, for `Resume`.
    state: BTreeMap<String, u64>,
    pub kept: BTreeMap<String, u64>,
}

/// The tensors of a round, to and from the workers.
struct With {
    data: bool,
    loss: bool,
    outputs: bool,
}

impl<'g> User<'g> {
    pub fn new(graph: &'g LayerGraph, plan: Plan, setting: &Setting, world: World) -> Self {
        let (open, state, kept, gathers) =
            (BTreeMap::new(), BTreeMap::new(), BTreeMap::new(), Vec::new());
        let Setting {
            kind,
            microbatches,
            max_norm,
            tree,
            collective,
            microbatch_assignments,
            own_data,
            ..
        } = *setting;
        let reduction = match (tree, collective) {
            (_, true) => Reduction::Collective,
            (true, false) => Reduction::Tree,
            (false, false) => Reduction::Sequential,
        };
        let microbatch_assignments = microbatch_assignments.map(Random::new);
        let batch = 0;
        User {
            world,
            graph,
            parameters: ModelParameters::of(graph),
            plan,
            kind,
            microbatches,
            max_norm,
            reduction,
            microbatch_assignments,
            batch,
            open,
            gathers,
            own_data,
            state,
            kept,
        }
    }

    /// Calls, and waits for the answer.
    pub fn call(&mut self, call: Call) -> Result<Answered, Failure> {
        if let Call::Resume(lr) = call {
            return self.resume(lr);
        }
        if let Some(gather) =
            self.gather().filter(|_| matches!(call, Call::State | Call::Checkpoint))
        {
            let request = self.world.submit(gather);
            self.world.reply(request).result?;
        }
        let request = self.submit_alone(call);
        let mut result = self.world.reply(request).result;
        if let (Some(open), true) =
            (self.open_data().filter(|_| call == Call::Distribute), result.is_ok())
        {
            let request = self.world.submit(open);
            result = self.world.reply(request).result;
        }
        match (call, &mut result) {
            (Call::State, Ok(answered)) => self.state.clone_from(&answered.state),
            (Call::Checkpoint, Ok(answered)) => {
                answered.state = together(std::mem::take(&mut answered.state));
                self.kept.clone_from(&answered.state);
            }
            _ => {}
        }
        result
    }

    /// Ends the run. Checks that it ends everywhere and that nothing remains.
    pub fn stop(&mut self) {
        self.world.settle();
        for request in std::mem::take(&mut self.gathers) {
            self.world.reply(request);
        }
        if self.world.injected.boss_killed {
            return;
        }
        let request = self.world.submit(Instruction::Stop);
        self.world.reply(request).result.expect("a stop is always carried out");
        self.world.settle();
        self.world.assert_over();
    }

    /// Calls without waiting.
    pub fn submit(&mut self, call: Call) -> u64 {
        // If it fails, the next call fails, too.
        if let Some(gather) =
            self.gather().filter(|_| matches!(call, Call::State | Call::Checkpoint))
        {
            self.gathers.push(self.world.submit(gather));
        }
        let request = self.submit_alone(call);
        if let Some(open) = self.open_data().filter(|_| call == Call::Distribute) {
            self.gathers.push(self.world.submit(open));
        }
        request
    }

    /// The request to open the data; None without data.
    fn open_data(&self) -> Option<Instruction> {
        self.own_data.then(|| Instruction::OpenData(Box::new(calls::own_data(self.graph))))
    }

    /// The data that a new worker opens.
    pub fn data(&self) -> Vec<DataSpec> {
        self.own_data.then(|| calls::own_data(self.graph)).into_iter().collect()
    }

    /// Makes the communicators of replicas, if all of them are connected.
    fn find_replicas(&mut self) {
        let made = self.world.submit(MakeIds);
        if let Ok(answered) = self.world.reply(made).result {
            let found = self.world.submit(Instruction::Communicate(answered.unique_ids));
            self.world.reply(found).result.ok();
        }
    }

    fn submit_alone(&mut self, call: Call) -> u64 {
        // A failure ends the communicators.
        if self.reduction.is_collective()
            && matches!(call, Call::Train(_) | Call::Gather(_) | Call::Backward(_))
        {
            self.find_replicas();
        }
        let request = match call {
            Call::Distribute => Instruction::Distribute.into_request(),
            Call::Optimizer(lr) => Instruction::SetOptimizer(calls::optimizer(lr)).into_request(),
            Call::State => {
                SendState { stage: None, optimizer: false, form: StateForm::Slices }.into_request()
            }
            Call::Checkpoint => {
                SendState { stage: None, optimizer: true, form: StateForm::Slices }.into_request()
            }
            Call::Load(salt) => self.load(salt),
            Call::Resume(_) => unreachable!("its requests wait for each other"),
            Call::Train(step) => {
                let ending = self.ending();
                self.train(step, ending)
            }
            Call::Gather(step) => self.train(step, Ending::Gather),
            Call::Digest => Digest.into_request(),
            Call::Measure => Measure(calls::probes(self.graph)).into_request(),
            Call::Eval(step) if step.is_multiple_of(2) => {
                // The assignment of whole batches in evaluation.
                let microbatch_assignment = self
                    .plan
                    .assign_batches(self.microbatches, |_, _| pipeline::replicas::Speed::from(1));
                let actions =
                    self.gathered(self.plan.forwards(&microbatch_assignment, self.microbatches));
                self.run(
                    step,
                    Mode::Eval,
                    actions,
                    microbatch_assignment,
                    With { data: true, loss: true, outputs: true },
                )
            }
            Call::Eval(step) => {
                // The order of forward passes is free, as long as it is the same everywhere.
                let last = self.microbatches - 1;
                let forward =
                    |stage, microbatch| Action::Forward { stage, microbatch: last - microbatch };
                let microbatch_assignment = self.microbatch_assignment();
                let actions = self.gathered(self.actions(&microbatch_assignment, true, forward));
                self.run(
                    step,
                    Mode::Eval,
                    actions,
                    microbatch_assignment,
                    With { data: true, loss: true, outputs: true },
                )
            }
            Call::Forward(step) => {
                let microbatch_assignment = self.microbatch_assignment();
                let actions = self.actions(&microbatch_assignment, false, |stage, microbatch| {
                    Action::Forward { stage, microbatch }
                });
                let actions = self.gathered(actions);
                let request = self.run(
                    step,
                    Mode::Train,
                    actions,
                    microbatch_assignment.clone(),
                    With { data: true, loss: false, outputs: true },
                );
                self.open.insert(step, (self.batch, microbatch_assignment));
                request
            }
            Call::Backward(step) => self.backward(step),
            Call::Discard(step) => {
                Instruction::Discard { batch: self.open[&step].0 }.into_request()
            }
            Call::OptimStep(step) => {
                let actions = self.plan.layout().ending(self.ending());
                let (batch, microbatch_assignment) = self.open[&step].clone();
                let request = self.run(
                    step,
                    Mode::Train,
                    actions,
                    microbatch_assignment,
                    With { data: false, loss: false, outputs: false },
                );
                with_batch(request, batch)
            }
        };
        self.world.submit(request)
    }

    /// The request to all-gather all shards; None without sharding.
    fn gather(&mut self) -> Option<Request> {
        let layout = self.plan.layout();
        let stages = self.plan.stages.iter().filter_map(|spec| layout.whole(spec.stage));
        let lists = stages.map(|[gather, _]| gather).reduce(|all, of_stage| {
            all.into_iter().zip(of_stage).map(|(all, list)| [all, list].concat()).collect()
        })?;
        Some(self.round(lists))
    }

    /// A round of only these actions.
    fn round(&mut self, lists: Vec<Vec<Action>>) -> Request {
        self.batch += 1;
        Request::Run(Box::new(RunRequest::of(self.batch, lists, self.reduction)))
    }

    /// Lets workers copy their state for a checkpoint. Returns the requests whose replies bring it,
    /// while other requests run.
    pub fn begin_snapshot(&mut self) -> Result<Vec<u64>, Failure> {
        self.copy_stages(|stage| {
            SendState { stage, optimizer: true, form: StateForm::Slices }.into_request()
        })
    }

    /// Lets workers copy their state for each other. The snapshot is complete when all requests are
    /// answered.
    pub fn begin_keeping(
        &mut self,
        snapshot: SnapshotId,
        last: Option<SnapshotId>,
        random: &mut Random,
    ) -> Result<Vec<u64>, Failure> {
        let neighbours = self.neighbours(snapshot.step, random);
        self.copy_stages(|stage| {
            let (text, neighbours) = (snapshot.step.to_string(), neighbours.clone());
            let keeping =
                SnapshotRequest { snapshot, text, last_complete: last, stage, neighbours };
            Instruction::StoreSnapshot(Box::new(keeping)).into_request()
        })
    }

    /// The neighbours that a boss chooses for workers on up to three machines, or any, or none.
    fn neighbours(&self, step: u64, random: &mut Random) -> BTreeMap<WorkerId, WorkerId> {
        let members = self.plan.stage_placement.members();
        if !random.chance(50) {
            return BTreeMap::new();
        }
        if step.is_multiple_of(3) {
            return members.iter().map(|worker| (*worker, *random.pick(&members))).collect();
        }
        let machines: BTreeMap<WorkerId, &str> =
            members.iter().map(|worker| (*worker, *random.pick(&["a", "b", "c"]))).collect();
        neighbours(&self.plan, |worker| machines[&worker])
    }

    /// The last complete snapshot of a run at the workers.
    pub fn kept_copy(&mut self, run: u64) -> Result<Option<CompleteSnapshot>, Failure> {
        let request = self.world.submit(ListSnapshots { run });
        self.world.reply(request).result?;
        let reports = std::mem::take(&mut self.world.snapshots);
        for (_, kept) in &reports {
            assert_eq!(kept.snapshot.run, run);
            assert_eq!(kept.note.text, kept.snapshot.step.to_string());
        }
        let complete = CompleteSnapshot::all(run, reports);
        assert!(complete.iter().all(|found| found.is_of(&self.parameters)), "{complete:?}");
        Ok(complete.into_iter().next())
    }

    /// Restores a peer snapshot.
    pub fn restore_kept(&mut self, kept: &CompleteSnapshot) -> Result<(), Failure> {
        let request = self.world.submit(Instruction::SetOptimizer(calls::optimizer(1)));
        self.world.reply(request).result?;
        let tensors = recall(&self.plan, kept, &self.parameters).expect("parameters of the model");
        let restore = Instruction::RestoreSnapshot { snapshot: kept.id, tensors };
        let request = self.world.submit(restore);
        self.world.reply(request).result.map(drop)
    }

    fn copy_stages(
        &mut self,
        mut ask: impl FnMut(Option<StageId>) -> Request,
    ) -> Result<Vec<u64>, Failure> {
        let layout = self.plan.layout();
        let stages: Vec<StageId> = self.plan.stages.iter().map(|spec| spec.stage).collect();
        if !self.plan.copies_stage_by_stage() {
            return Ok(vec![self.world.submit(ask(None))]);
        }
        let mut asked = Vec::new();
        // Stage by stage, because a worker may not have room for all.
        for stage in stages {
            let around = layout.whole(stage);
            let done = self.carry_out(around.as_ref().map(|[gather, _]| gather)).and_then(|()| {
                asked.push(self.world.submit(ask(Some(stage))));
                self.carry_out(around.as_ref().map(|[_, let_go]| let_go))
            });
            if let Err(failure) = done {
                self.gathers.extend(asked);
                return Err(failure);
            }
        }
        Ok(asked)
    }

    fn carry_out(&mut self, lists: Option<&Vec<Vec<Action>>>) -> Result<(), Failure> {
        let Some(lists) = lists else { return Ok(()) };
        let round = self.round(lists.clone());
        let request = self.world.submit(round);
        self.world.reply(request).result.map(drop)
    }

    /// Adds the actions that gather parameters to lists of passes.
    fn gathered(&self, lists: Vec<Vec<Action>>) -> Vec<Vec<Action>> {
        self.plan.layout().gathered(lists).expect("replicas that take their stages in one order")
    }

    /// The stages of each worker.
    fn stages(&self) -> Vec<Vec<StageId>> {
        let workers = (0..self.plan.workers() as u16).map(WorkerId);
        workers.map(|w| self.plan.stages_of(w).into_iter().map(|s| s.stage).collect()).collect()
    }

    /// For each worker, an action for each of its stages and each of its microbatches.
    fn actions(
        &self,
        microbatch_assignment: &MicrobatchAssignment,
        falling: bool,
        action: impl Fn(StageId, u32) -> Action,
    ) -> Vec<Vec<Action>> {
        let last = self.microbatches - 1;
        let takes = |stage: StageId, worker: usize, microbatch: u32| {
            let microbatch = if falling { last - microbatch } else { microbatch };
            microbatch_assignment.worker(&self.plan.stage_placement, stage, microbatch)
                == Some(WorkerId(worker as u16))
        };
        let list = |(worker, stages): (usize, Vec<StageId>)| {
            let all = stages.into_iter().flat_map(|s| (0..self.microbatches).map(move |m| (s, m)));
            all.filter(|(s, m)| takes(*s, worker, *m)).map(|(s, m)| action(s, m)).collect()
        };
        self.stages().into_iter().enumerate().map(list).collect()
    }

    /// The assignment of microbatches in the next round.
    fn microbatch_assignment(&mut self) -> MicrobatchAssignment {
        let speeds: Vec<u64> = (0..self.plan.workers())
            .map(|_| self.microbatch_assignments.as_mut().map_or(1, |r| 1 + r.below(4)))
            .collect();
        let microbatch_assignment = MicrobatchAssignment::by_speed(
            &self.plan.stage_placement,
            self.microbatches,
            |_, worker| speeds[worker.0 as usize],
        );
        self.plan.ordered(microbatch_assignment)
    }

    fn ending(&self) -> Ending {
        if self.world.churn.is_some() {
            Ending::CommittedStep
        } else if self.max_norm.is_some() {
            Ending::ClippedStep
        } else {
            Ending::Step
        }
    }

    fn train(&mut self, step: u64, ending: Ending) -> Request {
        let (microbatch_assignment, reduction) = (self.microbatch_assignment(), self.reduction);
        let terms = Terms {
            ending,
            reduction,
            microbatch_assignment: Some(microbatch_assignment),
            ..Terms::new(self.kind, self.microbatches)
        };
        let schedule = self.plan.schedule_for(&terms).expect("a good schedule");
        let outputs = calls::wants_outputs(step);
        let Request::Run(mut run) = self.run(
            step,
            Mode::Train,
            schedule.workers,
            schedule.microbatch_assignment,
            With { data: true, loss: true, outputs },
        ) else {
            unreachable!()
        };
        run.order = schedule.order;
        Request::Run(run)
    }

    fn run(
        &mut self,
        step: u64,
        mode: Mode,
        actions: Vec<Vec<Action>>,
        microbatch_assignment: MicrobatchAssignment,
        with: With,
    ) -> Request {
        let With { data: with_data, loss: with_loss, outputs } = with;
        self.batch += 1;
        let slots = &mut self.world.boss_slots;
        let (mut inputs, mut targets) = (Vec::new(), Vec::new());
        let samples = (self.own_data && with_data).then(|| {
            let all = (0..self.microbatches).map(|microbatch| calls::sample(step, microbatch));
            // As one batch, or as a batch for each microbatch.
            let batches = if step.is_multiple_of(2) {
                all.map(|sample| vec![sample]).collect()
            } else {
                vec![all.collect()]
            };
            let next = (0..self.microbatches).filter(|_| step.is_multiple_of(3));
            let next = next.map(|microbatch| calls::sample(step + 2, microbatch)).collect();
            Samples { data: calls::own_data(self.graph).id, batches, next }
        });
        for microbatch in (0..self.microbatches).filter(|_| with_data && !self.own_data) {
            for (index, value) in self.graph.inputs().iter().enumerate() {
                inputs.push((
                    microbatch,
                    *value,
                    slots.hold(calls::input(step, microbatch, index)),
                ));
            }
            if with_loss {
                targets.push((microbatch, slots.hold(calls::target(step, microbatch))));
            }
        }
        let weights = || calls::loss_weights(self.microbatches);
        let loss = with_loss.then(|| RoundLoss {
            spec: calls::MICROBATCH_LOSS,
            weights: weights(),
            likeliest: false,
        });
        let (order, update) = (Order::Listed, Some(calls::update(step, self.max_norm)));
        let batch = self.batch;
        let run = RunRequest {
            batch,
            step,
            mode,
            kv_cache: None,
            actions,
            order,
            microbatch_assignment,
            microbatches: self.microbatches,
            reduction: self.reduction,
            update,
            // It must make no difference.
            watch: Watch { finite: FiniteCheck::Loss, health: step % 3 == 1 },
            loss,
            outputs: if outputs { RoundOutputs::All } else { RoundOutputs::None },
            samples,
            inputs,
            targets,
            grads: None,
        };
        Request::Run(Box::new(run))
    }

    fn backward(&mut self, step: u64) -> Request {
        // Gradients come from the last stage, so a worker with several takes that first.
        let layout = self.plan.layout();
        let (batch, microbatch_assignment) = self.open[&step].clone();
        let back = |(worker, stages): (usize, Vec<StageId>)| {
            let worker = WorkerId(worker as u16);
            let taken = |s| {
                microbatch_assignment
                    .taken(&self.plan.stage_placement, s, worker, self.microbatches)
                    .map(move |m| (s, m))
            };
            let all = stages.into_iter().rev().flat_map(taken);
            all.flat_map(|(s, m)| layout.backward(s, m, self.kind.splits())).collect::<Vec<_>>()
        };
        let passes = self.gathered(self.stages().into_iter().enumerate().map(back).collect());
        let actions = passes
            .into_iter()
            .zip(layout.reduction(self.reduction))
            .map(|(passes, end)| [passes, end].concat())
            .collect();
        let slots = &mut self.world.boss_slots;
        let mut grads = Vec::new();
        for microbatch in 0..self.microbatches {
            for (index, value) in self.graph.outputs().iter().enumerate() {
                let given = calls::grads(step, microbatch, index);
                grads.push((
                    microbatch,
                    *value,
                    given.into_iter().map(|g| slots.hold(g)).collect(),
                ));
            }
        }
        let Request::Run(mut run) = self.run(
            step,
            Mode::Train,
            actions,
            microbatch_assignment,
            With { data: false, loss: false, outputs: false },
        ) else {
            unreachable!()
        };
        run.grads = Some(grads);
        with_batch(Request::Run(run), batch)
    }
}

fn with_batch(request: Request, batch: u64) -> Request {
    match request {
        Request::Run(run) => Request::Run(Box::new(RunRequest { batch, ..*run })),
        other => other,
    }
}
