//! Law 1 with replicas: losses and weights after 20 steps are equal to the bit for any number of
//! workers on a stage, and for any assignment of microbatches. Every step has another assignment.
//!
//! `cargo test -p tests --test it replicas:: -- --nocapture` prints what was compared.

use pipeline::message::Reduction;
use pipeline::replicas::WorkerGroups;
use pipeline::{Cuts, Placement, Plan, ScheduleKind};
use tests::programs::train_in_processes;
use tests::sample::sampled;
use tests::{
    cuts, one_process, train, Case, Connectivity, InMemoryCluster, SocketCluster, Steps,
    TestCluster, Training, MICROBATCHES, STEPS,
};

/// The number of workers at each place of the pipeline: no place, all places or some places have
/// several. One place alone is plain data parallelism.
const WAYS: [&[u16]; 9] =
    [&[1], &[1, 1], &[2], &[3], &[2, 2], &[3, 1], &[1, 2], &[2, 1, 1], &[1, 1, 2]];

fn along_the_tree(case: Case) -> Case {
    let steps = Steps { reduction: Reduction::Tree, ..case.steps };
    case.with(steps)
}

fn plan(case: &Case, replicas: &[u16], placement: Placement) -> Option<Plan> {
    Plan::new(case.model.graph(), &Cuts::Auto, WorkerGroups::of(replicas), placement).ok()
}

struct Configuration<'a> {
    case: &'a Case,
    replicas: &'a [u16],
    kind: ScheduleKind,
    microbatches: u32,
    over: &'static str,
}

impl Configuration<'_> {
    fn check(&self, expected: &Training, plan: &Plan, mut cluster: impl TestCluster) {
        let Configuration { case, replicas, kind, microbatches, over } = self;
        let what =
            format!("{} on {replicas:?}, {kind}, {microbatches} microbatches, {over}", case.name);
        let training = train(case, plan, *kind, *microbatches, &mut cluster);
        expected.assert_same(&training, &what);
    }
}

/// Tests every way to group workers and every placement in memory, with frames in any order. The
/// kinds of schedule take turns, so that each meets every way.
fn every_configuration(case: Case) {
    tensor::threads::set_count(1);
    let case = &along_the_tree(case);
    for microbatches in MICROBATCHES {
        let expected = one_process(case, microbatches);
        let mut runs = 0;
        for replicas in WAYS {
            for placement in [Placement::Plain, Placement::Interleaved { chunks: 2 }, Placement::V]
            {
                let Some(plan) = plan(case, replicas, placement) else { continue };
                let kinds = cuts::kinds(placement);
                let kind = kinds[(runs + u64::from(microbatches)) as usize % kinds.len()];
                let way = Configuration { case, replicas, kind, microbatches, over: "in memory" };
                way.check(&expected, &plan, InMemoryCluster::new(plan.clone(), case.seed, runs));
                runs += 1;
            }
        }
        println!(
            "{:8} {microbatches} microbatches: {runs} runs of {STEPS} steps equal to one process",
            case.name
        );
    }
}

/// Tests a few ways over real connections.
fn over_sockets(case: Case) {
    tensor::threads::set_count(1);
    let case = &along_the_tree(case);
    let expected = one_process(case, 5);
    for (reach, over) in [
        (Connectivity::SharedMemory, "shared memory"),
        (Connectivity::Quic, "QUIC"),
        (Connectivity::Relayed, "QUIC, relayed"),
    ] {
        for (replicas, kind) in [
            (&[2, 2][..], ScheduleKind::ZbH1),
            (&[3], ScheduleKind::GPipe),
            (&[1, 2], ScheduleKind::Ready),
        ] {
            let plan = plan(case, replicas, Placement::Plain).unwrap();
            let way = Configuration { case, replicas, kind, microbatches: 5, over };
            way.check(&expected, &plan, SocketCluster::new(plan.clone(), case.seed, reach));
        }
    }
}

/// Tests the programs themselves, each time with another number of replicas.
fn in_processes(case: Case) {
    tensor::threads::set_count(1);
    let case = &along_the_tree(case);
    let expected = one_process(case, 4);
    let ways = [
        (1, "replicas: 1"),
        (2, "replicas: 2"),
        (3, "replicas: 3\nschedule: gpipe"),
        (4, "replicas: 2\nschedule: zb-h1"),
        (3, "replicas: [1, 2]"),
        (3, "replicas: auto"),
    ];
    for (workers, more) in sampled(ways, 2) {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let run = runtime.block_on(train_in_processes(
            case,
            workers,
            &format!("microbatches: 4\n{more}"),
            &[],
        ));
        expected.assert_same(
            &run.training,
            &format!("{} on {workers} workers, {more}, processes", case.name),
        );
    }
}

/// Clips gradients of several steps of unequal size.
#[test]
fn accumulated_and_clipped() {
    tensor::threads::set_count(1);
    let steps = Steps {
        samples: &[32, 32, 20],
        accumulate: 3,
        max_norm: Some(0.05),
        reduction: Reduction::Tree,
        ..Case::tied().steps
    };
    for case in
        [Case::tied().with(steps), Case::narrow_residual().with(Steps { lengths: &[], ..steps })]
    {
        let expected = one_process(&case, 4);
        for replicas in WAYS {
            let Some(plan) = plan(&case, replicas, Placement::Plain) else { continue };
            let way = Configuration {
                case: &case,
                replicas,
                kind: ScheduleKind::ZbH1,
                microbatches: 4,
                over: "in memory",
            };
            way.check(&expected, &plan, InMemoryCluster::new(plan.clone(), case.seed, 1));
        }
    }
}

/// A frozen backbone: in its stage nothing is trained, but norms learn.
#[test]
fn norms_learn_alike_in_a_stage_where_nothing_is_trained() {
    tensor::threads::set_count(1);
    let norm = "- BatchNorm2d: {num_features: 8}\n    name: norm1\n";
    let case = Case::convnet().changed(
        &format!("name: conv1\n  {norm}"),
        &format!("name: conv1\n    freeze: true\n  {norm}    freeze: true\n"),
    );
    let case = &along_the_tree(case);
    let backbone = Cuts::At(vec!["conv2".into()]);
    for (seed, replicas) in (0..).zip([&[1][..], &[1, 1], &[2, 1], &[1, 2], &[2, 2], &[3, 1]]) {
        let cuts = if replicas.len() > 1 { backbone.clone() } else { Cuts::Auto };
        let groups = WorkerGroups::of(replicas);
        let plan = Plan::new(case.model.graph(), &cuts, groups, Placement::Plain).unwrap();
        assert_eq!(plan.stages[0].is_trained(), replicas.len() == 1, "its layers are trained");
        // The last of three microbatches is smaller than the others.
        for microbatches in [3, 4] {
            let expected = one_process(case, microbatches);
            let kind = ScheduleKind::OneFOneB;
            let way = Configuration { case, replicas, kind, microbatches, over: "in memory" };
            way.check(&expected, &plan, InMemoryCluster::new(plan.clone(), case.seed, seed));
        }
    }
}

/// A sum along the tree differs from a sum one after the other only in its last bits.
#[test]
fn the_order_changes_the_last_bits_alone() {
    tensor::threads::set_count(1);
    let sequential = one_process(&Case::narrow_residual(), 5);
    let tree = one_process(&along_the_tree(Case::narrow_residual()), 5);
    assert!(sequential.losses_differ_by_at_most(&tree, 1e-4), "the losses differ");
}

macro_rules! replicas {
    ($($name:ident)*) => {
        mod in_memory {
            $(#[test] fn $name() { super::every_configuration(tests::Case::$name()); })*
        }
        mod over_sockets {
            $(#[test] fn $name() { super::over_sockets(tests::Case::$name()); })*
        }
        mod in_processes {
            $(#[test] fn $name() { super::in_processes(tests::Case::$name()); })*
        }
    };
}

replicas!(narrow_residual skip convnet tied);
