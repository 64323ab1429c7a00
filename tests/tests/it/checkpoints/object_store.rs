//! Tests checkpoints in an object store.

use super::s3::S3;
use super::{quiet, Run, EVERY, MODEL};

const PLACE: &str = "dir: s3://bucket/runs/one";

/// One layer is larger than one part of an upload.
const WIDE: &str = "
model: wide
inputs: {x: [batch, 64]}
layers:
  - Linear: {in_features: 64, out_features: 1500}
  - ReLU
  - Linear: {in_features: 1500, out_features: 1500}
  - ReLU
  - Linear: {in_features: 1500, out_features: 10}
";

#[tokio::test]
async fn a_run_goes_on_from_an_object_store() {
    let quiet = quiet().await;
    let s3 = S3::start().await;
    let run = Run::of(MODEL, s3.environment("secret"));
    let every = EVERY.replace("dir: c", PLACE);
    for (steps, workers, flags) in [(16, "2", &[][..]), (40, "1", &["--resume"][..])] {
        run.write(steps, &every);
        run.train(workers, flags).await.expect_success();
    }
    assert!(run.outputs() == *quiet, "{:#?}\n{:#?}", run.outputs().0, quiet.0);
    let listed = run
        .bossman(&["checkpoint", "ls", "s3://bucket/runs/one"])
        .end()
        .await
        .expect_success()
        .output;
    let names: Vec<_> = listed.iter().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(names, ["step-00000035", "step-00000040"]);
    // Nothing else is left in the store.
    let mut left: Vec<_> =
        std::fs::read_dir(s3.folder().join("bucket/runs/one")).unwrap().collect();
    left.retain(|entry| entry.as_ref().unwrap().path().join("manifest.json").exists());
    assert_eq!(left.len(), 2, "{left:?}");
}

#[tokio::test]
async fn who_may_not_read_a_store_is_told_so_before_training() {
    let s3 = S3::start().await;
    let run = Run::of(MODEL, s3.environment("guessed"));
    run.write(7, &EVERY.replace("dir: c", PLACE));
    let error = run.train("1", &[]).await.error_line();
    assert!(
        error.contains("s3://bucket/runs/one") && error.contains("SignatureDoesNotMatch"),
        "{error}"
    );
    assert!(!error.contains("guessed"), "{error}");
}

/// The connection breaks at each attempt to upload a layer of one checkpoint. Training continues,
/// and so do the next checkpoints.
#[tokio::test]
async fn a_broken_upload_costs_that_checkpoint_alone() {
    let optimizer = "optimizer: {SGD: {lr: 0.05}}";
    let quiet = Run::of(WIDE, Vec::new());
    quiet.write(30, optimizer);
    quiet.train("1", &[]).await.expect_success();

    let s3 = S3::start().await;
    let run = Run::of(WIDE, s3.environment("secret"));
    let every = EVERY.replace("dir: c", PLACE);
    run.write(21, &format!("{every}\n{optimizer}"));
    s3.break_at("step-00000014/weights/0001");
    let ended = run.train("1", &[]).await.expect_success();
    let warning = ended
        .errors
        .iter()
        .find(|line| line.contains("warning: no checkpoint of step 14: "))
        .unwrap();
    assert!(warning.contains("s3://bucket/runs/one/step-00000014/weights/0001"), "{warning}");
    let verified = run
        .bossman(&["checkpoint", "verify", "s3://bucket/runs/one"])
        .end()
        .await
        .expect_success()
        .output;
    assert_eq!(verified, ["step-00000007  whole", "step-00000021  whole"]);

    run.write(30, &format!("{every}\n{optimizer}"));
    run.train("2", &["--resume"]).await.expect_success();
    assert!(run.outputs() == quiet.outputs(), "{:#?}\n{:#?}", run.outputs().0, quiet.outputs().0);
}
