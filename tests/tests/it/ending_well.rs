//! Tests runs that the user ends: they stop after their step and save everything.

use std::path::Path;
use std::time::{Duration, Instant};
use tests::programs::{assert_within, free_port, program, Ended, TestFolder};
use tests::Case;

/// Far more steps than any test here trains.
const ENDLESS: usize = 1_000_000_000;

fn interrupted(ended: &Ended, code: i32) -> String {
    assert_eq!(ended.status.code(), Some(code), "{:?}", ended.errors);
    let last = ended.errors.last().unwrap();
    last.strip_prefix("bossman: interrupted; ").unwrap_or_else(|| panic!("{last}")).to_string()
}

/// The lines of metrics without times.
pub(crate) fn losses(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| line.split(",\"samples\"").next().unwrap().to_string()).collect()
}

#[tokio::test]
async fn a_run_that_is_ended_leaves_a_checkpoint_and_goes_on_to_the_same_bits() {
    let more = "microbatches: 4\ncheckpoint: {every: 1000000}";
    let place = TestFolder::new();
    let run = place.run_file(&Case::convnet(), ENDLESS, more);
    let folder = place.file("run-folders/mine");
    let all = ["train", run.to_str().unwrap(), "--local", "2", "--threads", "1", "--name", "mine"];
    let mut boss = place.start("bossman", &all);
    boss.line("step 1/").await;
    boss.signal("TERM");
    let told = Instant::now();
    let ended = boss.end().await;
    assert_within(told, Duration::from_secs(10), "the end");
    let said = interrupted(&ended, 143);
    let step: usize =
        said.strip_prefix("step ").unwrap().split(' ').next().unwrap().parse().unwrap();
    assert!(
        said.contains("; the weights are in ")
            && said.ends_with("--resume goes on from its checkpoint"),
        "{said}"
    );
    assert!(folder.join(format!("checkpoints/step-{step:08}/manifest.json")).is_file(), "{said}");
    assert_eq!(losses(&folder.join("metrics.jsonl")).len(), step);

    // It goes on for a few steps. A run that nobody ended has the same losses and weights.
    let last = step + 4;
    let shorter = std::fs::read_to_string(&run).unwrap();
    let shorter = shorter.replace(&ENDLESS.to_string(), &last.to_string());
    std::fs::write(&run, shorter).unwrap();
    place.start("bossman", &[&all[..], &["--resume"]].concat()).end().await.expect_success();
    let quiet = ["train", run.to_str().unwrap(), "--local", "1", "--threads", "1"];
    place
        .start("bossman", &[&quiet[..], &["--name", "quiet"]].concat())
        .end()
        .await
        .expect_success();
    let quiet = place.file("run-folders/quiet");
    let read = |folder: &Path| std::fs::read(folder.join("weights.safetensors")).unwrap();
    assert_eq!(losses(&folder.join("metrics.jsonl")), losses(&quiet.join("metrics.jsonl")));
    assert!(read(&folder) == read(&quiet), "the weights differ");
    let (digests, expected) = (digests(&folder), digests(&quiet));
    assert_eq!(digests.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [step, last]);
    assert_eq!(digests.last(), expected.last(), "the training states differ");
}

/// The steps of which the log has a digest, each with it.
fn digests(folder: &Path) -> Vec<(usize, String)> {
    let text = std::fs::read_to_string(folder.join("events.jsonl")).unwrap();
    let events = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let digests = events.filter(|event| event["event"] == "digest");
    let of = |event: serde_json::Value| {
        let step = event["step"].as_u64().unwrap();
        (step as usize, event["digest"].as_str().unwrap().to_string())
    };
    digests.map(of).collect()
}

/// A remote worker lets go of the run, and waits for the next boss. Only a finished run ends it.
#[tokio::test]
async fn a_worker_of_an_interrupted_run_waits_for_the_next_boss() {
    let place = TestFolder::new();
    let (mut boss, at) = place.boss(&place.endless_run(), 1, &[]).await;
    let mut worker = place.worker(&at.port, &[]);
    boss.line("step 1/").await;
    boss.signal("INT");
    let line = worker.line("waiting for the boss").await;
    assert!(line.contains("(lost the boss (the run was interrupted))"), "{line}");
    interrupted(&boss.end().await, 130);
    let short = place.short_run(&Case::branchy(), "microbatches: 4");
    let all = ["train", short.to_str().unwrap(), "--workers", "1", "--port", &at.port];
    place.start("bossman", &all).end().await.expect_success();
    worker.end().await.expect_success();
}

#[tokio::test]
async fn a_boss_that_waits_ends_at_once_and_a_step_that_lasts_is_cut_off() {
    let place = TestFolder::new();
    let run = place.endless_run();
    let port = free_port();
    let waits = ["train", run.to_str().unwrap(), "--workers", "1", "--port", &port];
    let mut boss = place.start("bossman", &waits);
    boss.line("MODEL_TICKET=").await;
    boss.signal("INT");
    assert_eq!(interrupted(&boss.end().await, 130), "training had not begun");

    let cut_off = ["train", run.to_str().unwrap(), "--local", "1", "--grace", "0"];
    let mut boss = place.start("bossman", &cut_off);
    boss.line("step 1/").await;
    boss.signal("INT");
    let said = interrupted(&boss.end().await, 130);
    assert!(said.starts_with("it did not end within 0 s (--grace), so what was not"), "{said}");
}

/// A boss that waits for workers tells from which checkpoint the run goes on, also if the loss of
/// the workers cost the steps after it.
#[tokio::test]
async fn a_boss_that_waits_again_tells_what_is_saved() {
    let place = TestFolder::new();
    let more = "microbatches: 4\ncheckpoint: {every: 2}";
    let run = place.run_file(&Case::branchy(), ENDLESS, more);
    let (mut boss, at) = place.boss(&run, 1, &["--name", "mine"]).await;
    let worker = place.worker(&at.port, &[]);
    boss.line("checkpoint of step 4 written").await;
    worker.signal("KILL");
    worker.end().await;
    boss.line("waiting").await;
    boss.signal("INT");
    let said = interrupted(&boss.end().await, 130);
    let number = |text: &str| text.split(' ').next().unwrap().parse::<u64>().unwrap();
    let done = number(said.strip_prefix("step ").unwrap());
    let (_, saved) = said.split_once(" is done; its weights are not saved; ").unwrap();
    let newest = match saved {
        "--resume goes on from its checkpoint" => done,
        _ => number(saved.strip_prefix("--resume goes on from the checkpoint of step ").unwrap()),
    };
    let folder = place.file("run-folders/mine/checkpoints");
    assert!(newest >= 4 && folder.join(format!("step-{newest:08}/manifest.json")).is_file());

    // Resumed, and ended before anybody joins.
    let (boss, _) = place.boss(&run, 1, &["--name", "mine", "--resume"]).await;
    boss.signal("INT");
    let expected = format!(
        "step {newest} is done; its weights are not saved; --resume goes on from its checkpoint"
    );
    assert_eq!(interrupted(&boss.end().await, 130), expected);
}

/// The folder for the weights goes away after it was checked. An epoch has 20 steps. Only the last
/// weights are an error, and the checkpoint of that step is written nevertheless.
#[tokio::test]
async fn weights_without_a_place_cost_no_steps() {
    let place = TestFolder::new();
    let run = place.run_file(&Case::branchy(), 25, "microbatches: 4\ncheckpoint: {every: 100}");
    let gone = place.file("gone");
    std::fs::create_dir(&gone).unwrap();
    let save = gone.join("w.safetensors");
    let flags = ["--name", "mine", "--save", save.to_str().unwrap()];
    let (boss, at) = place.boss(&run, 1, &flags).await;
    std::fs::remove_dir(&gone).unwrap();
    let _worker = place.worker(&at.port, &[]);
    let ended = boss.end().await;
    assert_eq!(ended.status.code(), Some(1), "{:?}", ended.errors);
    let (error, warnings) = ended.errors.split_last().unwrap();
    assert!(error.contains("w.safetensors: "), "{error}");
    assert!(warnings.iter().any(|line| line.contains("are not saved")), "{warnings:?}");
    let checkpoint = "run-folders/mine/checkpoints/step-00000025/manifest.json";
    assert!(place.file(checkpoint).is_file(), "{:?}", ended.errors);
}

/// The kernel ignores signals to process 1 of a container that it does not handle.
#[tokio::test]
#[cfg(target_os = "linux")]
async fn process_1_of_a_container_stops_too() {
    let place = TestFolder::new();
    let unshared = std::process::Command::new("unshare").args(["--pid", "--fork", "true"]).status();
    if !unshared.is_ok_and(|status| status.success()) {
        eprintln!("skipped: this user may not make a namespace of processes");
        return;
    }
    let mut command = tokio::process::Command::new("unshare");
    command.args(["--pid", "--fork"]).arg(program("bossman"));
    let run = place.endless_run();
    let all = ["train", run.to_str().unwrap(), "--local", "1"];
    let mut boss = place.start_by(command, "bossman", &all, &[]);
    boss.line("step 1/").await;
    tests::programs::send_signal(boss.children()[0], "TERM");
    let said = interrupted(&boss.end().await, 143);
    assert!(said.contains("the weights are in "), "{said}");
}
