//! Tests runs on GPUs of the fake CUDA device that have too little memory for them. A machine that
//! cannot have the fake passes; `tools/run_tests.py` tells that it skipped tests.

use crate::gpu::{port, Machine, PATIENCE};

/// With 16 microbatches, none of which has run backward when the last runs forward. The activations
/// of each take about 1 MiB in each layer of [`train_encoder`], the layers' inputs 64 KiB.
const ALL_AT_ONCE: &str = "schedule: gpipe\nmicrobatches: 16";

/// Trains this number of encoder layers. Returns what the boss said.
async fn train_encoder(machine: &Machine, layers: usize, more: &str) -> String {
    write_encoder(machine, layers, more);
    run_encoder(machine, &["train"]).await
}

fn write_encoder(machine: &Machine, layers: usize, more: &str) {
    let place = &machine.place;
    let model = format!(
        "inputs: {{x: [batch, 64, 64]}}\nlayers:\n- name: blocks\n  repeat: {layers}\n  layers:\n  \
         - TransformerEncoderLayer: {{d_model: 64, nhead: 4, dim_feedforward: 128, batch_first: \
         true}}\n    name: encoder\n"
    );
    std::fs::write(place.file("model.yaml"), model).unwrap();
    let all = (tch::Kind::Float, tch::Device::Cpu);
    let numbers = (tch::Tensor::arange(64 * 64 * 64, all) * 0.1).sin().reshape([64, 64, 64]);
    let data = place.file("data.safetensors");
    tch::Tensor::write_safetensors(&[("x", &numbers), ("target", &numbers)], &data).unwrap();
    let text = format!(
        "model: model.yaml\ndata: {{train: data.safetensors}}\nloss: MSELoss\noptimizer: {{AdamW: \
         {{lr: 0.001}}}}\nbatch_size: 64\nsteps: 3\n{more}\n"
    );
    std::fs::write(place.file("run.yaml"), text).unwrap();
}

/// Runs a command and its flags on one local worker.
async fn run_encoder(machine: &Machine, command: &[&str]) -> String {
    let (run, weights) = (machine.place.file("run.yaml"), machine.place.file("w.safetensors"));
    let (run, weights) = (run.to_str().unwrap(), weights.to_str().unwrap());
    let more = [run, "--save", weights, "--local", "1", "--threads", "1"];
    let boss = machine.start("bossman", &[command, &more].concat());
    let ended = boss.end_within(PATIENCE).await.expect_success();
    [ended.output, ended.errors].concat().join("\n")
}

#[tokio::test]
async fn a_run_that_is_out_of_memory_goes_on_with_recomputed_activations() {
    let checkpoint = "checkpoint: {dir: c, every: 1}";
    // Without checkpoints, the run begins again, and with them it would resume.
    for (command, ways) in
        [(&["train"][..], &["", checkpoint][..]), (&["serve", "--port", "0"], &[checkpoint])]
    {
        let Some(ample) = Machine::new(&[]) else { return };
        write_encoder(&ample, 4, ALL_AT_ONCE);
        let said = run_encoder(&ample, command).await;
        assert!(!said.contains("out of memory"), "{said}");
        for more in ways {
            let Some(machine) = Machine::new(&[("FAKECUDA_MEMORY", "25165824")]) else { return };
            write_encoder(&machine, 4, &format!("{ALL_AT_ONCE}\n{more}"));
            let said = run_encoder(&machine, command).await;
            let warnings: Vec<_> =
                said.lines().filter(|line| line.contains("out of memory after 0 steps")).collect();
            assert_eq!(warnings.len(), 1, "{said}");
            let warning = warnings[0];
            assert!(warning.contains("worker 0, stage 0"), "{warning}");
            assert!(warning.contains("the run goes on with `recompute: full`"), "{warning}");
            assert!(!said.contains("workers were lost"), "{said}");
            assert!(machine.weights() == ample.weights(), "{command:?}: other weights");
        }
    }
}

/// A microbatch takes about 4 MiB in each of twelve layers. The schedule is chosen, so the layers
/// are measured first. So it is when the run resumes, before any step.
#[tokio::test]
async fn a_run_that_would_be_out_of_memory_goes_on_with_recomputed_activations() {
    let Some(ample) = Machine::new(&[]) else { return };
    let more = "microbatches: 4\ncheckpoint: {dir: c, every: 1}";
    let said = train_encoder(&ample, 12, more).await;
    assert!(!said.contains("memory"), "{said}");
    let Some(machine) = Machine::new(&[("FAKECUDA_MEMORY", "46137344")]) else { return };
    let first = train_encoder(&machine, 12, more).await;
    let same = machine.weights() == ample.weights();
    for machine in [&ample, &machine] {
        let run = machine.place.file("run.yaml");
        let text = std::fs::read_to_string(&run).unwrap().replace("steps: 3", "steps: 5");
        std::fs::write(run, text).unwrap();
    }
    run_encoder(&ample, &["train", "--resume"]).await;
    let resumed = run_encoder(&machine, &["train", "--resume"]).await;
    let same = same && machine.weights() == ample.weights();
    assert!(same, "other weights than with ample memory");
    for said in [first, resumed] {
        let warnings: Vec<_> = said.lines().filter(|line| line.contains("memory")).collect();
        let [warning] = warnings[..] else { panic!("{said}") };
        assert!(warning.contains("by prediction no schedule fits the workers' memory"), "{said}");
        assert!(warning.contains("worker 0 needs"), "{said}");
        assert!(warning.contains("the run goes on with `recompute: full`"), "{said}");
    }
}

/// Trains eight linear layers on two workers, the first of which has this much memory. Each layer
/// takes 4.2 MB in training with Adam, so the even cut takes 16.8 MB of each GPU. Returns what the
/// boss said, and the weights.
async fn train_linear(machine: &Machine, memory: &str, rows: i64, more: &str) -> (String, Vec<u8>) {
    let place = &machine.place;
    let model = "inputs: {x: [batch, 512]}\nlayers:\n- name: blocks\n  repeat: 8\n  layers:\n  - \
                 Linear: {in_features: 512, out_features: 512}\n";
    std::fs::write(place.file("model.yaml"), model).unwrap();
    let all = (tch::Kind::Float, tch::Device::Cpu);
    let numbers = (tch::Tensor::arange(rows * 512, all) * 0.1).sin().reshape([rows, 512]);
    let data = place.file("data.safetensors");
    tch::Tensor::write_safetensors(&[("x", &numbers), ("target", &numbers)], &data).unwrap();
    let run = format!(
        "model: model.yaml\ndata: {{train: data.safetensors}}\nloss: MSELoss\noptimizer: {{AdamW: \
         {{lr: 0.001}}}}\nschedule: gpipe\nmicrobatches: 2\nbatch_size: {rows}\nsteps: 3\n{more}"
    );
    std::fs::write(place.file("run.yaml"), run).unwrap();
    let (run, weights) = (place.file("run.yaml"), place.file("w.safetensors"));
    let arguments =
        ["train", run.to_str().unwrap(), "--save", weights.to_str().unwrap(), "--workers", "2"];
    let mut boss = machine.start("bossman", &[&arguments[..], &["--port", "0"]].concat());
    let port = port(&mut boss).await;
    let worker = |device| ["--port", &port, "--threads", "1", "--device", device];
    let small = machine.start_with("worker", &worker("cuda:0"), &[("FAKECUDA_MEMORY", memory)]);
    boss.line("worker 0").await;
    let large = machine.start("worker", &worker("cuda:1"));
    let ended = boss.end_within(PATIENCE).await.expect_success();
    small.end().await.expect_success();
    large.end().await.expect_success();
    ([ended.output, ended.errors].concat().join("\n"), std::fs::read(&weights).unwrap())
}

const AMPLE: &str = "1073741824";

#[tokio::test]
async fn a_gpu_with_less_memory_gets_fewer_layers() {
    let Some(machine) = Machine::new(&[]) else { return };
    let (_, ample) = train_linear(&machine, AMPLE, 8, "").await;
    let (said, weights) = train_linear(&machine, "16777216", 8, "").await;
    assert!(!said.contains("out of memory"), "{said}");
    assert!(weights == ample, "other weights than with ample memory");
}

/// The parameters of half the layers fit, but not beside what the passes store.
#[tokio::test]
async fn a_run_that_recomputes_and_is_out_of_memory_goes_on_with_another_plan() {
    let Some(machine) = Machine::new(&[]) else { return };
    let more = |folder| format!("recompute: full\ncheckpoint: {{dir: {folder}, every: 1}}\n");
    let (_, ample) = train_linear(&machine, AMPLE, 512, &more("a")).await;
    // Once there is the state of the optimizer.
    let (said, weights) = train_linear(&machine, "20971520", 512, &more("b")).await;
    let lines = said.lines().filter(|line| line.contains("out of memory after "));
    assert_eq!(lines.clone().count(), 1, "{said}");
    let plan = "a plan that leaves a quarter of the workers' memory unused";
    assert!(lines.clone().all(|line| line.contains("worker 0") && line.contains(plan)), "{said}");
    assert!(weights == ample, "other weights than with ample memory");
}
