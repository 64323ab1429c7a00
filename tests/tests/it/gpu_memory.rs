//! Measures how much memory of its GPU a run takes, and where checkpoints are copied to. The fake
//! CUDA device counts. A machine that cannot have the fake passes; `tools/run_tests.py` tells that
//! it skipped tests.

use std::time::Duration;
use testkit::fake_gpu::{counts, Assertions, Counts, FakeGpu};
use tests::programs::TestFolder;

/// The time limit of a run; far longer than any run here takes.
const PATIENCE: Duration = Duration::from_secs(180);

/// The model, which is one weight and nothing else, and the bytes of that.
const MODEL: &str = "inputs: {x: [batch, 1024]}
layers:
- Linear: {in_features: 1024, out_features: 1024, bias: false}
";
const WEIGHT: u64 = 4 << 20;

/// What a run took.
struct Taken {
    /// The most bytes that its tensors had at one time, as its worker wrote it after each update.
    peak: u64,
    counts: Counts,
}

/// Trains [`MODEL`] with AdamW for four steps on a GPU. `None` if this machine cannot have the
/// fake.
async fn train(more: &str) -> Option<Taken> {
    let place = TestFolder::new();
    let mut environment = FakeGpu::build(Assertions::Off).ok()?.environment();
    let counted = place.file("counts");
    environment.push(("FAKECUDA_COUNTS".into(), counted.to_str().unwrap().into()));
    environment.push(("BOSSMAN_NCCL".into(), "/nowhere".into()));
    let environment: Vec<(&str, &str)> =
        environment.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    std::fs::write(place.file("model.yaml"), MODEL).unwrap();
    let numbers = (tch::Tensor::arange(8 * 1024, (tch::Kind::Float, tch::Device::Cpu)) * 0.1).sin();
    let numbers = numbers.reshape([8, 1024]);
    let data = place.file("data.safetensors");
    tch::Tensor::write_safetensors(&[("x", &numbers), ("target", &numbers)], &data).unwrap();
    // With this schedule no layer is measured first, which would take memory, too.
    let text = format!(
        "model: model.yaml\ndata: {{train: data.safetensors}}\nloss: MSELoss\noptimizer: {{AdamW: \
         {{lr: 0.001}}}}\nschedule: 1f1b\nbatch_size: 8\nsteps: 4\n{more}"
    );
    let (run, peak) = (place.file("run.yaml"), place.file("peak"));
    std::fs::write(&run, text).unwrap();
    let arguments = ["train", run.to_str().unwrap(), "--workers", "1", "--port", "0"];
    let mut boss = place.start_with("bossman", &arguments, &environment);
    let line = boss.line("MODEL_PORT=").await;
    let port = line.split_whitespace().find_map(|word| word.strip_prefix("MODEL_PORT=")).unwrap();
    let arguments = ["--port", port, "--threads", "1", "--device", "cuda:0"];
    let file = ["--peak-memory", peak.to_str().unwrap()];
    let worker = place.start_with("worker", &[&arguments[..], &file].concat(), &environment);
    boss.end_within(PATIENCE).await.expect_success();
    worker.end().await.expect_success();
    let peak = std::fs::read_to_string(peak).unwrap().parse().unwrap();
    Some(Taken { peak, counts: counts(&counted).unwrap() })
}

/// The weight, its gradient and two moments. The rest is far smaller.
#[tokio::test]
async fn a_worker_writes_the_most_memory_that_it_took() {
    let Some(Taken { peak, .. }) = train("").await else { return };
    assert!((4 * WEIGHT..6 * WEIGHT).contains(&peak), "{peak} bytes");
}

/// A checkpoint reads the weight and its two moments where they lie, and copies them to pinned
/// memory. In `gpu.rs` they fit on a GPU that has no room for a copy of them.
#[tokio::test]
async fn a_checkpoint_copies_nothing_on_the_gpu() {
    let Some(without) = train("").await else { return };
    let Some(with) = train("checkpoint: {dir: c, every: 1}\n").await else { return };
    let (on_devices, others) = (with.counts.on_devices, without.counts.on_devices);
    assert!(on_devices < others + 3, "{on_devices} copies on the GPU, {others} without");
    // Inputs are uploaded early or late.
    let (peak, other) = (with.peak, without.peak);
    assert!(peak < other + WEIGHT / 4, "{peak} bytes, {other} without checkpoints");
    let (to_host, others) = (with.counts.to_host_async, without.counts.to_host_async);
    assert!(to_host >= others + 3, "{to_host} copies to pinned memory, {others} without");
}
