//! Trains on workers, however they are reached.

use crate::{Case, Training, STEPS};
use link::{Payload, Slots};
use pipeline::boss::{Answer, Instruction, IntoRequest, MakeIds, Request, RunRequest, SendState};
use pipeline::ids::{Slot, StageId};
use pipeline::message::{Failure, Mode, Reduction, RoundLoss, RoundUpdate};
use pipeline::replicas::MicrobatchAssignment;
use pipeline::round_outputs::RoundOutputs;
use pipeline::schedule::{Action, Ending, Terms};
use pipeline::watch::{FiniteCheck, Watch};
use pipeline::StateForm;
use pipeline::{Plan, ScheduleKind, TensorMeta};
use tch::Tensor;
use tensor::payload;

/// Workers that carry out requests.
pub trait TestCluster {
    /// Carries out one request of any kind.
    fn answer(&mut self, request: Request) -> Result<Answer, Failure>;

    /// Carries out one request. Returns its own answer.
    fn call<R: IntoRequest>(&mut self, request: R) -> Result<R::Answer, Failure> {
        self.answer(request.into_request()).map(|answer| R::read(answer).expect("its own answer"))
    }

    /// Fetches state. The tensors here are so small that each is one part.
    fn fetch(&mut self, request: SendState) -> Result<Vec<(String, Payload)>, Failure>;

    /// Returns the slots with the tensors of requests and answers.
    fn slots(&self) -> &Slots;
}

/// Trains a case on the workers of a plan.
pub fn train(
    case: &Case,
    plan: &Plan,
    kind: ScheduleKind,
    microbatches: u32,
    cluster: &mut impl TestCluster,
) -> Training {
    cluster.call(Instruction::Distribute).unwrap();
    cluster.call(Instruction::SetOptimizer(case.optimizer)).unwrap();
    if case.steps.reduction.is_collective() {
        find_replicas(cluster);
    }
    let losses: Vec<f32> = (0..STEPS)
        .map(|step| {
            let run = step_request(case, plan, kind, microbatches, step, cluster.slots());
            let answer = cluster.call(Box::new(run)).unwrap();
            assert_eq!(answer.losses.len(), microbatches as usize);
            answer.losses.iter().map(|(_, loss)| *loss).reduce(|sum, loss| sum + loss).unwrap()
        })
        .collect();
    outputs(plan, cluster, &losses)
}

/// Lets replicas find each other, so that they can sum gradients among themselves.
pub fn find_replicas(cluster: &mut impl TestCluster) {
    let ids = cluster.call(MakeIds).unwrap();
    cluster.call(Instruction::Communicate(ids)).unwrap();
}

/// Collects the result of a training that had these losses.
pub fn outputs(plan: &Plan, cluster: &mut impl TestCluster, losses: &[f32]) -> Training {
    let state: Vec<(String, Payload)> =
        plan.stages.iter().flat_map(|spec| state_of(plan, cluster, spec.stage)).collect();
    let weights: Vec<_> =
        state.into_iter().map(|(name, payload)| (name, tensor_of(payload))).collect();
    assert!(cluster.slots().is_empty(), "tensors were left behind");
    Training::new(losses, weights.iter().map(|(name, tensor)| (name.as_str(), tensor)))
}

/// Returns the parameters and buffers of a stage. They are gathered first if no replica has all.
fn state_of(plan: &Plan, cluster: &mut impl TestCluster, stage: StageId) -> Vec<(String, Payload)> {
    let request = SendState { stage: Some(stage), optimizer: false, form: StateForm::Slices };
    let mut batch = 1_000_000 + 2 * u64::from(stage.0);
    let mut all_do = |cluster: &mut _, actions: Vec<Vec<Action>>| {
        batch += 1;
        let run = RunRequest::of(batch, actions, Reduction::Tree);
        TestCluster::call(cluster, Box::new(run)).unwrap();
    };
    let Some([gather, let_go]) = plan.layout().whole(stage) else {
        return cluster.fetch(request).unwrap();
    };
    all_do(cluster, gather);
    let state = cluster.fetch(request).unwrap();
    all_do(cluster, let_go);
    state
}

/// Makes the request for a training step of a case, counted from 0.
pub fn step_request(
    case: &Case,
    plan: &Plan,
    kind: ScheduleKind,
    microbatches: u32,
    step: usize,
    slots: &Slots,
) -> RunRequest {
    let (x, target) = case.batch(step);
    let input = case.model.graph().inputs()[0];
    let parts = |whole: Tensor| (0..).zip(whole.tensor_split(i64::from(microbatches), 0));
    let steps = case.steps;
    let ending = match (steps.update(step), steps.max_norm) {
        (false, _) => Ending::Gather,
        (true, None) => Ending::Step,
        (true, Some(_)) => Ending::ClippedStep,
    };
    // In each step, replicas get another share of the batch.
    let microbatch_assignment =
        MicrobatchAssignment::by_speed(&plan.stage_placement, microbatches, |_, worker| {
            1 + (u64::from(worker.0) + step as u64) % 3
        });
    let microbatch_assignment = plan.ordered(microbatch_assignment);
    let terms = Terms {
        ending,
        reduction: steps.reduction,
        microbatch_assignment: Some(microbatch_assignment),
        ..Terms::new(kind, microbatches)
    };
    let schedule = plan.schedule_for(&terms).unwrap();
    let update = RoundUpdate {
        lr: case.optimizer.lr(),
        scale: steps.scale(step),
        max_norm: steps.max_norm,
        skip_infinite: false,
    };
    RunRequest {
        batch: step as u64 + 1,
        step: step as u64 + 1,
        mode: Mode::Train,
        kv_cache: None,
        actions: schedule.workers,
        order: schedule.order,
        microbatch_assignment: schedule.microbatch_assignment,
        microbatches,
        reduction: schedule.reduction,
        watch: Watch { finite: FiniteCheck::Loss, health: step % 2 == 1 },
        update: steps.update(step).then_some(update),
        loss: Some(RoundLoss {
            spec: case.loss.clone(),
            weights: parts(x.shallow_clone())
                .map(|(_, part)| part.size()[0] as f64 / steps.divisor(step))
                .collect(),
            likeliest: false,
        }),
        outputs: RoundOutputs::None,
        samples: None,
        inputs: parts(x).map(|(index, part)| (index, input, put(slots, &part))).collect(),
        targets: parts(target).map(|(index, part)| (index, put(slots, &part))).collect(),
        grads: None,
    }
}

/// Stores a tensor for a request.
pub fn put(slots: &Slots, tensor: &Tensor) -> Slot {
    let shape = tensor.size().into_iter().map(i64::unsigned_abs).collect();
    let meta = TensorMeta { dtype: tensor::dtype_of(tensor).unwrap(), shape };
    slots.insert(Payload { meta, bytes: payload::to_bytes(tensor).unwrap() })
}

fn tensor_of(Payload { meta, bytes }: Payload) -> Tensor {
    let shape: Vec<i64> = meta.shape.iter().map(|size| size.cast_signed()).collect();
    payload::from_bytes(meta.dtype, &shape, bytes).unwrap()
}
