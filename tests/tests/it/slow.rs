//! Tests that a worker with one hundredth of its processor's time only slows a run down.

#![cfg(unix)]
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;
use tests::programs::{send_signal, Process, TestFolder};
use tests::Case;

/// The time limit of the test; far longer than it takes.
const LIMIT: Duration = Duration::from_secs(180);
/// The time for which a process stands still at once. It is far less than the 3 seconds after which
/// the process would be lost.
const STILL: Duration = Duration::from_millis(490);
/// The time for which a process works, in addition to the time that a signal takes.
const AT_WORK: Duration = Duration::from_millis(2);
/// Enough steps that most of them come after the worker is slow.
const STEPS: usize = 200;

/// Lets a process stand still most of the time, until this is dropped.
struct Slow(Arc<AtomicBool>, Option<std::thread::JoinHandle<()>>);

impl Slow {
    fn down(process: &Process) -> Self {
        let (on, process) = (Arc::new(AtomicBool::new(true)), process.id());
        let still = on.clone();
        let thread = std::thread::spawn(move || {
            while still.load(Ordering::Relaxed) {
                send_signal(process, "STOP");
                std::thread::sleep(STILL);
                send_signal(process, "CONT");
                std::thread::sleep(AT_WORK);
            }
        });
        Slow(on, Some(thread))
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
        if let Some(thread) = self.1.take() {
            thread.join().unwrap();
        }
    }
}

/// Returns step and loss of each line, and the weights.
fn outputs(place: &TestFolder) -> (Vec<String>, Vec<u8>) {
    let metrics = std::fs::read_to_string(place.file("metrics.jsonl")).unwrap();
    let losses = metrics.lines().map(|line| line.split(",\"samples\"").next().unwrap().to_string());
    (losses.collect(), std::fs::read(place.file("weights.safetensors")).unwrap())
}

#[tokio::test]
async fn a_worker_a_hundred_times_too_slow_slows_training_down_and_no_more() {
    let test = async {
        let begin = |more: &str| {
            let place = TestFolder::new();
            let run = place.run_file(
                &Case::branchy(),
                STEPS,
                &format!("microbatches: 4\nschedule: 1f1b\n{more}"),
            );
            let path = |name: &str| place.file(name).to_str().unwrap().to_string();
            let outcome = [
                "--metrics".to_string(),
                path("metrics.jsonl"),
                "--save".into(),
                path("weights.safetensors"),
            ];
            (place, run, outcome)
        };
        let (quiet, run, outcome) = begin("");
        let all = ["train", run.to_str().unwrap(), "--local", "1", "--threads", "1"];
        let outcome: Vec<&str> = outcome.iter().map(String::as_str).collect();
        quiet.start("bossman", &[&all, &outcome[..]].concat()).end().await.expect_success();

        let (place, run, outcome) = begin("checkpoint: {dir: c, every: 3, keep: 2}");
        let outcome: Vec<&str> = outcome.iter().map(String::as_str).collect();
        let (mut boss, at) = place.boss(&run, 2, &outcome).await;
        let workers = [place.worker(&at.port, &[]), place.worker(&at.port, &[])];
        boss.line("step 1/").await;
        let slow = Slow::down(&workers[1]);
        // Training continues, and its results are kept. On a busy machine, a worker that slow may
        // count as silent. Then the run recovers, and is slow again.
        for _ in 0..2 {
            boss.line(" written").await;
        }
        drop(slow);
        boss.end_within(LIMIT).await.expect_success();
        for worker in workers {
            worker.end().await.expect_success();
        }
        let (found, expected) = (outputs(&place), outputs(&quiet));
        let differs = found.0.iter().zip(&expected.0).find(|(found, expected)| found != expected);
        assert!(found == expected, "{differs:?}; {} and {} lines", found.0.len(), expected.0.len());
    };
    tokio::time::timeout(LIMIT, test).await.unwrap();
}
