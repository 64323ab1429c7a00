//! The user's side: calls turned into requests with their tensors, answers awaited.

use crate::calls::{self, Answered, Call};
use crate::math::{self, Param};
use crate::world::World;
use crate::Setting;
use layerspec::{Layer, LayerGraph};
use pipeline::boss::{speakers, Keeping, Request, RunRequest};
use pipeline::ids::{StageId, WorkerId};
use pipeline::kept::{PeerSnapshot, Recalled, SnapshotId, SnapshotNote};
use pipeline::message::{Failure, Mode, Reduction, RoundLoss};
use pipeline::replicas::MicrobatchAssignment;
use pipeline::samples::{DataSpec, Samples};
use pipeline::schedule::{Action, Ending, Order, Terms};
use pipeline::watch::{Finite, Watch};
use pipeline::{Plan, ScheduleKind, StateName};
use std::collections::BTreeMap;
use testkit::Random;

/// A user with a fleet.
pub struct User<'g> {
    pub world: World,
    graph: &'g LayerGraph,
    pub plan: Plan,
    kind: ScheduleKind,
    microbatches: u32,
    max_norm: Option<f64>,
    reduction: Reduction,
    /// Draws the assignments of microbatches of rounds; nothing where each replica takes as many.
    microbatch_assignments: Option<Random>,
    /// The number of the last batch.
    batch: u64,
    /// The batches of steps carried out by hand.
    open: BTreeMap<u64, (u64, MicrobatchAssignment)>,
    /// Requests whose replies nobody waits for.
    gathers: Vec<u64>,
    own_data: bool,
    /// What the last `State` brought, for `Load`, and the last `Checkpoint`, for `Resume`.
    state: BTreeMap<String, u64>,
    pub kept: BTreeMap<String, u64>,
}

/// What a round brings with it and gives back.
struct With {
    data: bool,
    loss: bool,
    outputs: bool,
}

impl<'g> User<'g> {
    pub fn new(graph: &'g LayerGraph, plan: Plan, setting: &Setting, world: World) -> Self {
        let (open, state, kept, gathers) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new(), Vec::new());
        let Setting { kind, microbatches, max_norm, tree, collective, microbatch_assignments, own_data, .. } = *setting;
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

    /// Calls and waits for the answer.
    pub fn call(&mut self, call: Call) -> Result<Answered, Failure> {
        if let Call::Resume(lr) = call {
            let request = self.world.submit(Request::SetOptimizer(calls::optimizer(lr)));
            self.world.reply(request).result?;
        }
        if let Some(gather) = self.gather().filter(|_| matches!(call, Call::State | Call::Checkpoint)) {
            let request = self.world.submit(gather);
            self.world.reply(request).result?;
        }
        let request = self.submit_alone(call);
        let mut result = self.world.reply(request).result;
        if let (Some(open), true) = (self.open_data().filter(|_| call == Call::Distribute), result.is_ok()) {
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

    /// Ends the run; checks that it ends everywhere and that nothing is left.
    pub fn stop(&mut self) {
        self.world.settle();
        for request in std::mem::take(&mut self.gathers) {
            self.world.reply(request);
        }
        if self.world.struck.boss_killed {
            return;
        }
        let request = self.world.submit(Request::Stop);
        self.world.reply(request).result.expect("a stop is always carried out");
        self.world.settle();
        self.world.assert_over();
    }

    /// Calls without waiting.
    pub fn submit(&mut self, call: Call) -> u64 {
        // Where it fails, so does what follows.
        if let Some(gather) = self.gather().filter(|_| matches!(call, Call::State | Call::Checkpoint)) {
            self.gathers.push(self.world.submit(gather));
        }
        let request = self.submit_alone(call);
        if let Some(open) = self.open_data().filter(|_| call == Call::Distribute) {
            self.gathers.push(self.world.submit(open));
        }
        request
    }

    /// What has workers open their data; nothing where they have none.
    fn open_data(&self) -> Option<Request> {
        self.own_data.then(|| Request::OpenData(Box::new(calls::own_data(self.graph))))
    }

    /// What a newcomer is to open.
    pub fn data(&self) -> Vec<DataSpec> {
        self.own_data.then(|| calls::own_data(self.graph)).into_iter().collect()
    }

    /// Has replicas that sum gradients find each other, if they are all there.
    fn find_replicas(&mut self) {
        let made = self.world.submit(Request::MakeIds);
        if let Ok(answered) = self.world.reply(made).result {
            let found = self.world.submit(Request::Communicate(answered.unique_ids));
            self.world.reply(found).result.ok();
        }
    }

    fn submit_alone(&mut self, call: Call) -> u64 {
        // Whatever fails has ended the communicators.
        if self.reduction.is_collective() && matches!(call, Call::Train(_) | Call::Gather(_) | Call::Backward(_)) {
            self.find_replicas();
        }
        let request = match call {
            Call::Distribute => Request::Distribute,
            Call::Optimizer(lr) => Request::SetOptimizer(calls::optimizer(lr)),
            Call::State => Request::SendState { stage: None, optimizer: false },
            Call::Checkpoint => Request::SendState { stage: None, optimizer: true },
            Call::Load(salt) => self.load(salt),
            Call::Resume(_) => self.resume(),
            Call::Train(step) => {
                let ending = self.ending();
                self.train(step, ending)
            }
            Call::Gather(step) => self.train(step, Ending::Gather),
            Call::Digest => Request::Digest,
            Call::Measure => Request::Measure(calls::probes(self.graph)),
            Call::Eval(step) if step.is_multiple_of(2) => {
                // As whole batches go, each the only one of its kind.
                let microbatch_assignment =
                    self.plan.assign_batches(self.microbatches, |_, _| pipeline::replicas::Speed::from(1));
                let actions = self.gathered(self.plan.forwards(&microbatch_assignment, self.microbatches));
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
                let forward = |stage, microbatch| Action::Forward { stage, microbatch: last - microbatch };
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
                let actions = self
                    .actions(&microbatch_assignment, false, |stage, microbatch| Action::Forward { stage, microbatch });
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
            Call::Discard(step) => Request::Discard { batch: self.open[&step].0 },
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

    /// What has all replicas gather whatever they keep a part of; nothing where that is nothing.
    fn gather(&mut self) -> Option<Request> {
        let layout = self.plan.layout();
        let stages = self.plan.stages.iter().filter_map(|spec| layout.whole(spec.stage));
        let lists = stages
            .map(|[gather, _]| gather)
            .reduce(|all, of_stage| all.into_iter().zip(of_stage).map(|(all, list)| [all, list].concat()).collect())?;
        Some(self.round(lists))
    }

    /// A round of these actions alone.
    fn round(&mut self, lists: Vec<Vec<Action>>) -> Request {
        self.batch += 1;
        Request::Run(Box::new(RunRequest::of(self.batch, lists, self.reduction)))
    }

    /// Has workers copy their state for a checkpoint; the replies to the requests that are given back bring it,
    /// while others are carried out.
    pub fn begin_copy(&mut self) -> Result<Vec<u64>, Failure> {
        self.copy_stages(|stage| Request::SendState { stage, optimizer: true })
    }

    /// Has workers copy their state for each other, to whomever these numbers say; all has arrived when the replies to the
    /// requests have.
    pub fn begin_keeping(
        &mut self,
        copy: SnapshotId,
        last: Option<SnapshotId>,
        random: &mut Random,
    ) -> Result<Vec<u64>, Failure> {
        let plan = self.plan.clone();
        let members = plan.stage_placement.members();
        let named = random.chance(50);
        let named: Vec<WorkerId> = members.iter().copied().filter(|_| named).collect();
        let neighbours: BTreeMap<WorkerId, WorkerId> =
            named.into_iter().map(|worker| (worker, *random.pick(&members))).collect();
        let number = |stage| speakers(&plan, stage, true).len() as u32;
        let parts = match self.copies_by_stage() {
            true => plan.stages.iter().map(|spec| number(Some(spec.stage))).sum(),
            false => number(None),
        };
        let mut before = 0;
        self.copy_stages(|stage| {
            let (note, neighbours) = (SnapshotNote { parts, text: format!("{}", copy.step) }, neighbours.clone());
            let keeping = Keeping { copy, note, last, stage, before, neighbours };
            before += number(stage);
            Request::Keep(Box::new(keeping))
        })
    }

    fn copies_by_stage(&self) -> bool {
        let layout = self.plan.layout();
        self.plan.stages.iter().any(|spec| layout.shards_parameters(spec.stage))
    }

    /// The last copy of a run that workers keep whole.
    pub fn kept_copy(&mut self, run: u64) -> Result<Option<(SnapshotId, Vec<Recalled>)>, Failure> {
        let request = self.world.submit(Request::Copies { run });
        self.world.reply(request).result?;
        let copies = std::mem::take(&mut self.world.copies);
        let steps: BTreeMap<SnapshotId, u32> = copies.iter().map(|(_, kept)| (kept.copy, kept.note.parts)).collect();
        assert!(steps.keys().all(|copy| copy.run == run));
        assert!(copies.iter().all(|(_, kept)| kept.note.text == kept.copy.step.to_string()));
        for (copy, parts) in steps.into_iter().rev() {
            let here: Vec<&(WorkerId, PeerSnapshot)> = copies.iter().filter(|(_, kept)| kept.copy == copy).collect();
            let mut names: BTreeMap<(u32, String), WorkerId> = BTreeMap::new();
            for (worker, kept) in &here {
                let all = kept.parts.iter().flat_map(|(part, names)| names.iter().map(move |name| (*part, name)));
                names.extend(all.map(|(part, name)| ((part, name.clone()), *worker)));
            }
            if (0..parts).all(|part| here.iter().any(|(_, kept)| kept.parts.contains_key(&part))) {
                let recalled = names.into_iter().flat_map(|((part, name), keeper)| {
                    let stages = self.stages_of_state(&name);
                    stages.into_iter().map(move |stage| Recalled { keeper, part, name: name.clone(), stage })
                });
                return Ok(Some((copy, recalled.collect())));
            }
        }
        Ok(None)
    }

    /// Has workers go on from a copy that they keep.
    pub fn restore_kept(&mut self, copy: SnapshotId, tensors: Vec<Recalled>) -> Result<(), Failure> {
        let request = self.world.submit(Request::SetOptimizer(calls::optimizer(1)));
        self.world.reply(request).result?;
        let request = self.world.submit(Request::Restore { copy, tensors });
        self.world.reply(request).result.map(drop)
    }

    fn copy_stages(&mut self, mut ask: impl FnMut(Option<StageId>) -> Request) -> Result<Vec<u64>, Failure> {
        let layout = self.plan.layout();
        let stages: Vec<StageId> = self.plan.stages.iter().map(|spec| spec.stage).collect();
        if !self.copies_by_stage() {
            return Ok(vec![self.world.submit(ask(None))]);
        }
        let mut asked = Vec::new();
        // Stage by stage, for no worker may have room for all.
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

    /// Lists of passes with what gathers parameters for them.
    fn gathered(&self, lists: Vec<Vec<Action>>) -> Vec<Vec<Action>> {
        self.plan.layout().gathered(lists).expect("replicas that take their stages in one order")
    }

    /// For each worker its stages.
    fn stages(&self) -> Vec<Vec<StageId>> {
        let workers = (0..self.plan.workers() as u16).map(WorkerId);
        workers.map(|w| self.plan.stages_of(w).into_iter().map(|s| s.stage).collect()).collect()
    }

    /// For each worker an action for each of its stages and every microbatch that it takes.
    fn actions(
        &self,
        microbatch_assignment: &MicrobatchAssignment,
        falling: bool,
        action: impl Fn(StageId, u32) -> Action,
    ) -> Vec<Vec<Action>> {
        let last = self.microbatches - 1;
        let takes = |stage: StageId, worker: usize, microbatch: u32| {
            let microbatch = if falling { last - microbatch } else { microbatch };
            microbatch_assignment.worker(&self.plan.stage_placement, stage, microbatch) == Some(WorkerId(worker as u16))
        };
        let list = |(worker, stages): (usize, Vec<StageId>)| {
            let all = stages.into_iter().flat_map(|s| (0..self.microbatches).map(move |m| (s, m)));
            all.filter(|(s, m)| takes(*s, worker, *m)).map(|(s, m)| action(s, m)).collect()
        };
        self.stages().into_iter().enumerate().map(list).collect()
    }

    /// Who takes what in the next round.
    fn microbatch_assignment(&mut self) -> MicrobatchAssignment {
        let speeds: Vec<u64> = (0..self.plan.workers())
            .map(|_| self.microbatch_assignments.as_mut().map_or(1, |r| 1 + r.below(4)))
            .collect();
        let microbatch_assignment =
            MicrobatchAssignment::by_speed(&self.plan.stage_placement, self.microbatches, |_, worker| {
                speeds[worker.0 as usize]
            });
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
            let batches =
                if step.is_multiple_of(2) { all.map(|sample| vec![sample]).collect() } else { vec![all.collect()] };
            let next = (0..self.microbatches).filter(|_| step.is_multiple_of(3));
            let next = next.map(|microbatch| calls::sample(step + 2, microbatch)).collect();
            Samples { data: calls::own_data(self.graph).id, batches, next }
        });
        for microbatch in (0..self.microbatches).filter(|_| with_data && !self.own_data) {
            for (index, value) in self.graph.inputs().iter().enumerate() {
                inputs.push((microbatch, *value, slots.hold(calls::input(step, microbatch, index))));
            }
            if with_loss {
                targets.push((microbatch, slots.hold(calls::target(step, microbatch))));
            }
        }
        let weights = || calls::loss_weights(self.microbatches);
        let loss = with_loss.then(|| RoundLoss { spec: calls::MICROBATCH_LOSS, weights: weights() });
        let (order, update) = (Order::Listed, Some(calls::update(step, self.max_norm)));
        let batch = self.batch;
        let run = RunRequest {
            batch,
            step,
            mode,
            cached: None,
            actions,
            order,
            microbatch_assignment,
            microbatches: self.microbatches,
            reduction: self.reduction,
            update,
            // It must make no difference.
            watch: Watch { finite: Finite::Loss, health: step % 3 == 1 },
            loss,
            outputs,
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
                grads.push((microbatch, *value, given.into_iter().map(|g| slots.hold(g)).collect()));
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

    fn load(&mut self, salt: u64) -> Request {
        if self.state.is_empty() {
            // Nobody got to know it: as it was drawn.
            let owner = |layer: &Layer| layer.share.map(|owner| self.graph.layer(owner));
            let of = |layer: &Layer| {
                let own = math::own_weights(layer, owner(layer));
                own.into_iter().map(|(_, name)| name).collect::<Vec<_>>()
            };
            let names = self.graph.layers().iter().flat_map(of);
            self.state = names.map(|name| (name.clone(), Param::new(calls::SEED, &name).value)).collect();
        }
        let mut tensors = Vec::new();
        for (name, value) in &self.state {
            let (layer, parameter) = name.rsplit_once('.').expect("a layer and a parameter");
            let layer = self.graph.layer_by_name(layer).expect("a layer of the model");
            for stage in self.plan.holders(layer, parameter) {
                let slot = self.world.boss_slots.hold(calls::loaded(name, *value, salt));
                tensors.push((stage, name.clone(), slot));
            }
        }
        Request::LoadState { tensors, optimizer: false }
    }

    fn resume(&mut self) -> Request {
        let mut tensors = Vec::new();
        for (text, value) in &self.kept {
            for stage in self.stages_of_state(text) {
                tensors.push((stage, text.clone(), self.world.boss_slots.hold(*value)));
            }
        }
        Request::LoadState { tensors, optimizer: true }
    }

    /// The stages that get a parameter, or what the optimizer keeps for one.
    fn stages_of_state(&self, text: &str) -> Vec<StageId> {
        let name = StateName::parse(text);
        let (layer, parameter) = name.kept().map_or(name.name, |(param, _)| param).rsplit_once('.').expect("a name");
        let layer = self.graph.layer_by_name(layer).expect("a layer of the model");
        // What the optimizer keeps is with the owner alone.
        let most = if name.optimizer { 1 } else { usize::MAX };
        self.plan.holders(layer, parameter).into_iter().take(most).collect()
    }
}

/// A state whose parts are put together: they are of one value here.
pub fn together(state: BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let mut whole: BTreeMap<String, u64> = BTreeMap::new();
    for (name, value) in state {
        let name = StateName { start: None, ..StateName::parse(&name) }.to_string();
        let before = whole.insert(name.clone(), value);
        assert!(before.is_none_or(|before| before == value), "parts of {name} that do not belong together");
    }
    whole
}

fn with_batch(request: Request, batch: u64) -> Request {
    match request {
        Request::Run(run) => Request::Run(Box::new(RunRequest { batch, ..*run })),
        other => other,
    }
}
