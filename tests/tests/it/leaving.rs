//! Tests workers that are told to leave: they go between two steps, and the run goes on without
//! them.

use crate::ending_well::losses;
use std::path::Path;
use std::time::{Duration, Instant};
use tests::programs::{assert_within, free_port, program, send_signal, Ended, Process, TestFolder};
use tests::Case;

/// Asserts that SIGTERM ended a worker, and returns the rest of its last line.
#[track_caller]
fn terminated(ended: &Ended) -> &str {
    assert_eq!(ended.status.code(), Some(143), "{:?}", ended.errors);
    let last = ended.errors.last().unwrap();
    last.strip_prefix("worker: terminated").unwrap_or_else(|| panic!("{last}"))
}

#[tokio::test]
async fn a_worker_that_is_told_to_leave_completes_its_step_and_leaves_no_trace_in_the_result() {
    let more = "microbatches: 4\ncheckpoint: {every: 10}";
    let place = TestFolder::new();
    let run = place.run_file(&Case::convnet(), 200, more);
    let (mut boss, at) = place.boss(&run, 2, &["--name", "left"]).await;
    let stays = place.worker(&at.port, &[]);
    let leaves = place.worker(&at.port, &[]);
    boss.line(" written").await;
    leaves.signal("TERM");
    let ended = leaves.end().await;
    let step = terminated(&ended).strip_prefix("; left after step ").unwrap().to_string();
    let line = boss.line("workers were lost").await;
    assert!(line.contains(&format!("lost after {step} steps: ")), "{step}: {line}");
    assert!(line.contains("it was told to leave"), "{line}");
    boss.line("recovery: resuming with 1 of 2 workers from the checkpoint of step").await;
    boss.end().await.expect_success();
    stays.end().await.expect_success();

    let quiet = ["train", run.to_str().unwrap(), "--local", "1", "--threads", "1"];
    let quiet = place.start("bossman", &[&quiet[..], &["--name", "quiet"]].concat());
    quiet.end().await.expect_success();
    let [left, quiet] = ["left", "quiet"].map(|name| place.file("run-folders").join(name));
    let weights = |folder: &Path| std::fs::read(folder.join("weights.safetensors")).unwrap();
    assert_eq!(losses(&left.join("metrics.jsonl")), losses(&quiet.join("metrics.jsonl")));
    assert!(weights(&left) == weights(&quiet), "the weights differ");
}

/// Starts the boss of a pool that begins with this number of workers. Returns its port, too.
async fn endless_pool(place: &TestFolder, workers: &str) -> (Process, String) {
    let run = place.endless_run();
    let serve = ["serve", run.to_str().unwrap(), "--workers", workers, "--port", "0"];
    let mut boss = place.start("bossman", &serve);
    let line = boss.line("MODEL_PORT=").await;
    let port = line.split_whitespace().find_map(|word| word.strip_prefix("MODEL_PORT="));
    (boss, port.unwrap().to_string())
}

/// A pool does not repeat a step for it.
#[tokio::test]
async fn a_pool_goes_on_without_a_worker_that_is_told_to_leave() {
    let place = TestFolder::new();
    let (mut boss, port) = endless_pool(&place, "2").await;
    let mut stays = place.worker(&port, &[]);
    let leaves = place.worker(&port, &[]);
    boss.line("step 1/").await;
    leaves.signal("TERM");
    let ended = leaves.end().await;
    assert!(terminated(&ended).starts_with("; left after step "), "{:?}", ended.errors);
    boss.line("left (it was told to leave)").await;
    stays.line("share 100 %").await;
}

/// The only worker of a pool hands its layers over to one that has just joined.
#[tokio::test]
async fn the_last_worker_of_a_pool_stays_until_another_one_has_its_state() {
    let place = TestFolder::new();
    let (mut boss, port) = endless_pool(&place, "1").await;
    let leaves = place.worker(&port, &["--grace", "60"]);
    boss.line("step 1/").await;
    let mut follows = place.worker(&port, &[]);
    boss.line("worker 1 joined").await;
    leaves.signal("TERM");
    boss.line("2 workers").await;
    let ended = leaves.end().await;
    assert!(terminated(&ended).starts_with("; left after step "), "{:?}", ended.errors);
    boss.line("left (it was told to leave)").await;
    follows.line("share 100 %").await;
}

/// The terminal in which it was started may close.
#[tokio::test]
async fn a_hangup_does_not_end_a_worker() {
    let place = TestFolder::new();
    let port = free_port();
    let mut worker = place.worker(&port, &[]);
    worker.line("waiting for the boss").await;
    worker.signal("HUP");
    let run = place.run_file(&Case::branchy(), 200, "microbatches: 4");
    let all = ["train", run.to_str().unwrap(), "--workers", "1", "--port", &port];
    let mut boss = place.start("bossman", &all);
    boss.line("step 1/").await;
    worker.signal("HUP");
    boss.end().await.expect_success();
    let ended = worker.end().await.expect_success();
    assert_eq!(ended.errors, [""; 0]);
}

/// A service manager signals all processes at once. The boss needs its workers for the weights.
#[tokio::test]
async fn a_signal_to_all_leaves_the_local_workers_to_their_boss() {
    let place = TestFolder::new();
    let run = place.endless_run();
    let all = ["train", run.to_str().unwrap(), "--local", "2", "--threads", "1"];
    let mut boss = place.start("bossman", &all);
    boss.line("step 1/").await;
    for worker in boss.children() {
        send_signal(worker, "HUP");
        send_signal(worker, "TERM");
    }
    // The run goes on without a loss.
    boss.line("  loss ").await;
    boss.children().iter().for_each(|worker| send_signal(*worker, "TERM"));
    boss.signal("TERM");
    let ended = boss.end().await;
    assert_eq!(ended.status.code(), Some(143), "{:?}", ended.errors);
    let last = ended.errors.last().unwrap();
    assert!(last.contains("; the weights are in "), "{last}");
}

#[tokio::test]
async fn a_worker_that_does_nothing_leaves_at_once() {
    let place = TestFolder::new();
    let mut alone = place.worker(&free_port(), &[]);
    alone.line("waiting for the boss").await;
    let (mut boss, at) = place.boss(&place.endless_run(), 2, &[]).await;
    let mut joined = place.worker(&at.port, &[]);
    boss.line("1 missing").await;
    joined.line("joined the boss").await;
    for worker in [alone, joined] {
        worker.signal("TERM");
        let told = Instant::now();
        let ended = worker.end().await;
        assert_within(told, Duration::from_secs(7), "the end, without the grace of 10 s");
        assert_eq!(terminated(&ended), "");
        assert_eq!(ended.errors.len(), 1, "{:?}", ended.errors);
    }
}

/// The boss stands still, so that it cannot let its workers go.
#[tokio::test]
async fn a_second_signal_and_the_grace_end_a_worker_at_once() {
    let place = TestFolder::new();
    let (mut boss, at) = place.boss(&place.endless_run(), 2, &[]).await;
    let mut told_twice = place.worker(&at.port, &[]);
    let has_no_time = place.worker(&at.port, &["--grace", "0"]);
    boss.line("step 1/").await;
    boss.stop().await;
    told_twice.signal("TERM");
    has_no_time.signal("TERM");
    let line = told_twice.line("leaving after this step").await;
    assert!(line.contains("within 10 s; a second signal ends it at once"), "{line}");
    told_twice.signal("INT");
    assert_eq!(terminated(&told_twice.end().await), "; it ended at once");
    let ended = has_no_time.end().await;
    assert_eq!(terminated(&ended), "; it could not leave within 0 s (--grace)");
    boss.signal("KILL");
}

/// As systemd and `timeout` do. The boss stands still, so that the worker has heard both.
#[tokio::test]
async fn a_sigterm_that_arrives_twice_lets_a_worker_complete_its_step() {
    let place = TestFolder::new();
    let (mut boss, at) = place.boss(&place.endless_run(), 2, &[]).await;
    let _stays = place.worker(&at.port, &[]);
    let mut told_twice = place.worker(&at.port, &[]);
    boss.line("step 1/").await;
    boss.stop().await;
    told_twice.signal("TERM");
    told_twice.signal("TERM");
    told_twice.line("leaving after this step").await;
    boss.signal("CONT");
    let ended = told_twice.end().await;
    assert!(terminated(&ended).starts_with("; left after step "), "{:?}", ended.errors);
}

/// The kernel ignores signals to process 1 of a container that it does not handle.
#[tokio::test]
#[cfg(target_os = "linux")]
async fn process_1_of_a_container_leaves_too() {
    let place = TestFolder::new();
    let unshared = std::process::Command::new("unshare").args(["--pid", "--fork", "true"]).status();
    if !unshared.is_ok_and(|status| status.success()) {
        eprintln!("skipped: this user may not make a namespace of processes");
        return;
    }
    let mut command = tokio::process::Command::new("unshare");
    command.args(["--pid", "--fork"]).arg(program("worker"));
    let mut worker = place.start_by(command, "worker", &["--port", &free_port()], &[]);
    worker.line("waiting for the boss").await;
    send_signal(worker.children()[0], "TERM");
    assert_eq!(terminated(&worker.end().await), "");
}
