//! Tests tensors of files that are not learned, with real processes: their cut does not show, and
//! `bossman verify` finds that the file is another one.

use bossman::StateDict;
use std::path::PathBuf;
use tch::Tensor;
use tests::programs::TestFolder;
use tests::Training;

const MODEL: &str = "
model: constants
inputs: {x: [batch, 8]}
layers:
  - Linear: {in_features: 8, out_features: 8}
    out_variables: [h]
  - Constant: {path: constants.safetensors, tensor: order, shape: [6], dtype: int64}
    name: order
    out_variables: [order]
  - Constant: {path: constants.safetensors, tensor: bias, shape: [1, 6], expand: true}
    input: h
    out_variables: [bias]
  - Index: {dim: 1}
    name: selected
    input: h
    in_variables: [order]
  - Add: {}
    in_variables: [bias]
  - Linear: {in_features: 6, out_features: 1}
    name: head
";

/// Writes the file of the constants, with this order of the selected columns.
fn write_constants(place: &TestFolder, order: [i64; 6]) {
    let mut constants = StateDict::default();
    constants.insert("order", &Tensor::from_slice(&order));
    let bias = Tensor::from_slice(&[0.5f32, -1.0, 0.25, 2.0, -0.125, 3.0]).reshape([1, 6]);
    constants.insert("bias", &bias);
    constants.save(place.file("constants.safetensors")).unwrap();
}

/// A folder with model, constants and data.
fn folder() -> TestFolder {
    let place = TestFolder::new();
    let line = |i: i32| {
        let numbers = (0..9).map(|j| (f64::from((7 * i + 3 * j) % 11) / 5.0 - 1.0).to_string());
        numbers.collect::<Vec<_>>().join(",") + "\n"
    };
    std::fs::write(place.file("data.csv"), (0..64).map(line).collect::<String>()).unwrap();
    std::fs::write(place.file("model.yaml"), MODEL).unwrap();
    write_constants(&place, [7, 0, 0, 3, 5, 2]);
    place
}

/// Trains for a few steps with this number of local workers, and keeps the run as `name`.
async fn train(place: &TestFolder, name: &str, workers: &str, more: &str) -> Training {
    let text = format!(
        "model: model.yaml\ndata: {{train: data.csv}}\nloss: MSELoss\noptimizer: {{Adam: {{lr: \
         1e-2}}}}\nbatch_size: 32\nmicrobatches: 5\nsteps: 12\n{more}\n"
    );
    let run = place.file("run.yaml");
    std::fs::write(&run, text).unwrap();
    let run = run.to_str().unwrap();
    let flags = ["--local", workers, "--threads", "1", "--name", name];
    place.start("bossman", &[&["train", run][..], &flags].concat()).end().await.expect_success();
    let folder = run_folder(place, name);
    let metrics = std::fs::read_to_string(folder.join("metrics.jsonl")).unwrap();
    let weights = StateDict::load(folder.join("weights.safetensors")).unwrap();
    Training::of_files(&metrics, &weights)
}

fn run_folder(place: &TestFolder, name: &str) -> PathBuf {
    place.file("run-folders").join(name)
}

#[tokio::test]
async fn constants_train_to_the_same_bits_for_every_cut_and_with_replicas() {
    let place = folder();
    let one = train(&place, "one", "1", "").await;
    assert_eq!(one.steps(), 12);
    for (name, workers, cuts) in [
        ("before-use", "2", "cuts: [selected]"),
        ("before-constants", "2", "cuts: [order]"),
        ("constants-alone", "3", "cuts: [order, selected]"),
    ] {
        one.assert_same(&train(&place, name, workers, cuts).await, &name);
    }
    let pipeline = train(&place, "pipeline", "2", "replicas: 1\ncuts: [selected]").await;
    let replicas = train(&place, "replicas", "2", "replicas: 2").await;
    pipeline.assert_same(&replicas, &"two replicas");

    let weights = StateDict::load(run_folder(&place, "one").join("weights.safetensors")).unwrap();
    let names: Vec<&str> = weights.iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["0.bias", "0.weight", "head.bias", "head.weight"]);
}

#[tokio::test]
async fn verify_finds_that_a_constant_has_changed() {
    let place = folder();
    train(&place, "run", "1", "").await;
    let folder = run_folder(&place, "run");
    let verify = || place.start("bossman", &["verify", folder.to_str().unwrap()]).end();
    verify().await.expect_success();
    write_constants(&place, [7, 0, 0, 3, 5, 1]);
    let ended = verify().await;
    assert_eq!(ended.status.code(), Some(1), "{:?}", ended.output);
    let expected = "its layers are built from other files";
    assert!(ended.errors.iter().any(|line| line.contains(expected)), "{:?}", ended.errors);
}
