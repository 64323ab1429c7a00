//! Heads of every kind, with random contents out of few, so that they often fit each other.

use layerspec::{DType, LayerGraph, LayerId, ValueId};
use pipeline::cached::Cached;
use pipeline::effect::Micros;
use pipeline::frame::{Envelope, Route};
use pipeline::ids::{MicrobatchKey, StageId, WorkerId};
use pipeline::kept::{Give, Keep, PeerSnapshot, Recall, SnapshotId, SnapshotNote};
use pipeline::loss::Classes;
use pipeline::message::{
    Assignment, ChangeMembership, Command, Failure, Head, LinkReport, Mode, PeerAddress, Progress, Reduction, Round,
    RoundLoss, RoundUpdate, Span,
};
use pipeline::norm::Square;
use pipeline::replicas::{BucketBytes, Compress, MicrobatchAssignment, Node, Sharding, UniqueId, WorkerGroups};
use pipeline::samples::{DataId, DataSpec, Samples};
use pipeline::schedule::{Action, Order};
use pipeline::task::{LayerProbe, LayerTimes};
use pipeline::watch::{Finite, LayerHealth, Watch};
use pipeline::{Cuts, LossSpec, OptimizerSpec, Placement, Plan, TensorMeta};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::LazyLock;
use testkit::Random;

/// How many kinds of head there are.
pub const KINDS: u64 = 33;

/// The number of a head's kind. A new kind must be added here and in [`head`].
pub fn kind(head: &Head) -> u64 {
    match head {
        Head::Command { .. } => 0,
        Head::UseRelay { .. } => 1,
        Head::Abort { .. } => 2,
        Head::Stop => 3,
        Head::Done { .. } => 4,
        Head::Failed { .. } => 5,
        Head::Aborted { .. } => 6,
        Head::LinkFailed { .. } => 7,
        Head::State { .. } => 8,
        Head::Value { .. } => 9,
        Head::Target { .. } => 10,
        Head::Gradient { .. } => 11,
        Head::Output { .. } => 12,
        Head::File { .. } => 13,
        Head::TotalNorm { .. } => 14,
        Head::Norms { .. } => 15,
        Head::Measured { .. } => 16,
        Head::LinkReport { .. } => 17,
        Head::TiedGrads { .. } => 18,
        Head::TiedValues { .. } => 19,
        Head::Sum { .. } => 20,
        Head::Reduced { .. } => 21,
        Head::Statistics { .. } => 22,
        Head::Digests { .. } => 23,
        Head::Progress(_) => 24,
        Head::ReplicaState { .. } => 25,
        Head::Updated { .. } => 26,
        Head::Weight { .. } => 27,
        Head::Health { .. } => 28,
        Head::Kept { .. } => 29,
        Head::Copies { .. } => 30,
        Head::Keeping { .. } => 31,
        Head::UniqueIds { .. } => 32,
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

/// It on four workers, two of which have the same stage.
pub static PLAN: LazyLock<Plan> = LazyLock::new(|| {
    let cuts = Cuts::At(vec!["1".into(), "2".into()]);
    Plan::new(&GRAPH, &cuts, WorkerGroups::of(&[1, 1, 2]), Placement::Plain).expect("a good cut")
});

/// A head of this kind.
pub fn head(random: &mut Random, kind: u64) -> Head {
    let id = 1 + random.below(4);
    match kind {
        0 => Head::Command { id, body: command(random) },
        1 => Head::UseRelay { peer: worker(random) },
        2 => Head::Abort { id, batch: maybe(random, batch), gradients: random.chance(50) },
        3 => Head::Stop,
        4 => Head::Done {
            id,
            losses: losses(random),
            sent: random.below(3) as u32,
            received: Micros(random.next()),
            answered: Micros(random.next()),
            spans: (0..random.below(3)).map(|_| span(random)).collect(),
        },
        5 => Head::Failed { id, failure: failure(random) },
        6 => Head::Aborted { id, stepped: random.chance(50) },
        7 => Head::LinkFailed { peer: worker(random), reason: text(random), was_up: random.chance(50) },
        8 => Head::State { id, name: text(random) },
        9 => Head::Value { key: key(random), value: value(random), to: stage(random) },
        10 => Head::Target { key: key(random), to: stage(random) },
        11 => Head::Gradient { key: key(random), value: value(random), from: maybe(random, stage), to: stage(random) },
        12 => Head::Output { key: key(random), value: value(random) },
        13 => Head::File { id, name: text(random) },
        14 => Head::TotalNorm { id, norm: *random.pick(&[0.0, 1.5, f64::INFINITY]) },
        15 => Head::Norms { id, squares: squares(random), losses: losses(random) },
        16 => Head::Measured { id, times: vec![LayerTimes::default(); random.below(3) as usize] },
        17 => Head::LinkReport {
            peer: maybe(random, worker),
            report: LinkReport {
                rtt: Micros(random.below(1000)),
                bytes_per_second: random.next(),
                packet_bytes: 1200,
                shared_memory: random.chance(50),
                same_machine: random.chance(50),
            },
        },
        18 => Head::TiedGrads { batch: batch(random), from: stage(random), to: stage(random) },
        19 => Head::TiedValues { batch: batch(random), from: stage(random), to: stage(random) },
        20 => {
            Head::Sum { batch: batch(random), stage: stage(random), bucket: random.below(3) as u32, node: node(random) }
        }
        21 => Head::Reduced { batch: batch(random), stage: stage(random), bucket: random.below(3) as u32 },
        28 => Head::Health {
            id,
            layers: (0..random.below(3) as u32)
                .map(|layer| LayerHealth {
                    layer: LayerId(layer),
                    finite: random.chance(50),
                    has_gradient: random.chance(50),
                    changed: random.chance(50),
                })
                .collect(),
        },
        32 => Head::UniqueIds { id, ids: unique_ids(random) },
        23 => Head::Digests {
            id,
            digests: (0..random.below(3)).map(|_| (stage(random), text(random), [1; 32])).collect(),
        },
        24 => Head::Progress(Progress {
            step: random.below(3),
            loss: 1.5,
            steps: random.below(3),
            samples: random.next(),
            share: 0.25,
            bytes_per_second: maybe(random, Random::next),
        }),
        25 => Head::ReplicaState { id, name: text(random), of: random.below(4) as u32 },
        26 => {
            let (bucket, visit) = (random.below(3) as u32, random.below(2) as u32);
            Head::Updated { batch: batch(random), stage: stage(random), bucket, visit }
        }
        27 => Head::Weight { id, name: text(random), stage: stage(random) },
        29 => Head::Kept { id, part: part(random) },
        30 => Head::Copies {
            id,
            copies: (0..random.below(3))
                .map(|_| PeerSnapshot { copy: copy(random), note: note(random), parts: parts(random) })
                .collect(),
        },
        31 => Head::Keeping { id, part: part(random), name: text(random), of: random.below(4) as u32 },
        _ => Head::Statistics { batch: batch(random), stage: stage(random) },
    }
}

/// A well-formed frame of this head.
pub fn envelope(random: &mut Random, head: Head) -> Envelope {
    let (least, most) = head.tensors();
    let count = least as u64 + random.below((most - least) as u64 + 1).min(3);
    let tensors = (0..count).map(|_| tensor(random)).collect();
    let route = maybe(random, |random| Route { from: worker(random), to: worker(random) });
    Envelope { route, head, tensors }
}

fn command(random: &mut Random) -> Command {
    match random.below(16) {
        11 => Command::Keep(Box::new(keep(random))),
        12 => Command::Copies { run: random.below(2) },
        13 => {
            let tensors = (0..random.below(3)).map(|_| (part(random), "0.weight".into(), stage(random))).collect();
            let recall = Box::new(Recall { copy: copy(random), tensors });
            let keepers = (0..random.below(3)).map(|_| worker(random)).collect();
            Command::Restore { tensors: random.below(4) as u32, keepers, recall }
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
        1 => Command::SetOptimizer(*random.pick(&[OptimizerSpec::sgd_momentum(0.1, 0.9), OptimizerSpec::adamw(1e-3)])),
        2 => Command::Discard { batch: batch(random) },
        3 => Command::SendState { stage: random.chance(50).then_some(StageId(1)), optimizer: random.chance(50) },
        4 => Command::LoadState { tensors: random.below(4) as u32, optimizer: random.chance(50) },
        5 => Command::Measure((0..random.below(3)).map(|_| probe(random)).collect()),
        6 => Command::TakeFiles { files: random.below(4) as u32 },
        _ => Command::Run(Box::new(round(random))),
    }
}

fn keep(random: &mut Random) -> Keep {
    // Mostly the worker of which it is asked has it: what it has not is refused.
    let of = |random: &mut Random| if random.chance(80) { WorkerId(1) } else { worker(random) };
    let give = maybe(random, |random| Give { part: part(random), of: of(random), to: maybe(random, worker) });
    let take = (0..random.below(3)).map(|_| (part(random), worker(random))).collect();
    let (last, stage) = (maybe(random, copy), maybe(random, stage));
    Keep { copy: copy(random), note: note(random), last, stage, give, take }
}

pub fn copy(random: &mut Random) -> SnapshotId {
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

fn change_membership(random: &mut Random) -> ChangeMembership {
    let me = worker(random);
    let stage_placement =
        if random.chance(20) { PLAN.stage_placement.without(me) } else { PLAN.stage_placement.clone() };
    let followers = (0..random.below(2)).map(|_| (stage(random), worker(random))).collect();
    let give = (0..random.below(2)).map(|_| worker(random)).collect();
    ChangeMembership { stage_placement, followers, peers: peers(random, me), give, take: maybe(random, worker) }
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
        sharding: random.chance(15).then(|| *random.pick(&[Sharding::Gradients, Sharding::Parameters])),
        peers,
        seed: random.next(),
    }
}

/// So small that a stage of a few numbers has several.
pub const BUCKETS: BucketBytes = BucketBytes { first: 16, other: 16 };

pub fn node(random: &mut Random) -> Node {
    match random.chance(20) {
        true => Node { level: random.next() as u32, index: random.next() as u32 },
        false => Node { level: random.below(2) as u32, index: random.below(3) as u32 },
    }
}

fn round(random: &mut Random) -> Round {
    // Most rounds are for one stage and could be carried out on its worker.
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
    let classes = Classes { weight: vec![0.5, 2.0], ignore_index: 1 };
    let spec = random.pick(&[LossSpec::MSELoss, LossSpec::CrossEntropyLoss { classes, label_smoothing: 0.1 }]).clone();
    let weights = (0..if tidy { 3 } else { random.below(4) }).map(|n| n as f64 / 3.0).collect();
    Round {
        batch: batch(random),
        step: random.next(),
        mode: *random.pick(&[Mode::Train, Mode::Eval]),
        cached: maybe(random, cached),
        actions: (0..random.below(6)).map(|_| action(random)).collect(),
        loss: random.chance(50).then_some(RoundLoss { spec, weights }),
        outputs: random.chance(50),
        grads_from_boss: random.chance(50),
        microbatch_assignment: MicrobatchAssignment::by_speed(&PLAN.stage_placement, 3, |_, worker| {
            1 + u64::from(worker.0)
        }),
        microbatches: *random.pick(&[3, 3, 3, 1]),
        samples: maybe(random, |random| Samples {
            data: DataId([7; 32]),
            batches: (0..*random.pick(&[1, 1, 3, 0])).map(|_| (0..3 + random.below(4) as i64).collect()).collect(),
            next: (0..random.below(6) as i64).collect(),
        }),
        reduction: *random.pick(&REDUCTIONS),
        order: match random.chance(50) {
            true => Order::Listed,
            false => Order::Ready {
                in_flight: vec![random.below(3) as u32; if tidy { 3 } else { random.below(5) as usize }],
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
            finite: *random.pick(&[Finite::Nowhere, Finite::Loss, Finite::Everywhere]),
            health: random.chance(50),
        },
    }
}

fn cached(random: &mut Random) -> Cached {
    let rows = (0..random.below(4)).map(|n| n as u32).collect();
    Cached { past: random.below(100), rows, layers: (0..random.below(4) as u32).map(LayerId).collect() }
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
        not_finite: random.chance(50),
        unfit: random.chance(50),
        refused: false,
        updating: false,
        passing: false,
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

pub fn worker(random: &mut Random) -> WorkerId {
    WorkerId(random.below(4) as u16)
}

pub fn stage(random: &mut Random) -> StageId {
    StageId(random.below(4) as u16)
}

fn value(random: &mut Random) -> ValueId {
    ValueId(random.below(6) as u32)
}

fn batch(random: &mut Random) -> u64 {
    *random.pick(&[1, 2, 3, 4, 60, 1000, u64::MAX])
}

fn key(random: &mut Random) -> MicrobatchKey {
    MicrobatchKey { batch: batch(random), index: random.below(3) as u32 }
}

fn text(random: &mut Random) -> String {
    random.pick(&["", "0.weight", "a longer text, with \u{fc}mlauts and\nlines", "\0"]).to_string()
}

fn maybe<T>(random: &mut Random, make: impl FnOnce(&mut Random) -> T) -> Option<T> {
    random.chance(50).then(|| make(random))
}
