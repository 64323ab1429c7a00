//! Tests replicas that exchange gradients in fewer bits. All have the same weights to the bit, in
//! any order of arrival and over any connection. A step that fails leaves no trace.

use pipeline::boss::{Digest, Instruction};
use pipeline::ids::StageId;
use pipeline::message::Reduction;
use pipeline::replicas::{Compress, WorkerGroups};
use pipeline::{Cuts, Placement, Plan, ScheduleKind};
use std::collections::BTreeMap;
use std::path::Path;
use tch::Tensor;
use tests::programs::{train_in_processes, TestFolder};
use tests::sample::is_sampled;
use tests::{
    one_process, outputs, put, step_request, train, Case, Connectivity, InMemoryCluster,
    SocketCluster, Steps, TestCluster, Training, STEPS,
};

const FORMS: [Compress; 3] = [Compress::Bf16, Compress::Int8, Compress::Int4];

fn compressed(case: Case, form: Compress) -> Case {
    let steps = Steps { reduction: Reduction::Compressed(form), ..case.steps };
    case.with(steps)
}

fn plan(case: &Case, replicas: &[u16]) -> Plan {
    Plan::new(case.model.graph(), &Cuts::Auto, WorkerGroups::of(replicas), Placement::Plain)
        .unwrap()
}

/// Panics if replicas of a stage differ.
fn assert_alike(cluster: &mut impl TestCluster, what: &str) {
    let digests = cluster.call(Digest).unwrap();
    let mut of_stages: BTreeMap<(StageId, String), Vec<[u8; 32]>> = BTreeMap::new();
    digests.into_iter().for_each(|(_, stage, name, digest)| {
        of_stages.entry((stage, name)).or_default().push(digest)
    });
    for ((stage, name), digests) in of_stages {
        assert!(
            digests.iter().all(|digest| *digest == digests[0]),
            "{what}: replicas of {stage} differ in {name}"
        );
    }
}

fn trained(case: &Case, replicas: &[u16], mut cluster: impl TestCluster) -> Training {
    let training = train(case, &plan(case, replicas), ScheduleKind::Ready, 5, &mut cluster);
    assert_alike(&mut cluster, &format!("{} on {replicas:?}", case.name));
    training
}

/// The result is the same over every connection, and with frames and sums in any order. It is close
/// to the result without compression.
fn every_configuration(case: fn() -> Case) {
    tensor::threads::set_count(1);
    let steps = Steps { reduction: Reduction::Tree, ..case().steps };
    let exact = one_process(&case().with(steps), 5);
    for form in FORMS {
        let case = &compressed(case(), form);
        let groups = [&[3, 1][..], &[2], &[3], &[2, 2], &[1, 2]];
        for replicas in groups.into_iter().take(if form == Compress::Int4 { 2 } else { 5 }) {
            let memory = |order| InMemoryCluster::new(plan(case, replicas), case.seed, order);
            let first = trained(case, replicas, memory(0));
            let what = format!("{} on {replicas:?}, {form}", case.name);
            for order in 1..4 {
                first.assert_same(&trained(case, replicas, memory(order)), &what);
            }
            // Adam's first steps are as large for small gradients as for large ones.
            let near = if form == Compress::Int4 { 1.0 } else { 0.25 };
            assert!(
                first.losses_differ_by_at_most(&exact, near),
                "{what}: far from what it is in float32"
            );
            assert!(!first.losses_differ_by_at_most(&exact, 0.0), "{what}: nothing was compressed");
        }
        let two_each = || plan(case, &[2, 2]);
        let in_memory = trained(case, &[2, 2], InMemoryCluster::new(two_each(), case.seed, 0));
        for reach in [Connectivity::SharedMemory, Connectivity::Quic, Connectivity::Relayed] {
            let over = trained(case, &[2, 2], SocketCluster::new(two_each(), case.seed, reach));
            in_memory.assert_same(&over, &format!("{} over {reach:?}, {form}", case.name));
        }
    }
}

/// Nothing is lost if replicas only add up first. Sums have another order, which is the same each
/// time.
#[test]
fn added_up_first() {
    tensor::threads::set_count(1);
    for case in [Case::convnet, Case::tied] {
        let of = |reduction| case().with(Steps { reduction, ..case().steps });
        let (exact, case) = (one_process(&of(Reduction::Tree), 5), &of(Reduction::Fast));
        for replicas in [&[2][..], &[3], &[2, 2], &[3, 1], &[1, 2]] {
            let memory = |order| InMemoryCluster::new(plan(case, replicas), case.seed, order);
            let first = trained(case, replicas, memory(0));
            let what = format!("{} on {replicas:?}", case.name);
            for order in 1..4 {
                first.assert_same(&trained(case, replicas, memory(order)), &what);
            }
            assert!(first.losses_differ_by_at_most(&exact, 1e-3), "{what}: far from the tree's");
        }
        let over = trained(
            case,
            &[2, 2],
            SocketCluster::new(plan(case, &[2, 2]), case.seed, Connectivity::Quic),
        );
        trained(case, &[2, 2], InMemoryCluster::new(plan(case, &[2, 2]), case.seed, 0))
            .assert_same(&over, &case.name);
    }
}

#[test]
fn residual() {
    every_configuration(Case::residual);
}

#[test]
fn convnet() {
    every_configuration(Case::convnet);
}

#[test]
fn tied() {
    every_configuration(Case::tied);
}

/// Clips gradients of several steps. The loss of compression before an update is made up within it.
#[test]
fn accumulated_and_clipped() {
    tensor::threads::set_count(1);
    for form in FORMS {
        let steps = Steps { accumulate: 3, max_norm: Some(0.05), ..Case::residual().steps };
        let case = &compressed(Case::residual().with(steps), form);
        let first = trained(case, &[2, 1], InMemoryCluster::new(plan(case, &[2, 1]), case.seed, 0));
        first.assert_same(
            &trained(case, &[2, 1], InMemoryCluster::new(plan(case, &[2, 1]), case.seed, 1)),
            &form,
        );
    }
}

/// One replica exchanges nothing.
#[test]
fn one_replica_loses_nothing() {
    tensor::threads::set_count(1);
    let tree = Steps { reduction: Reduction::Tree, ..Case::residual().steps };
    let exact = one_process(&Case::residual().with(tree), 5);
    for form in FORMS {
        let case = &compressed(Case::residual(), form);
        for replicas in [&[1][..], &[1, 1]] {
            exact.assert_same(
                &trained(case, replicas, InMemoryCluster::new(plan(case, replicas), case.seed, 0)),
                &form,
            );
        }
    }
}

/// A step fails after some gradients were sent, or before, and is repeated.
#[test]
fn a_step_that_fails_leaves_no_trace() {
    tensor::threads::set_count(1);
    for form in FORMS {
        let case = &compressed(Case::convnet(), form);
        let plan = plan(case, &[2]);
        let exact = trained(case, &[2], InMemoryCluster::new(plan.clone(), case.seed, 0));
        let mut after_sending = 0;
        for order in 0..if is_sampled() { 4 } else { 12 } {
            let mut cluster = InMemoryCluster::new(plan.clone(), case.seed, order);
            let slots = cluster.slots().clone();
            cluster.call(Instruction::Distribute).unwrap();
            cluster.call(Instruction::SetOptimizer(case.optimizer)).unwrap();
            let mut losses = Vec::new();
            for step in 0..STEPS {
                let request = |batch| {
                    let run = step_request(case, &plan, ScheduleKind::Ready, 5, step, &slots);
                    pipeline::boss::RunRequest { batch, ..run }
                };
                let (voided, done) = (2 * step as u64 + 1, 2 * step as u64 + 2);
                if step % 3 == 1 {
                    let mut run = request(voided);
                    let of_bad = [0, 4][order as usize % 2];
                    let bad = run.targets.iter_mut().find(|(index, _)| *index == of_bad).unwrap();
                    slots.remove(bad.1).unwrap();
                    bad.1 = put(
                        &slots,
                        &Tensor::from_slice(&vec![1000i64; if of_bad == 0 { 7 } else { 6 }]),
                    );
                    let before = cluster.summed();
                    cluster.call(Box::new(run)).unwrap_err();
                    after_sending += u32::from(cluster.summed() > before);
                }
                let answer = cluster.call(Box::new(request(done))).unwrap();
                losses.push(
                    answer
                        .losses
                        .iter()
                        .map(|(_, loss)| *loss)
                        .reduce(|sum, loss| sum + loss)
                        .unwrap(),
                );
            }
            assert_alike(&mut cluster, "after failures");
            exact.assert_same(
                &outputs(&plan, &mut cluster, &losses),
                &format!("{form}, order {order}"),
            );
        }
        assert!(after_sending > 0, "{form}: no step failed after gradients were sent");
    }
}

/// Tests the programs themselves.
#[test]
fn in_processes() {
    tensor::threads::set_count(1);
    let case = &compressed(Case::residual(), Compress::Int8);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let run = |more: &str| {
        let settings = format!("microbatches: 4\nreplicas: 2\n{more}");
        runtime.block_on(train_in_processes(case, 2, &settings, &[])).training
    };
    let tree = Steps { reduction: Reduction::Tree, ..case.steps };
    let exact = one_process(&Case::residual().with(tree), 4);
    exact.assert_same(&run("compress: f32"), &"not compressed");
    assert!(
        run("compress: int8").losses_differ_by_at_most(&exact, 0.25),
        "far from what it is in float32"
    );
}

/// Returns the mean loss of the last of 200 steps on the digits. Each replica has one of two
/// microbatches.
fn learned(form: &str) -> f64 {
    let place = TestFolder::new();
    let digits = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/digits");
    let (run, metrics) = (place.file("run.yaml"), place.file("metrics.jsonl"));
    let text = format!(
        "model: {digits}/digits.yaml\ndata: {{train: {digits}/digits-train.csv.gz}}\nloss: \
         {{CrossEntropyLoss: {{label_smoothing: 0.1}}}}\noptimizer: {{Adam: {{lr: \
         3e-3}}}}\nbatch_size: 32\nmicrobatches: 2\nsteps: 200\nschedule: gpipe\nreplicas: \
         2\ncompress: {form}\n",
        digits = digits.display()
    );
    std::fs::write(&run, text).unwrap();
    let arguments =
        ["train", run.to_str().unwrap(), "--local", "2", "--metrics", metrics.to_str().unwrap()];
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async { place.start("bossman", &arguments).end().await.expect_success() });
    let losses: Vec<f64> = std::fs::read_to_string(metrics).unwrap().lines().map(loss).collect();
    assert_eq!(losses.len(), 200);
    losses[180..].iter().sum::<f64>() / 20.0
}

fn loss(line: &str) -> f64 {
    let line: serde_json::Value = serde_json::from_str(line).unwrap();
    line["loss"].as_f64().unwrap()
}

/// After 200 steps the loss is within 1 % of what it is in float32.
#[test]
fn as_much_is_learned() {
    let exact = learned("f32");
    for form in FORMS {
        let found = learned(&form.to_string());
        println!("{form}: loss {found:.5}, {exact:.5} in float32");
        assert!((found / exact - 1.0).abs() < 0.01, "{form}: loss {found} instead of {exact}");
    }
}
