//! Counts what a training step costs the host beside its GPU: waits, copies for which it waits, and
//! contexts.
//! The fake CUDA device counts them. A machine that cannot have the fake passes;
//! `tools/run_tests.py` tells that it skipped tests.

use std::time::Duration;
use testkit::fake_gpu::{counts, Assertions, Counts, FakeGpu};
use tests::programs::TestFolder;
use tests::Case;

const PATIENCE: Duration = Duration::from_secs(180);

/// The counts of a whole run with this many steps. `None` if this machine cannot have the fake.
async fn run(steps: usize, more: &str, flags: &[&str]) -> Option<Counts> {
    let place = TestFolder::new();
    let mut environment = FakeGpu::build(Assertions::Off).ok()?.environment();
    let counted = place.file("counts");
    environment.push(("FAKECUDA_COUNTS".into(), counted.to_str().unwrap().into()));
    environment.push(("BOSSMAN_NCCL".into(), "/nowhere".into()));
    let environment: Vec<(&str, &str)> =
        environment.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let file = place.run_file(&Case::narrow_residual(), steps, more);
    let arguments = [&["train", file.to_str().unwrap(), "--threads", "1"], flags].concat();
    let boss = place.start_with("bossman", &arguments, &environment);
    boss.end_within(PATIENCE).await.expect_success();
    Some(counts(&counted).unwrap())
}

/// What `STEPS` further steps cost.
async fn further_steps(more: &str, flags: &[&str]) -> Option<Counts> {
    let [short, long] = [run(STEPS, more, flags).await?, run(2 * STEPS, more, flags).await?];
    let counts = Counts {
        device_sync: long.device_sync - short.device_sync,
        stream_sync: long.stream_sync - short.stream_sync,
        event_sync: long.event_sync - short.event_sync,
        item: long.item - short.item,
        blocking_copy: long.blocking_copy - short.blocking_copy,
        kernel: long.kernel - short.kernel,
        to_device_async: long.to_device_async - short.to_device_async,
        to_host_async: long.to_host_async - short.to_host_async,
        ..Counts::default()
    };
    let per_step = |count: u64| count as f64 / STEPS as f64;
    println!(
        "{more:?} {flags:?}, a step: {} blocking copies, {} numbers read, {} waits for devices or \
         streams, {} waits for events; {} kernels, {} copies to devices, {} to the host",
        per_step(counts.blocking_copy),
        per_step(counts.item),
        per_step(counts.device_sync + counts.stream_sync),
        per_step(counts.event_sync),
        per_step(counts.kernel),
        per_step(counts.to_device_async),
        per_step(counts.to_host_async),
    );
    Some(counts)
}

/// Twice as many are less than an epoch, at whose end weights are copied.
const STEPS: usize = 8;

/// Fails if the host waits for anything but events.
async fn expect_no_waits(more: &str, flags: &[&str]) {
    let Some(counts) = further_steps(more, flags).await else { return };
    assert_eq!(counts.blocking_copy, 0, "{more}");
    assert_eq!(counts.item, 0, "{more}");
    assert_eq!(counts.device_sync + counts.stream_sync, 0, "{more}");
}

#[tokio::test]
async fn a_step_on_one_gpu_waits_for_events_alone() {
    expect_no_waits("microbatches: 4\nschedule: 1f1b\nclip_grad_norm: 1.0", &["--local", "1"])
        .await;
}

#[tokio::test]
async fn a_step_of_two_stages_waits_for_events_alone() {
    expect_no_waits("microbatches: 4\nschedule: 1f1b\nclip_grad_norm: 1.0", &["--local", "2"])
        .await;
}

#[tokio::test]
async fn a_step_of_stages_on_one_gpu_waits_for_events_alone() {
    let more = "microbatches: 4\nschedule: zb-v\nclip_grad_norm: 1.0";
    expect_no_waits(more, &["--local", "2"]).await;
}

#[tokio::test]
async fn a_step_of_two_replicas_waits_for_events_alone() {
    expect_no_waits("microbatches: 4\nschedule: 1f1b\nreplicas: 2", &["--local", "2"]).await;
}

/// A context takes half a gigabyte, and on the first GPU it would take that from another worker.
#[tokio::test]
async fn a_worker_on_the_second_gpu_makes_no_context_on_the_first() {
    let flags = ["--local", "1", "--device", "cuda:1"];
    let Some(counts) = run(STEPS, "microbatches: 4", &flags).await else { return };
    assert_eq!(counts.context, 1);
}
