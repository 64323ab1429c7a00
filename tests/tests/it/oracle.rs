//! Compares BossMan with PyTorch on the same models, weights and data.
//! `tests/oracle/README.md` says how.

use bossman::StateDict;
use std::path::{Path, PathBuf};
use tch::{Kind, Tensor};
use tests::programs::TestFolder;

const TOLERANCE: f64 = 1e-5;
/// Figures nearer to zero than this count as this large, because the last bits of a sum come from
/// its largest terms.
const FLOOR: f64 = 0.01;

fn cases() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("oracle");
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut cases: Vec<_> = entries.filter(|path| path.join("run.yaml").exists()).collect();
    cases.sort();
    cases
}

/// Returns the worst difference, relative to the expected value.
fn worst(expected: &Tensor, found: &Tensor) -> f64 {
    assert_eq!((expected.size(), expected.kind()), (found.size(), found.kind()));
    let (expected, found) = (expected.to_kind(Kind::Double), found.to_kind(Kind::Double));
    let relative = (&expected - found).abs() / expected.abs().clamp_min(FLOOR);
    relative.max().double_value(&[])
}

async fn check(case: &Path, workers: &str) {
    let name = format!("{}, {workers} worker(s)", case.file_name().unwrap().to_string_lossy());
    let place = TestFolder::new();
    let files = [
        case.join("run.yaml"),
        case.join("init.safetensors"),
        place.file("metrics"),
        place.file("weights"),
    ];
    let [run, init, metrics, weights] = files.each_ref().map(|path| path.to_str().unwrap());
    let arguments =
        ["train", run, "--local", workers, "--init", init, "--metrics", metrics, "--save", weights];
    place
        .start("bossman", &[&arguments[..], &["--no-shuffle"]].concat())
        .end()
        .await
        .expect_success();

    let losses = std::fs::read_to_string(case.join("losses.json")).unwrap();
    let expected: Vec<f64> = serde_json::from_str(&losses).unwrap();
    let lines = std::fs::read_to_string(metrics).unwrap();
    let loss = |line: &str| {
        serde_json::from_str::<serde_json::Value>(line).unwrap()["loss"].as_f64().unwrap()
    };
    let found: Vec<f64> = lines.lines().map(loss).collect();
    let loss = worst(&Tensor::from_slice(&expected), &Tensor::from_slice(&found));

    let (expected, found) = (
        StateDict::load(case.join("final.safetensors")).unwrap(),
        StateDict::load(weights).unwrap(),
    );
    let names =
        |state: &StateDict| state.iter().map(|(name, _)| name.to_string()).collect::<Vec<_>>();
    assert_eq!(names(&expected), names(&found), "{name}");
    let weight = expected
        .iter()
        .map(|(name, tensor)| worst(tensor, found.get(name).unwrap()))
        .fold(0.0, f64::max);
    println!("{name:40} worst loss {loss:.1e}, worst weight {weight:.1e}");
    // In this form, NaN fails.
    assert!(
        loss <= TOLERANCE && weight <= TOLERANCE,
        "{name}: loss off by {loss:.1e}, a weight by {weight:.1e}"
    );
}

#[tokio::test]
async fn losses_and_weights_are_those_of_pytorch() {
    let cases = cases();
    assert!(cases.len() >= 9, "only {cases:?}");
    for case in cases {
        for workers in ["1", "2", "3"] {
            check(&case, workers).await;
        }
    }
}
