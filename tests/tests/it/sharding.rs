//! Tests replicas that share out the optimizer's state, and gradients or parameters too. Losses and
//! weights are those of one process to the bit, and each replica keeps only its part.

use pipeline::message::Reduction;
use pipeline::optimizer::AdamArgs;
use pipeline::replicas::{Compress, Sharding, WorkerGroups};
use pipeline::{Cuts, OptimizerSpec, Placement, Plan, ScheduleKind};
use tests::programs::train_in_processes;
use tests::sample::sampled;
use tests::{
    cuts, one_process, train, Case, Connectivity, InMemoryCluster, SocketCluster, Steps,
    TestCluster, STEPS,
};

const SHARDINGS: [Sharding; 3] = [Sharding::Optimizer, Sharding::Gradients, Sharding::Parameters];

/// The number of workers at each place of the pipeline.
const WAYS: [&[u16]; 7] = [&[1], &[2], &[3], &[5], &[2, 2], &[3, 1], &[1, 2]];

fn along_the_tree(case: Case) -> Case {
    let steps = Steps { reduction: Reduction::Tree, ..case.steps };
    case.with(steps)
}

fn plan(case: &Case, replicas: &[u16], placement: Placement, sharding: Sharding) -> Option<Plan> {
    let plan =
        Plan::new(case.model.graph(), &Cuts::Auto, WorkerGroups::of(replicas), placement).ok()?;
    Some(plan.sharded(Some(sharding)))
}

/// Tests every way to group workers and every sharding, with frames in any order.
fn every_configuration(case: Case) {
    tensor::threads::set_count(1);
    let case = &along_the_tree(case);
    let expected = one_process(case, 5);
    for (number, replicas) in WAYS.into_iter().enumerate() {
        let placements = [Placement::Plain, Placement::V, Placement::Interleaved { chunks: 3 }];
        let ways = placements.into_iter().flat_map(|p| SHARDINGS.map(|sharding| (p, sharding)));
        // Parameters are sharded with one placement, in turn.
        let in_turn = placements[number % placements.len()];
        for (placement, sharding) in
            ways.filter(|(p, s)| *s != Sharding::Parameters || *p == in_turn)
        {
            let Some(plan) = plan(case, replicas, placement, sharding) else { continue };
            // Parameters are gathered in the order of passes, which must be the same on all
            // replicas.
            let kinds = match (sharding, placement) {
                (Sharding::Parameters, Placement::Plain) => &cuts::kinds(placement)[..3],
                (Sharding::Parameters, _) => &[ScheduleKind::GPipe],
                (_, Placement::Interleaved { .. }) => continue,
                _ => cuts::kinds(placement),
            };
            let kind = kinds[number % kinds.len()];
            let what = format!("{} on {replicas:?}, {kind}, {sharding}", case.name);
            let training = train(
                case,
                &plan,
                kind,
                5,
                &mut InMemoryCluster::new(plan.clone(), case.seed, number as u64),
            );
            expected.assert_same(&training, &what);
        }
    }
    println!("{}: {STEPS} steps equal to one process", case.name);
}

/// Clips gradients of several steps. Every replica finds the norm of its part, and the sum is that
/// of the whole.
fn accumulated_and_clipped(case: Case) {
    let steps = Steps { samples: &[32, 32, 20], accumulate: 3, max_norm: Some(0.05), ..case.steps };
    every_configuration(case.with(steps));
}

/// Tests the same over real connections.
fn over_sockets(case: Case) {
    tensor::threads::set_count(1);
    let case = &along_the_tree(case.with(Steps { max_norm: Some(0.5), ..Steps::default() }));
    let expected = one_process(case, 5);
    let reaches = [Connectivity::SharedMemory, Connectivity::Quic, Connectivity::Relayed];
    let shardings = [Sharding::Gradients, Sharding::Optimizer, Sharding::Gradients];
    let gathered = reaches.into_iter().map(|reach| (reach, Sharding::Parameters));
    for (reach, sharding) in reaches.into_iter().zip(shardings).chain(gathered) {
        let plan = plan(case, &[2, 2], Placement::Plain, sharding).unwrap();
        let training = train(
            case,
            &plan,
            ScheduleKind::ZbH1,
            5,
            &mut SocketCluster::new(plan.clone(), case.seed, reach),
        );
        expected.assert_same(&training, &format!("{} over {reach:?}, {sharding}", case.name));
    }
}

macro_rules! sharding {
    ($($name:ident)*) => {
        mod in_memory {
            $(#[test] fn $name() { super::every_configuration(tests::Case::$name()); })*
        }
        mod clipped {
            $(#[test] fn $name() { super::accumulated_and_clipped(tests::Case::$name()); })*
        }
    };
}

sharding!(narrow_residual skip convnet tied);

#[test]
fn real_connections() {
    over_sockets(Case::narrow_residual());
}

/// Tests every optimizer with the state that it keeps: momentum, moments, none.
#[test]
fn every_optimizer() {
    let adamw = AdamArgs { lr: 3e-3, betas: (0.9, 0.999), eps: 1e-8, weight_decay: 0.1 };
    let optimizers = [
        OptimizerSpec::sgd(0.01),
        OptimizerSpec::sgd_momentum(0.01, 0.9),
        OptimizerSpec::AdamW(adamw),
    ];
    for optimizer in optimizers {
        every_configuration(Case::branchy().optimized_by(optimizer));
    }
}

/// With gradients in fewer bits, parameters still return whole, so all replicas have the same.
#[test]
fn compressed() {
    tensor::threads::set_count(1);
    for form in [Compress::Bf16, Compress::Int8] {
        let case = Case::narrow_residual();
        // A round without an update ends once the gradients that other replicas sum are on their
        // way to them.
        let steps = Steps { accumulate: 2, ..case.steps };
        let exact = one_process(&along_the_tree(Case::narrow_residual().with(steps)), 5);
        let case = &case.with(Steps { reduction: Reduction::Compressed(form), ..steps });
        let run = |order| {
            let plan = plan(case, &[3], Placement::Plain, Sharding::Optimizer).unwrap();
            let mut cluster = InMemoryCluster::new(plan.clone(), case.seed, order);
            let training = train(case, &plan, ScheduleKind::GPipe, 5, &mut cluster);
            let digests = cluster.call(pipeline::boss::Digest).unwrap();
            // The digests of three replicas follow each other, with the same parameters for each.
            let (each, of) =
                (digests.len() / 3, |place: usize| (&digests[place].2, digests[place].3));
            assert!(
                each > 0 && (0..digests.len()).all(|place| of(place) == of(place % each)),
                "{form}"
            );
            training
        };
        let first = run(0);
        first.assert_same(&run(1), &form);
        // It is as close as without sharding.
        assert!(
            first.losses_differ_by_at_most(&exact, 0.5),
            "{form}: far from what it is in float32"
        );
    }
}

/// Tests the programs themselves.
#[test]
fn in_processes() {
    tensor::threads::set_count(1);
    let case = &along_the_tree(Case::tied());
    let expected = one_process(case, 4);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let ways = [
        (3, "replicas: 3\nshard: optimizer"),
        (4, "replicas: 2\nshard: gradients\nschedule: zb-h1"),
        (2, "replicas: auto\nshard: gradients"),
        (2, "replicas: 2\nshard: parameters"),
        (4, "replicas: 2\nshard: parameters\nchunks: 2"),
    ];
    for (workers, more) in sampled(ways, 2) {
        let settings = format!("microbatches: 4\n{more}");
        let run = runtime.block_on(train_in_processes(case, workers, &settings, &[]));
        expected.assert_same(&run.training, &format!("{} on {workers} workers, {more}", case.name));
    }
}
