//! Tests runs that stop and resume from a checkpoint, with other workers, cuts and schedules.
//! Losses, metrics and weights are those of a run that never stopped, to the bit.

#[cfg(target_os = "linux")]
mod full_disk;
mod object_store;
mod s3;

use std::path::Path;
use std::time::Duration;
use tests::programs::{Ended, Process, TestFolder};
use tests::sample::{is_sampled, sampled};
use tests::stateful_model::MODEL;
use tokio::sync::OnceCell;

/// The time limit of a run; far longer than any run here takes.
const PATIENCE: Duration = Duration::from_secs(120);

struct Run {
    place: TestFolder,
    environment: Vec<(&'static str, String)>,
}

impl Run {
    fn new() -> Self {
        Run::of(MODEL, Vec::new())
    }

    fn of(model: &str, environment: Vec<(&'static str, String)>) -> Self {
        let place = TestFolder::new();
        std::fs::write(place.file("model.yaml"), model).unwrap();
        let digits =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/digits/digits-train.csv.gz");
        std::fs::copy(digits, place.file("digits.csv.gz")).unwrap();
        Run { place, environment }
    }

    fn write(&self, steps: u64, more: &str) {
        let text = format!(
            "model: model.yaml\ndata: {{train: digits.csv.gz, validation: {{split: 0.2}}}}\nloss: \
             CrossEntropyLoss\nlr_schedule: {{cosine: {{total_steps: 250, warmup: \
             5}}}}\nclip_grad_norm: 1.0\nbatch_size: 100\nmicrobatches: 5\nseed: 3\nsteps: \
             {steps}\n{more}\n"
        );
        let optimizer =
            if more.contains("optimizer:") { "" } else { "optimizer: {AdamW: {lr: 0.01}}\n" };
        let text = format!("{text}{optimizer}");
        std::fs::write(self.place.file("run.yaml"), text).unwrap();
    }

    fn arguments(&self, workers: &str, flags: &[&str]) -> Vec<String> {
        let [run, metrics, save] =
            ["run.yaml", "metrics.jsonl", "w.safetensors"].map(|name| self.place.file(name));
        let paths = [run, metrics, save].map(|path| path.to_str().unwrap().to_string());
        let [run, metrics, save] = paths;
        let all = [
            "train",
            &run,
            "--metrics",
            &metrics,
            "--save",
            &save,
            "--local",
            workers,
            "--threads",
            "1",
        ];
        all.iter().chain(flags).map(|word| word.to_string()).collect()
    }

    async fn train(&self, workers: &str, flags: &[&str]) -> Ended {
        self.begin(workers, flags).end_within(PATIENCE).await
    }

    fn begin(&self, workers: &str, flags: &[&str]) -> Process {
        let arguments = self.arguments(workers, flags);
        self.bossman(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
    }

    fn bossman(&self, arguments: &[&str]) -> Process {
        let environment: Vec<_> =
            self.environment.iter().map(|(name, value)| (*name, value.as_str())).collect();
        self.place.start_with("bossman", arguments, &environment)
    }

    /// Returns the metrics of steps without times, and the weights.
    fn outputs(&self) -> (Vec<String>, Vec<u8>) {
        let (metrics, weights, _) = self.all_outputs();
        // A run validates the model at its last step.
        (metrics.into_iter().filter(|line| !line.contains("validation")).collect(), weights)
    }

    /// Returns all metrics without times, the weights and the best weights.
    fn all_outputs(&self) -> (Vec<String>, Vec<u8>, Vec<u8>) {
        let metrics = std::fs::read_to_string(self.place.file("metrics.jsonl")).unwrap();
        let line = |line: &str| {
            let all: serde_json::Map<String, serde_json::Value> =
                serde_json::from_str(line).unwrap();
            let all = all.into_iter().filter(|(key, _)| key != "step_ms");
            all.map(|(key, value)| format!("{key}={value} ")).collect()
        };
        let weights = |name: &str| std::fs::read(self.place.file(name)).unwrap();
        (
            metrics.lines().map(line).collect(),
            weights("w.safetensors"),
            weights("w.best.safetensors"),
        )
    }
}

const EVERY: &str = "checkpoint: {dir: c, every: 7, keep: 2}";

/// Trains the parts of a run in turn. A part has the step after which it stops, the number of
/// workers, and further settings.
async fn in_parts(parts: &[(u64, &str, &str)]) -> (Vec<String>, Vec<u8>) {
    let run = Run::new();
    for (number, (steps, workers, more)) in parts.iter().enumerate() {
        run.write(*steps, &format!("{EVERY}\n{more}"));
        let resume: &[&str] = if number == 0 { &[] } else { &["--resume"] };
        run.train(workers, resume).await.expect_success();
    }
    run.outputs()
}

/// The outputs of a run that nothing interrupted.
async fn quiet() -> &'static (Vec<String>, Vec<u8>) {
    static QUIET: OnceCell<(Vec<String>, Vec<u8>)> = OnceCell::const_new();
    QUIET.get_or_init(|| async { at_once("1", "").await.outputs() }).await
}

async fn at_once(workers: &str, more: &str) -> Run {
    let run = Run::new();
    run.write(40, more);
    run.train(workers, &[]).await.expect_success();
    run
}

#[tokio::test]
async fn a_run_goes_on_among_other_workers() {
    let quiet = quiet().await;
    let parts = [
        (9, "1", "schedule: 1f1b"),
        (21, "3", "schedule: zb-h1"),
        (22, "2", "schedule: interleaved\nchunks: 2"),
        (40, "2", ""),
    ];
    let found = in_parts(&parts).await;
    assert!(found == *quiet, "{:#?}\n{:#?}", found.0, quiet.0);
}

#[tokio::test]
async fn a_run_goes_on_with_other_replicas_and_shards() {
    let quiet = at_once("1", "replicas: 1").await.outputs();
    let parts = [
        (8, "2", "replicas: 2\nshard: optimizer"),
        (15, "3", "replicas: 3\nshard: parameters\nchunks: 2"),
        (23, "3", "replicas: [1, 2]"),
        (31, "2", "replicas: 2\nshard: gradients"),
        (40, "2", "replicas: auto"),
    ];
    let parts: Vec<_> = sampled(parts, 2).collect();
    let found = in_parts(&parts).await;
    assert!(found == quiet, "{:#?}\n{:#?}", found.0, quiet.0);
}

#[tokio::test]
async fn gradients_of_several_steps_belong_to_one_update() {
    let more = "accumulate: 3\noptimizer: {SGD: {lr: 0.05, momentum: 0.9}}";
    let quiet = at_once("1", more).await.outputs();
    let run = Run::new();
    // A checkpoint is due after every second step, but made only after every third.
    for (steps, flags) in [(20, &[][..]), (40, &["--resume"][..])] {
        run.write(steps, &format!("checkpoint: {{dir: c, every: 2, keep: 1}}\n{more}"));
        run.train("2", flags).await.expect_success();
    }
    assert!(run.outputs() == quiet, "{:#?}\n{:#?}", run.outputs().0, quiet.0);
}

/// Kills the boss at any moment, also while it writes. CKPT-1, CKPT-2.
#[tokio::test]
async fn a_boss_that_is_killed_again_and_again_leaves_no_trace_in_the_result() {
    // Enough steps that no run ends before it is killed, and few enough to write a checkpoint after
    // each on a busy disk.
    let steps = if is_sampled() { 60 } else { 100 };
    let first = Run::new();
    first.write(1, "");
    first.train("1", &[]).await.expect_success();
    let weights = first.place.file("w.safetensors");
    let weights = ["--weights", weights.to_str().unwrap()];
    let quiet = {
        let run = Run::new();
        run.write(steps, "");
        run.train("1", &weights).await.expect_success();
        run.all_outputs()
    };
    let run = Run::new();
    run.write(steps, "checkpoint: {dir: c, every: 1, keep: 2}\nschedule: 1f1b");
    for killed_at in ["checkpoint of step 3 ", " written", "resuming from", " written"] {
        // A supervisor starts it the same way, again and again.
        let mut boss = run.begin("2", &["--resume=if-any", weights[0], weights[1]]);
        boss.line(killed_at).await;
        boss.signal("KILL");
        boss.end().await;
        // Now a checkpoint exists, and the initial weights are not read any more.
        std::fs::remove_file(weights[1]).ok();
    }
    let line = run.train("2", &["--resume", weights[0], weights[1]]).await.error_line();
    assert!(
        line.contains("--weights: with --resume the run goes on with its checkpoint's"),
        "{line}"
    );
    run.train("2", &["--resume"]).await.expect_success();
    let (found, expected) = (run.all_outputs(), quiet);
    let differs = found.0.iter().zip(&expected.0).find(|(found, expected)| found != expected);
    assert!(found == expected, "{differs:?}; {} and {} lines", found.0.len(), expected.0.len());
    let left = std::fs::read_dir(run.place.file("c")).unwrap().map(|entry| entry.unwrap());
    let left: Vec<_> = left.map(|entry| entry.file_name()).filter(|name| name != "lock").collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

/// CKPT-2.
#[tokio::test]
async fn a_damaged_checkpoint_is_named_and_the_one_before_is_used() {
    let quiet = quiet().await;
    let run = Run::new();
    run.write(21, EVERY);
    run.train("2", &[]).await.expect_success();
    let folder = run.place.file("c/step-00000021/weights");
    let damaged = std::fs::read_dir(folder).unwrap().next().unwrap().unwrap().path();
    let mut bytes = std::fs::read(&damaged).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&damaged, bytes).unwrap();
    // The command also reports it.
    let dir = run.place.file("c");
    let verify =
        run.place.start("bossman", &["checkpoint", "verify", dir.to_str().unwrap()]).end().await;
    assert_eq!(verify.status.code(), Some(1));
    assert!(
        verify.output[0].ends_with("step-00000014  whole")
            && verify.output[1].contains("is damaged"),
        "{:?}",
        verify.output
    );
    run.write(40, EVERY);
    let ended = run.train("2", &["--resume"]).await.expect_success();
    let warning = ended.errors.iter().find(|line| line.contains("is damaged")).unwrap();
    assert!(
        warning.contains(damaged.to_str().unwrap())
            && warning.contains("looking for the checkpoint before"),
        "{warning}"
    );
    assert!(
        ended.output.iter().any(|line| line.contains("resuming from the checkpoint of step 14")),
        "{:?}",
        ended.output
    );
    assert!(run.outputs() == *quiet, "{:#?}\n{:#?}", run.outputs().0, quiet.0);
}

/// A failed read is no damage: nothing falls back, nothing is deleted, and the run resumes from the
/// newest when the disk heals. CKPT-4, CKPT-6.
#[tokio::test]
#[cfg(unix)]
async fn a_checkpoint_that_cannot_be_read_is_neither_skipped_nor_deleted() {
    let quiet = quiet().await;
    let run = Run::new();
    run.write(21, EVERY);
    run.train("2", &[]).await.expect_success();
    let dir = run.place.file("c");
    let command = async |arguments: &[&str]| {
        let all = [&["checkpoint"], arguments, &[dir.to_str().unwrap()]].concat();
        run.place.start("bossman", &all).end().await
    };
    // A link to itself: even root cannot open it.
    let (manifest, aside) = (dir.join("step-00000021/manifest.json"), run.place.file("aside"));
    std::fs::rename(&manifest, &aside).unwrap();
    std::os::unix::fs::symlink(&manifest, &manifest).unwrap();
    run.write(40, EVERY);
    for flag in ["--resume", "--resume=if-any"] {
        let error = run.train("2", &[flag]).await.error_line();
        let named =
            error.contains(manifest.to_str().unwrap()) && error.contains("cannot be read: ");
        assert!(named && error.contains("--after step-00000014`"), "{error}");
    }
    let listed = command(&["ls"]).await.expect_success().output;
    assert!(listed[1].starts_with("step-00000021  unknown: "), "{listed:?}");
    let verified = command(&["verify"]).await;
    assert_eq!(verified.status.code(), Some(1));
    assert!(
        verified.errors.iter().any(|line| line.contains("1 of 2 checkpoints cannot be read")),
        "{:?}",
        verified.errors
    );
    let pruned = command(&["prune", "--keep", "1"]).await.expect_success().output;
    assert!(pruned.is_empty(), "{pruned:?}");
    std::fs::rename(&aside, &manifest).unwrap();
    // Now a checkpoint before the newest cannot be read.
    let manifest = dir.join("step-00000014/manifest.json");
    std::fs::rename(&manifest, &aside).unwrap();
    std::os::unix::fs::symlink(&manifest, &manifest).unwrap();
    let error = command(&["prune", "--keep", "1"]).await.error_line();
    assert!(error.contains("checkpoints that may be whole are not deleted: "), "{error}");
    let ended = run.train("2", &["--resume"]).await.expect_success();
    assert!(
        ended.output.iter().any(|line| line.contains("resuming from the checkpoint of step 21")),
        "{:?}",
        ended.output
    );
    std::fs::rename(&aside, &manifest).unwrap();
    let verified = command(&["verify"]).await.expect_success().output;
    assert_eq!(verified, ["step-00000014  whole", "step-00000035  whole", "step-00000040  whole"]);
    assert!(run.outputs() == *quiet, "{:#?}\n{:#?}", run.outputs().0, quiet.0);
}

/// The story: two runs name one folder. The second would take the first one's checkpoints for old
/// ones of its own. But a boss that hangs keeps nobody from going on in its place.
#[tokio::test]
async fn a_folder_in_which_another_run_trains_is_refused_or_warned_of() {
    let run = Run::new();
    run.write(7, EVERY);
    std::fs::create_dir(run.place.file("c")).unwrap();
    let held = std::fs::File::create(run.place.file("c/lock")).unwrap();
    held.lock().unwrap();
    for flags in [&[][..], &["--resume=if-any"]] {
        let error = run.train("1", flags).await.error_line();
        assert!(error.contains("trains in this folder"), "{error}");
    }
    held.unlock().unwrap();
    run.train("1", &[]).await.expect_success();
    held.lock().unwrap();
    run.write(14, EVERY);
    let ended = run.train("1", &["--resume"]).await.expect_success();
    assert!(ended.errors.join("").contains("trains in this folder"), "{:?}", ended.errors);
}

#[tokio::test]
async fn what_would_not_go_on_as_it_was_is_refused() {
    let run = Run::new();
    run.write(7, "");
    let error = run.train("1", &["--resume"]).await.error_line();
    assert!(error.contains("--resume: the run file has no `checkpoint`"), "{error}");
    run.write(7, EVERY);
    let error = run.train("1", &["--resume"]).await.error_line();
    assert!(error.ends_with("c: there is no such folder"), "{error}");
    run.train("1", &[]).await.expect_success();
    let error = run.train("1", &[]).await.error_line();
    assert!(
        error.contains("holds checkpoints of a run up to step 7; --resume goes on with it"),
        "{error}"
    );
    let refused = async |from: &str, to: &str, expected: &str| {
        run.write(9, EVERY);
        let text = std::fs::read_to_string(run.place.file("run.yaml")).unwrap();
        assert!(text.contains(from));
        std::fs::write(run.place.file("run.yaml"), text.replace(from, to)).unwrap();
        let error = run.train("1", &["--resume"]).await.error_line();
        assert!(error.contains(expected), "{error}");
    };
    refused(
        "seed: 3",
        "seed: 4",
        "--resume: seed was 3 and is 4, so the run would not go on as it was",
    )
    .await;
    refused("batch_size: 100", "batch_size: 50", "batch_size was 100 and is 50").await;
    refused("split: 0.2", "split: 0.3", "the number of samples to train on was").await;
    refused(
        "AdamW: {lr: 0.01}",
        "SGD: {lr: 0.01, momentum: 0.9}",
        "--resume: optimizer was AdamW and is SGD",
    )
    .await;
    std::fs::write(run.place.file("metrics.jsonl"), "").unwrap();
    refused("seed: 3", "seed: 3", "metrics.jsonl: has 0 bytes, but had").await;
    // A later checkpoint is in the way, and `prune` deletes it.
    std::fs::remove_file(run.place.file("metrics.jsonl")).unwrap();
    std::fs::remove_dir_all(run.place.file("c")).unwrap();
    run.write(21, EVERY);
    run.train("1", &[]).await.expect_success();
    let error = run.train("1", &["--resume=step-00000014"]).await.error_line();
    assert!(error.contains("--after step-00000014` deletes them"), "{error}");
    let dir = run.place.file("c");
    let command = async |arguments: &[&str]| {
        let all = [&["checkpoint"], arguments, &[dir.to_str().unwrap()]].concat();
        run.place.start("bossman", &all).end().await.expect_success().output
    };
    assert_eq!(command(&["prune", "--after", "step-00000014"]).await, ["deleted step-00000021"]);
    run.train("1", &["--resume=step-00000014"]).await.expect_success();
    let listed = command(&["ls"]).await;
    assert_eq!(listed.len(), 2, "{listed:?}");
    assert!(
        listed[0].starts_with("step-00000014  ") && listed[1].starts_with("step-00000021  "),
        "{listed:?}"
    );
}
