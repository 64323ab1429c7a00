//! Tests a user's own layers with real processes: their cut does not show, and a worker that lacks
//! them reports it.

use bossman::StateDict;
use std::path::{Path, PathBuf};
use tests::programs::{program, Ended, TestFolder};
use tests::Training;

fn checkout(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// Trains for a few steps with this number of local workers.
async fn train(
    place: &TestFolder,
    run: &Path,
    workers: &str,
    more: &[&str],
    worker: Option<&Path>,
) -> Ended {
    let (metrics, weights) =
        (place.file(&format!("{workers}.jsonl")), place.file(&format!("{workers}.safetensors")));
    let outcome = ["--metrics", metrics.to_str().unwrap(), "--save", weights.to_str().unwrap()];
    let fixed = ["train", run.to_str().unwrap(), "--local", workers, "--threads", "1"];
    let environment: Vec<_> =
        worker.map(|program| ("BOSSMAN_WORKER", program.to_str().unwrap())).into_iter().collect();
    place.start_with("bossman", &[&fixed[..], &outcome, more].concat(), &environment).end().await
}

fn outputs(place: &TestFolder, workers: &str) -> Training {
    let metrics = std::fs::read_to_string(place.file(&format!("{workers}.jsonl"))).unwrap();
    Training::of_files(
        &metrics,
        &StateDict::load(place.file(&format!("{workers}.safetensors"))).unwrap(),
    )
}

/// Writes the example's run with fewer steps.
fn swish(place: &TestFolder) -> PathBuf {
    let text = std::fs::read_to_string(checkout("examples/own-layer/run.yaml")).unwrap();
    let folder = checkout("examples/own-layer").canonicalize().unwrap();
    let text = text.replace("swish.yaml", &format!("{}/swish.yaml", folder.display()));
    let text = text
        .replace("../digits", &format!("{}/../digits", folder.display()))
        .replace("epochs: 10", "steps: 20");
    let path = place.file("run.yaml");
    std::fs::write(&path, text).unwrap();
    path
}

fn script(place: &TestFolder) -> PathBuf {
    let line = |i: i32| {
        let numbers = (0..9).map(|j| (f64::from((7 * i + 3 * j) % 11) / 5.0 - 1.0).to_string());
        numbers.collect::<Vec<_>>().join(",") + "\n"
    };
    std::fs::write(place.file("data.csv"), (0..64).map(line).collect::<String>()).unwrap();
    let model = checkout("tests/own/model.yaml").canonicalize().unwrap();
    let text = format!(
        "model: {}\ndata: {{train: data.csv}}\nloss: MSELoss\noptimizer: {{Adam: {{lr: \
         1e-2}}}}\nbatch_size: 32\nmicrobatches: 5\nsteps: 12\n",
        model.display()
    );
    let path = place.file("run.yaml");
    std::fs::write(&path, text).unwrap();
    path
}

#[tokio::test]
async fn a_layer_in_rust_trains_to_the_same_bits_on_one_worker_and_on_three() {
    let place = TestFolder::new();
    let (run, worker) = (swish(&place), program("own-worker"));
    for workers in ["1", "3"] {
        train(&place, &run, workers, &[], Some(&worker)).await.expect_success();
    }
    outputs(&place, "1").assert_same(&outputs(&place, "3"), &"three workers");
    assert_eq!(outputs(&place, "1").steps(), 20);
}

#[tokio::test]
async fn a_worker_without_the_layer_says_so_before_training() {
    let place = TestFolder::new();
    let line = train(&place, &swish(&place), "2", &[], None).await.error_line();
    let expected =
        "the own layer `Swish`: this worker was built without it, of own layers it has none";
    assert!(line.contains("layer 1 (Custom)") && line.contains(expected), "{line}");
}

#[tokio::test]
async fn a_torchscript_file_trains_to_the_same_bits_on_one_worker_and_on_three() {
    let place = TestFolder::new();
    let run = script(&place);
    for workers in ["1", "3"] {
        train(&place, &run, workers, &["--allow-torchscript"], None).await.expect_success();
    }
    outputs(&place, "1").assert_same(&outputs(&place, "3"), &"three workers");
    let trained = StateDict::load(place.file("3.safetensors")).unwrap();
    let scale = trained
        .iter()
        .find(|(name, _)| *name == "block.scale")
        .map(|(_, tensor)| tensor.double_value(&[]));
    assert!(scale.is_some_and(|scale| scale > 0.0 && scale != 0.5), "it began with 0.5: {scale:?}");
}

#[tokio::test]
async fn a_worker_runs_no_torchscript_unless_it_is_told_to() {
    let place = TestFolder::new();
    let line = train(&place, &script(&place), "3", &[], None).await.error_line();
    assert!(
        line.contains("layer block (TorchScript)")
            && line.contains("block.pt: it is a program")
            && line.contains("--allow-torchscript"),
        "{line}"
    );
}

/// Writes a run of a model with operators of PyTorch.
fn operators(place: &TestFolder, more: &str) -> PathBuf {
    let model = "model: operators\ninputs: {x: [batch, 8]}\nlayers:\n  \
                 - Linear: {in_features: 8, out_features: 12}\n  \
                 - Aten: {op: view, args: {size: [batch, 3, 4]}, out: [batch, 3, 4]}\n  \
                 - Aten: {op: roll, args: {shifts: [1], dims: [2]}}\n  \
                 - Aten: {op: linalg_vector_norm, args: {ord: 3, dim: [2]}, out: [batch, 3]}\n  \
                 - Linear: {in_features: 3, out_features: 1}\n";
    std::fs::write(place.file("model.yaml"), model).unwrap();
    let run = script(place);
    let text = std::fs::read_to_string(&run).unwrap();
    let rest = text.split_once('\n').unwrap().1;
    std::fs::write(&run, format!("model: model.yaml\n{rest}{more}")).unwrap();
    run
}

#[tokio::test]
async fn operators_of_pytorch_train_to_the_same_bits_on_any_workers() {
    let place = TestFolder::new();
    let run = operators(&place, "");
    for workers in ["1", "3"] {
        train(&place, &run, workers, &[], None).await.expect_success();
    }
    outputs(&place, "1").assert_same(&outputs(&place, "3"), &"three workers");
    let run = operators(&place, "replicas: 2\n");
    for workers in ["2", "4"] {
        train(&place, &run, workers, &[], None).await.expect_success();
    }
    outputs(&place, "2").assert_same(&outputs(&place, "4"), &"replicas of two stages");
}

#[tokio::test]
async fn an_operator_that_is_not_allowed_is_refused_before_training() {
    let place = TestFolder::new();
    let run = operators(&place, "");
    let model = std::fs::read_to_string(place.file("model.yaml")).unwrap();
    let model = model.replace("op: roll, args: {shifts: [1], dims: [2]}", "op: empty_like");
    std::fs::write(place.file("model.yaml"), model).unwrap();
    let line = train(&place, &run, "2", &[], None).await.error_line();
    assert!(line.contains("layer 2 (Aten)") && line.contains("not allowed"), "{line}");
}
