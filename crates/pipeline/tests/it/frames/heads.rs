//! Heads of every kind, with random contents from a small range, so that they often fit each other.

use super::names::{batch, key, maybe, stage, text, value, worker};
use layerspec::{DType, LayerGraph, LayerId};
use pipeline::effect::Micros;
use pipeline::frame::{encode, Envelope, Route, TensorEnvelope};
use pipeline::ids::{StageId, WorkerId};
use pipeline::kv_cache_step::KvCacheStep;
use pipeline::loss::{ClassDim, Classes};
use pipeline::message::{
    Assignment, ChangeMembership, Command, Failure, FailureKind, LinkReport, Mode, PeerAddress,
    Progress, Reduction, Round, RoundLoss, RoundUpdate, Span, TensorHead, ToBoss, ToWorker,
};
use pipeline::norm::Square;
use pipeline::peer_snapshot::{
    PartToMake, PeerSnapshot, SendSnapshot, SnapshotId, SnapshotNote, StoreSnapshot,
};
use pipeline::replicas::{
    BucketBytes, Compress, MicrobatchAssignment, Node, Sharding, UniqueId, WorkerGroups,
};
use pipeline::round_outputs::{LastPosition, RoundOutputs};
use pipeline::samples::{DataId, DataSpec, Samples};
use pipeline::schedule::{Action, Order};
use pipeline::task::{LayerProbe, LayerTimes, LoadContent};
use pipeline::watch::{FiniteCheck, LayerHealth, Watch};
use pipeline::StateForm;
use pipeline::{
    Cuts, Determinism, Initialization, LossSpec, OptimizerSpec, Placement, Plan, TensorMeta,
};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::LazyLock;
use testkit::Random;

/// A message or the head of a frame with tensors.
#[derive(Clone, PartialEq, Debug)]
pub enum Head {
    ToWorker(ToWorker),
    ToBoss(ToBoss),
    Tensors(TensorHead),
}

impl From<ToWorker> for Head {
    fn from(message: ToWorker) -> Self {
        Head::ToWorker(message)
    }
}

impl From<ToBoss> for Head {
    fn from(message: ToBoss) -> Self {
        Head::ToBoss(message)
    }
}

impl From<TensorHead> for Head {
    fn from(head: TensorHead) -> Self {
        Head::Tensors(head)
    }
}

/// The number of kinds of heads.
pub const KINDS: u64 = 36;

/// The number of a head's kind. A new kind must be added here and in [`head`].
pub fn kind(head: &Head) -> u64 {
    match head {
        Head::ToWorker(ToWorker::Command { .. }) => 0,
        Head::ToWorker(ToWorker::UseRelay { .. }) => 1,
        Head::ToWorker(ToWorker::Abort { .. }) => 2,
        Head::ToWorker(ToWorker::Stop) => 3,
        Head::ToBoss(ToBoss::Done { .. }) => 4,
        Head::ToBoss(ToBoss::Failed { .. }) => 5,
        Head::ToBoss(ToBoss::Aborted { .. }) => 6,
        Head::ToBoss(ToBoss::LinkFailed { .. }) => 7,
        Head::Tensors(TensorHead::State { .. }) => 8,
        Head::Tensors(TensorHead::Value { .. }) => 9,
        Head::Tensors(TensorHead::Target { .. }) => 10,
        Head::Tensors(TensorHead::Gradient { .. }) => 11,
        Head::Tensors(TensorHead::Output { .. }) => 12,
        Head::Tensors(TensorHead::File { .. }) => 13,
        Head::ToWorker(ToWorker::TotalNorm { .. }) => 14,
        Head::ToBoss(ToBoss::Norms { .. }) => 15,
        Head::ToBoss(ToBoss::Measured { .. }) => 16,
        Head::ToBoss(ToBoss::LinkReport { .. }) => 17,
        Head::Tensors(TensorHead::TiedGrads { .. }) => 18,
        Head::Tensors(TensorHead::TiedValues { .. }) => 19,
        Head::Tensors(TensorHead::Sum { .. }) => 20,
        Head::Tensors(TensorHead::Reduced { .. }) => 21,
        Head::Tensors(TensorHead::Statistics { .. }) => 22,
        Head::ToBoss(ToBoss::Digests { .. }) => 23,
        Head::ToWorker(ToWorker::Progress(_)) => 24,
        Head::Tensors(TensorHead::ReplicaState { .. }) => 25,
        Head::Tensors(TensorHead::Updated { .. }) => 26,
        Head::Tensors(TensorHead::Weight { .. }) => 27,
        Head::ToBoss(ToBoss::Health { .. }) => 28,
        Head::ToBoss(ToBoss::SnapshotStored { .. }) => 29,
        Head::ToBoss(ToBoss::Snapshots { .. }) => 30,
        Head::Tensors(TensorHead::SnapshotPart { .. }) => 31,
        Head::ToBoss(ToBoss::UniqueIds { .. }) => 32,
        Head::ToBoss(ToBoss::Leaving) => 33,
        Head::ToWorker(ToWorker::MoreState { .. }) => 34,
        Head::ToBoss(ToBoss::StateHeads { .. }) => 35,
    }
}

/// A model whose stages exchange variables in every way.
pub static GRAPH: LazyLock<LayerGraph> = LazyLock::new(|| {
    let text = "
inputs: {x: [batch, 4], scale: [batch, 4]}
layers:
  - Linear: {in_features: 4, out_features: 4}
    out_variables: [h]
  - Mul: {}
    in_variables: [scale]
  - Add: {}
    in_variables: [h, h]
  - Linear: {in_features: 4, out_features: 4}
    share: \"0\"
    out_variables: [y]
outputs: [y, h]
";
    LayerGraph::from_yaml(text, "model.yaml").expect("a good model")
});

/// The model on four workers, two of which have the same stage.
pub static PLAN: LazyLock<Plan> = LazyLock::new(|| {
    let cuts = Cuts::At(vec!["1".into(), "2".into()]);
    Plan::new(&GRAPH, &cuts, WorkerGroups::of(&[1, 1, 2]), Placement::Plain).expect("a good cut")
});

/// A head of this kind.
pub fn head(random: &mut Random, kind: u64) -> Head {
    let id = 1 + random.below(4);
    match kind {
        0 => ToWorker::Command { id, body: command(random) }.into(),
        1 => ToWorker::UseRelay { peer: worker(random) }.into(),
        2 => {
            ToWorker::Abort { id, batch: maybe(random, batch), gradients: random.chance(50) }.into()
        }
        3 => ToWorker::Stop.into(),
        4 => ToBoss::Done {
            id,
            losses: losses(random),
            sent: random.below(3) as u32,
            received: Micros(random.next()),
            answered: Micros(random.next()),
            spans: (0..random.below(3)).map(|_| span(random)).collect(),
        }
        .into(),
        5 => ToBoss::Failed { id, failure: failure(random) }.into(),
        6 => ToBoss::Aborted { id, stepped: random.chance(50) }.into(),
        7 => ToBoss::LinkFailed {
            peer: worker(random),
            reason: text(random),
            was_up: random.chance(50),
        }
        .into(),
        8 => TensorHead::State { id, name: text(random) }.into(),
        9 => TensorHead::Value { key: key(random), value: value(random), to: stage(random) }.into(),
        10 => TensorHead::Target { key: key(random), to: stage(random) }.into(),
        11 => TensorHead::Gradient {
            key: key(random),
            value: value(random),
            from: maybe(random, stage),
            to: stage(random),
        }
        .into(),
        12 => TensorHead::Output { key: key(random), value: value(random) }.into(),
        13 => TensorHead::File { id, name: text(random) }.into(),
        14 => ToWorker::TotalNorm { id, norm: *random.pick(&[0.0, 1.5, f64::INFINITY]) }.into(),
        15 => ToBoss::Norms { id, squares: squares(random), losses: losses(random) }.into(),
        16 => ToBoss::Measured { id, times: vec![LayerTimes::default(); random.below(3) as usize] }
            .into(),
        17 => ToBoss::LinkReport {
            peer: maybe(random, worker),
            report: LinkReport {
                rtt: Micros(random.below(1000)),
                bytes_per_second: random.next(),
                packet_bytes: 1200,
                shared_memory: random.chance(50),
                same_machine: random.chance(50),
            },
        }
        .into(),
        18 => {
            TensorHead::TiedGrads { batch: batch(random), from: stage(random), to: stage(random) }
                .into()
        }
        19 => {
            TensorHead::TiedValues { batch: batch(random), from: stage(random), to: stage(random) }
                .into()
        }
        20 => TensorHead::Sum {
            batch: batch(random),
            stage: stage(random),
            bucket: random.below(3) as u32,
            node: node(random),
        }
        .into(),
        21 => TensorHead::Reduced {
            batch: batch(random),
            stage: stage(random),
            bucket: random.below(3) as u32,
        }
        .into(),
        28 => ToBoss::Health {
            id,
            layers: (0..random.below(3) as u32)
                .map(|layer| LayerHealth {
                    layer: LayerId(layer),
                    finite: random.chance(50),
                    has_gradient: random.chance(50),
                    changed: random.chance(50),
                })
                .collect(),
        }
        .into(),
        32 => ToBoss::UniqueIds { id, ids: unique_ids(random) }.into(),
        23 => ToBoss::Digests {
            id,
            digests: (0..random.below(3)).map(|_| (stage(random), text(random), [1; 32])).collect(),
        }
        .into(),
        24 => ToWorker::Progress(Progress {
            step: random.below(3),
            loss: 1.5,
            steps: random.below(3),
            samples: random.next(),
            share: 0.25,
            bytes_per_second: maybe(random, Random::next),
        })
        .into(),
        25 => {
            TensorHead::ReplicaState { id, name: text(random), of: random.below(4) as u32 }.into()
        }
        26 => {
            let (bucket, visit) = (random.below(3) as u32, random.below(2) as u32);
            TensorHead::Updated { batch: batch(random), stage: stage(random), bucket, visit }.into()
        }
        27 => TensorHead::Weight { id, name: text(random), stage: stage(random) }.into(),
        29 => ToBoss::SnapshotStored { id, part: part(random) }.into(),
        30 => ToBoss::Snapshots {
            id,
            snapshots: (0..random.below(3))
                .map(|_| PeerSnapshot {
                    snapshot: snapshot_id(random),
                    note: note(random),
                    parts: parts(random),
                })
                .collect(),
        }
        .into(),
        31 => TensorHead::SnapshotPart {
            id,
            part: part(random),
            name: text(random),
            of: random.below(4) as u32,
        }
        .into(),
        33 => ToBoss::Leaving.into(),
        34 => ToWorker::MoreState { id, frames: random.below(3) as u32 }.into(),
        35 => ToBoss::StateHeads { id, heads: state_heads(random) }.into(),
        _ => TensorHead::Statistics { batch: batch(random), stage: stage(random) }.into(),
    }
}

/// A well-formed frame of this head.
pub fn envelope(random: &mut Random, head: TensorHead) -> TensorEnvelope {
    let (least, most) = head.tensors();
    let count = least as u64 + random.below((most - least) as u64 + 1).min(3);
    let tensors = (0..count).map(|_| tensor(random)).collect();
    let route = maybe(random, |random| Route { from: worker(random), to: worker(random) });
    TensorEnvelope { route, head, tensors }
}

/// The bytes of a frame of this head up to its tensors.
pub fn encoded(random: &mut Random, head: Head) -> Vec<u8> {
    let bytes = match head {
        Head::ToWorker(message) => encode(&Envelope::Message(message)),
        Head::ToBoss(message) => encode(&Envelope::Message(message)),
        Head::Tensors(head) => encode(&Envelope::<ToWorker>::Tensors(envelope(random, head))),
    };
    bytes.expect("within bounds")
}

fn command(random: &mut Random) -> Command {
    match random.below(16) {
        11 => Command::StoreSnapshot(Box::new(keep(random))),
        12 => Command::ListSnapshots { run: random.below(2) },
        13 => {
            let tensors = (0..random.below(3))
                .map(|_| (part(random), "0.weight".into(), stage(random)))
                .collect();
            let recall = Box::new(SendSnapshot { snapshot: snapshot_id(random), tensors });
            let keepers = (0..random.below(3)).map(|_| worker(random)).collect();
            Command::RestoreSnapshot {
                tensors: random.below(4) as u32,
                senders: keepers,
                send: recall,
            }
        }
        14 => Command::Communicate(unique_ids(random)),
        15 => Command::MakeIds,
        10 => {
            let (id, inputs) = (DataId([7; 32]), GRAPH.inputs().to_vec());
            Command::OpenData(Box::new(DataSpec { id, description: b"some".to_vec(), inputs }))
        }
        9 => Command::ChangeMembership(Box::new(change_membership(random))),
        8 => Command::Digest,
        0 => Command::Assign(Box::new(assignment(random))),
        1 => Command::SetOptimizer(
            *random.pick(&[OptimizerSpec::sgd_momentum(0.1, 0.9), OptimizerSpec::adamw(1e-3)]),
        ),
        2 => Command::Discard { batch: batch(random) },
        3 => Command::SendState {
            stage: random.chance(50).then_some(StageId(1)),
            optimizer: random.chance(50),
            form: *random.pick(&[StateForm::Tensors, StateForm::Slices, StateForm::Hashes]),
            window: random.below(4) as u32,
        },
        4 => Command::LoadState { tensors: random.below(4) as u32, content: content(random) },
        5 => Command::Measure((0..random.below(3)).map(|_| probe(random)).collect()),
        6 => Command::TakeFiles { files: random.below(4) as u32 },
        _ => Command::Run(Box::new(round(random))),
    }
}

pub(crate) fn content(random: &mut Random) -> LoadContent {
    *random.pick(&[LoadContent::Part, LoadContent::WeightSources, LoadContent::WholeState])
}

fn keep(random: &mut Random) -> StoreSnapshot {
    // Usually the worker that is asked has the state. Otherwise it refuses the request.
    let of = |random: &mut Random| if random.chance(80) { WorkerId(1) } else { worker(random) };
    let give = maybe(random, |random| PartToMake {
        part: part(random),
        of: of(random),
        to: maybe(random, worker),
    });
    let take = (0..random.below(3)).map(|_| (part(random), worker(random))).collect();
    let (last, stage) = (maybe(random, snapshot_id), maybe(random, stage));
    StoreSnapshot {
        snapshot: snapshot_id(random),
        note: note(random),
        last_complete: last,
        stage,
        make: give,
        receive: take,
    }
}

pub fn snapshot_id(random: &mut Random) -> SnapshotId {
    SnapshotId { run: random.below(2), step: random.below(3), membership: random.below(2) }
}

pub fn note(random: &mut Random) -> SnapshotNote {
    SnapshotNote { parts: random.below(4) as u32, text: text(random) }
}

fn part(random: &mut Random) -> u32 {
    random.below(3) as u32
}

fn parts(random: &mut Random) -> BTreeMap<u32, BTreeSet<String>> {
    (0..random.below(3)).map(|_| (part(random), BTreeSet::from([text(random)]))).collect()
}

fn unique_ids(random: &mut Random) -> Vec<(StageId, UniqueId)> {
    (0..random.below(3)).map(|_| (stage(random), UniqueId::from([7; UniqueId::BYTES]))).collect()
}

/// Usually one that a frame fits.
fn state_heads(random: &mut Random) -> Vec<(String, TensorMeta)> {
    let name = if random.chance(70) { "0.weight".into() } else { text(random) };
    let more = (0..random.below(2)).map(|_| (text(random), tensor(random)));
    let mut heads: Vec<_> = more.collect();
    heads.push((name, tensor(random)));
    heads
}

fn change_membership(random: &mut Random) -> ChangeMembership {
    let me = worker(random);
    let stage_placement = if random.chance(20) {
        PLAN.stage_placement.without(me)
    } else {
        PLAN.stage_placement.clone()
    };
    let followers = (0..random.below(2)).map(|_| (stage(random), worker(random))).collect();
    let give = (0..random.below(2)).map(|_| worker(random)).collect();
    ChangeMembership {
        stage_placement,
        followers,
        peers: peers(random, me),
        give,
        take: maybe(random, worker),
    }
}

fn peers(random: &mut Random, me: WorkerId) -> Vec<PeerAddress> {
    let peer = |worker: WorkerId| PeerAddress {
        worker,
        address: random.chance(70).then(|| SocketAddr::from(([127, 0, 0, 1], 1024))),
        dial: random.chance(50),
        relayed: random.chance(20),
    };
    PLAN.peers_of(me).into_iter().map(peer).collect()
}

const REDUCTIONS: [Reduction; 5] = [
    Reduction::Tree,
    Reduction::Fast,
    Reduction::Compressed(Compress::Int4),
    Reduction::Sequential,
    Reduction::Collective,
];

fn assignment(random: &mut Random) -> Assignment {
    let me = worker(random);
    let peers = peers(random, me);
    Assignment {
        worker: me,
        stages: PLAN.stages_of(me),
        stage_placement: PLAN.stage_placement.clone(),
        buckets: BUCKETS,
        sharding: random
            .chance(15)
            .then(|| *random.pick(&[Sharding::Gradients, Sharding::Parameters])),
        peers,
        seed: random.next(),
        determinism: *random.pick(&[Determinism::Strict, Determinism::Fast]),
        initialization: *random.pick(&[Initialization::AtOnce, Initialization::Deferred]),
    }
}

/// Buckets so small that a stage of a few numbers has several.
pub const BUCKETS: BucketBytes = BucketBytes { first: 16, other: 16 };

pub fn node(random: &mut Random) -> Node {
    match random.chance(20) {
        true => Node { level: random.next() as u32, index: random.next() as u32 },
        false => Node { level: random.below(2) as u32, index: random.below(3) as u32 },
    }
}

fn round(random: &mut Random) -> Round {
    // Most rounds are for one stage, have no action twice, and could be carried out on its worker.
    let (tidy, one) = (random.chance(70), stage(random));
    let action = |random: &mut Random| {
        let stage = if tidy { one } else { stage(random) };
        let microbatch = random.below(3) as u32;
        match random.below(16) {
            15 => Action::Share { stage },
            14 => Action::Reshard { stage },
            13 => Action::AllGather { stage },
            12 => Action::Reduce { stage },
            0..4 => Action::Forward { stage, microbatch },
            4..6 => Action::Backward { stage, microbatch },
            6 => Action::BackwardInput { stage, microbatch },
            7 => Action::BackwardWeight { stage, microbatch },
            8 => Action::ReduceTied { stage },
            9 => Action::GradNorm { stage },
            10 => Action::UpdateTied { stage },
            _ => Action::OptimStep { stage },
        }
    };
    let mut actions: Vec<Action> = (0..random.below(6)).map(|_| action(random)).collect();
    let (distinct, mut seen) = (random.chance(90), BTreeSet::new());
    actions.retain(|action| !distinct || action.may_repeat() || seen.insert(*action));
    let classes = Classes { weight: vec![0.5, 2.0], ignore_index: 1, class_dim: ClassDim::Last };
    let spec = random
        .pick(&[LossSpec::MSELoss, LossSpec::CrossEntropyLoss { classes, label_smoothing: 0.1 }])
        .clone();
    let weights = (0..if tidy { 3 } else { random.below(4) }).map(|n| n as f64 / 3.0).collect();
    Round {
        batch: batch(random),
        step: random.next(),
        mode: *random.pick(&[Mode::Train, Mode::Eval]),
        kv_cache: maybe(random, cached),
        actions,
        loss: random.chance(50).then_some(RoundLoss {
            spec,
            weights,
            likeliest: random.chance(50),
        }),
        outputs: *random.pick(&[
            RoundOutputs::None,
            RoundOutputs::All,
            RoundOutputs::First(LastPosition { dim: 2, positions: 5 }),
        ]),
        grads_from_boss: random.chance(50),
        microbatch_assignment: MicrobatchAssignment::by_speed(
            &PLAN.stage_placement,
            3,
            |_, worker| 1 + u64::from(worker.0),
        ),
        microbatches: *random.pick(&[3, 3, 3, 1]),
        samples: maybe(random, |random| Samples {
            data: DataId([7; 32]),
            batches: (0..*random.pick(&[1, 1, 3, 0]))
                .map(|_| (0..3 + random.below(4) as i64).collect())
                .collect(),
            next: (0..random.below(6) as i64).collect(),
        }),
        reduction: *random.pick(&REDUCTIONS),
        order: match random.chance(50) {
            true => Order::Listed,
            false => Order::Ready {
                in_flight: vec![
                    random.below(3) as u32;
                    if tidy { 3 } else { random.below(5) as usize }
                ],
                held: vec![random.below(3) as u32; if tidy { 3 } else { random.below(5) as usize }],
            },
        },
        update: maybe(random, |random| RoundUpdate {
            lr: 0.1,
            scale: 1.0,
            max_norm: random.chance(50).then_some(1.0),
            skip_infinite: false,
        }),
        watch: Watch {
            finite: *random.pick(&[FiniteCheck::Off, FiniteCheck::Loss, FiniteCheck::All]),
            health: random.chance(50),
        },
    }
}

fn cached(random: &mut Random) -> KvCacheStep {
    let rows = (0..random.below(4)).map(|n| n as u32).collect();
    KvCacheStep {
        past: random.below(100),
        rows,
        layers: (0..random.below(4) as u32).map(LayerId).collect(),
    }
}

fn span(random: &mut Random) -> Span {
    let action = Action::Forward { stage: stage(random), microbatch: random.below(3) as u32 };
    Span { action, start: Micros(random.next()), end: Micros(random.next()) }
}

fn squares(random: &mut Random) -> Vec<Square> {
    let square = |random: &mut Random, number: u64| Square {
        layer: LayerId(random.below(3) as u32),
        number: number as u32,
        blocks: *random.pick(&[1, 1, 2, 5, u32::MAX]),
        node: node(random),
        sum: 0.25,
    };
    (0..random.below(4)).map(|number| square(random, number % 2)).collect()
}

fn probe(random: &mut Random) -> LayerProbe {
    let layer = random.pick(GRAPH.layers()).clone();
    LayerProbe { layer, inputs: vec![tensor(random)], input_grads: random.chance(50) }
}

fn failure(random: &mut Random) -> Failure {
    Failure {
        worker: maybe(random, worker),
        stage: maybe(random, stage),
        layer: maybe(random, text),
        action: maybe(random, text),
        microbatch: maybe(random, |random| random.below(3) as u32),
        step: maybe(random, Random::next),
        message: text(random),
        kind: *random.pick(&[
            FailureKind::Unfit,
            FailureKind::OutOfMemory,
            FailureKind::NotFinite,
            FailureKind::Other,
        ]),
    }
}

fn losses(random: &mut Random) -> Vec<(u32, f32)> {
    let loss = |random: &mut Random| *random.pick(&[0.0, -1.5, f32::MIN_POSITIVE, f32::INFINITY]);
    (0..random.below(3)).map(|microbatch| (microbatch as u32, loss(random))).collect()
}

fn tensor(random: &mut Random) -> TensorMeta {
    let dtype = *random.pick(&[DType::Float32, DType::BFloat16, DType::Int64, DType::Bool]);
    TensorMeta { dtype, shape: (0..random.below(4)).map(|_| random.below(70)).collect() }
}
