//! Tests runs that lose workers and recover. Metrics and weights are those of a run that lost none,
//! to the bit.

use link::LinkError;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;
use tests::address::Address;
use tests::faulty::{run_faulty_worker, Fault};
use tests::programs::{send_signal, BossAddress, Ended, TestFolder};
use tests::sample::is_sampled;
use tests::stateful_model::MODEL;
use tokio::sync::OnceCell;

/// The time limit of a run; far longer than any run here takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);
/// The number of updates of one or two stages before something goes wrong. By then, the checkpoint
/// of step 10 has long been written.
const LATER: u32 = 50;

/// The number of steps of a run.
fn steps() -> u64 {
    if is_sampled() {
        60
    } else {
        200
    }
}

/// A run in a folder of its own.
pub(crate) struct Run(pub(crate) TestFolder);

/// The metrics without times, and the weights.
pub(crate) type Outputs = (Vec<String>, Vec<u8>);

impl Run {
    fn new(more: &str) -> Self {
        Run::with_steps(steps(), more)
    }

    /// Writes a run of this number of steps, with further keys.
    pub(crate) fn with_steps(steps: u64, more: &str) -> Self {
        let schedule = steps.max(500);
        let place = TestFolder::new();
        std::fs::write(place.file("model.yaml"), MODEL).unwrap();
        let digits =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/digits/digits-train.csv.gz");
        std::fs::copy(digits, place.file("digits.csv.gz")).unwrap();
        let text = format!(
            "model: model.yaml\ndata: {{train: digits.csv.gz, validation: {{split: 0.2}}}}\nloss: \
             CrossEntropyLoss\noptimizer: {{AdamW: {{lr: 0.01}}}}\nlr_schedule: {{cosine: \
             {{total_steps: {schedule}, warmup: 5}}}}\nclip_grad_norm: 1.0\nbatch_size: \
             100\nmicrobatches: 5\nseed: 3\nsteps: {steps}\n{more}\n"
        );
        std::fs::write(place.file("run.yaml"), text).unwrap();
        Run(place)
    }

    fn arguments(&self) -> Vec<String> {
        let path = |name: &str| self.0.file(name).to_str().unwrap().to_string();
        ["--metrics".into(), path("metrics.jsonl"), "--save".into(), path("w.safetensors")].into()
    }

    async fn quiet_outputs(more: &str) -> Outputs {
        let run = Run::new(more);
        run.local(1).end_within(PATIENCE).await.expect_success();
        run.outputs()
    }

    pub(crate) fn local(&self, workers: usize) -> tests::programs::Process {
        let (run, workers, more) = (self.0.file("run.yaml"), workers.to_string(), self.arguments());
        let mut all = vec!["train", run.to_str().unwrap(), "--local", &workers, "--threads", "1"];
        all.extend(more.iter().map(String::as_str));
        self.0.start("bossman", &all)
    }

    /// Starts a boss that waits for this number of workers.
    pub(crate) async fn boss(&self, workers: usize) -> (tests::programs::Process, BossAddress) {
        let more = self.arguments();
        let more: Vec<&str> = more.iter().map(String::as_str).collect();
        self.0.boss(&self.0.file("run.yaml"), workers, &more).await
    }

    /// Returns the metrics without times, and the weights.
    pub(crate) fn outputs(&self) -> Outputs {
        let metrics = std::fs::read_to_string(self.0.file("metrics.jsonl")).unwrap();
        let line = |line: &str| {
            let all: serde_json::Map<String, serde_json::Value> =
                serde_json::from_str(line).unwrap();
            let all = all.into_iter().filter(|(key, _)| key != "step_ms");
            all.map(|(key, value)| format!("{key}={value} ")).collect()
        };
        (metrics.lines().map(line).collect(), std::fs::read(self.0.file("w.safetensors")).unwrap())
    }
}

/// The results of a run that lost no worker.
async fn quiet() -> &'static Outputs {
    static QUIET: OnceCell<Outputs> = OnceCell::const_new();
    QUIET.get_or_init(|| Run::quiet_outputs("")).await
}

/// The same of a run with replicas, which sum gradients in another order.
async fn quiet_with_replicas() -> &'static Outputs {
    static QUIET: OnceCell<Outputs> = OnceCell::const_new();
    QUIET.get_or_init(|| Run::quiet_outputs("replicas: 1")).await
}

#[track_caller]
pub(crate) fn assert_same(found: &Outputs, quiet: &Outputs) {
    let differs = found.0.iter().zip(&quiet.0).find(|(found, quiet)| found != quiet);
    assert!(found == quiet, "{differs:?}; {} and {} lines", found.0.len(), quiet.0.len());
}

pub(crate) fn said<'a>(ended: &'a Ended, text: &str) -> Vec<&'a String> {
    ended.output.iter().chain(&ended.errors).filter(|line| line.contains(text)).collect()
}

#[tokio::test]
async fn local_workers_that_are_killed_and_stopped_leave_no_trace_in_the_result() {
    let quiet = quiet().await;
    let run = Run::new("checkpoint: {dir: c, every: 10, keep: 2}\nschedule: 1f1b");
    let mut boss = run.local(3);
    // The first dies as soon as training starts, and the second when checkpoints exist. The third
    // only falls silent.
    for (moment, victim, signal) in
        [("step 1/", 0, "KILL"), (" written", 2, "KILL"), (" written", 1, "STOP")]
    {
        boss.line(moment).await;
        send_signal(boss.children()[victim], signal);
        boss.line("recovery: repeated").await;
    }
    assert_eq!(boss.children().len(), 3, "nobody is left behind");
    let ended = boss.end_within(PATIENCE).await.expect_success();
    assert_same(&run.outputs(), quiet);
    // A due checkpoint may also have been missed, which prints a reason too.
    let lost = said(&ended, "workers were lost");
    let of = |reason: &str| lost.iter().filter(|line| line.contains(reason)).count();
    // On a busy machine, another one may be silent for as long.
    let silent = of("silent for 3 seconds");
    assert!(of("signal: 9") == 2 && silent >= 1, "{lost:?}");
    assert_eq!(said(&ended, "recovery: resuming with 3 of 3 workers").len(), 2 + silent);
}

#[tokio::test]
async fn remaining_workers_resume_the_run() {
    let quiet = quiet().await;
    let run = Run::new("checkpoint: {dir: c, every: 10, keep: 2}");
    let (mut boss, at) = run.boss(3).await;
    let workers: Vec<_> = (0..3).map(|_| run.0.worker(&at.port, &[])).collect();
    for (moment, victim, left) in [(" written", 1, 2), (" written", 2, 1)] {
        boss.line(moment).await;
        workers[victim].signal("KILL");
        boss.line(&format!(
            "recovery: resuming with {left} of 3 workers from the checkpoint of step"
        ))
        .await;
        boss.line("recovery: repeated").await;
    }
    boss.end_within(PATIENCE).await.expect_success();
    assert_same(&run.outputs(), quiet);
}

#[tokio::test]
async fn workers_resume_from_peer_snapshots() {
    let quiet = quiet_with_replicas().await;
    for replicas in [
        "replicas: 1",
        "replicas: [1, 2]",
        "replicas: [1, 2]\nshard: optimizer",
        "replicas: [1, 2]\nshard: parameters",
    ] {
        let run = Run::new(&format!("{replicas}\nredundancy: {{neighbour: 3}}"));
        let (mut boss, at) = run.boss(3).await;
        let workers: Vec<_> = (0..3).map(|_| run.0.worker(&at.port, &[])).collect();
        let mut spares = Vec::new();
        for victim in [1, 0] {
            boss.line("peer snapshots protect the run").await;
            workers[victim].signal("KILL");
            spares.push(run.0.worker(&at.port, &[]));
            boss.line("recovery: resuming with 3 of 3 workers from the peer snapshot of step")
                .await;
            boss.line("recovery: repeated").await;
        }
        boss.end_within(PATIENCE).await.expect_success();
        assert_same(&run.outputs(), quiet);
    }
}

#[tokio::test]
async fn a_boss_that_comes_again_finds_the_state_at_its_workers() {
    let quiet = quiet().await;
    let run = Run::new("checkpoint: {dir: c, every: 50}\nredundancy: {neighbour: 1}");
    let (mut boss, at) = run.boss(2).await;
    let workers: Vec<_> = (0..2).map(|_| run.0.worker(&at.port, &[])).collect();
    boss.line(" written").await;
    boss.signal("KILL");
    drop(boss.end().await);
    let file = run.0.file("run.yaml");
    let again = ["train", file.to_str().unwrap(), "--workers", "2", "--port", &at.port, "--resume"];
    let more = run.arguments();
    let again = again.into_iter().chain(more.iter().map(String::as_str));
    let boss = run.0.start("bossman", &again.collect::<Vec<_>>());
    let ended = boss.end_within(PATIENCE).await.expect_success();
    let line = said(&ended, "resuming from the").first().map(|line| (*line).clone()).unwrap();
    assert!(line.contains("from the peer snapshot of step"), "{line}");
    for worker in workers {
        worker.end().await.expect_success();
    }
    assert_same(&run.outputs(), quiet);
}

/// The first boss stands still, as on a machine that sleeps. The second takes over its address.
/// When the first continues, it finds no worker, and the run belongs to the second.
#[tokio::test]
async fn only_one_of_two_bosses_is_obeyed() {
    let quiet = quiet().await;
    let run = Run::new("checkpoint: {dir: c, every: 10, keep: 3}");
    let (mut first, at) = run.boss(2).await;
    let address = Address::of(&at.port).await;
    let workers: Vec<_> = (0..2).map(|_| run.0.worker(&address.port, &["--relay"])).collect();
    first.line(" written").await;
    first.stop().await;
    let file = run.0.file("run.yaml");
    // The first holds the run's folder until it ends, and another machine cannot see that it hangs.
    let again = ["train", file.to_str().unwrap(), "--workers", "2", "--port", "0", "--resume"];
    let more = [run.arguments(), vec!["--no-run-folder".into()]].concat();
    let mut second = run.0.start(
        "bossman",
        &again.into_iter().chain(more.iter().map(String::as_str)).collect::<Vec<_>>(),
    );
    let line = second.line("MODEL_PORT=").await;
    address.points_to(
        line.split_whitespace().find_map(|word| word.strip_prefix("MODEL_PORT=")).unwrap(),
    );
    second.line("resuming from the").await;
    first.signal("CONT");
    first.line("workers were lost").await;
    second.end_within(PATIENCE).await.expect_success();
    for worker in workers {
        worker.end().await.expect_success();
    }
    assert_same(&run.outputs(), quiet);
    first.signal("KILL");
    let said_first = first.end().await;
    assert!(said(&said_first, "recovery: resuming").is_empty(), "{:?}", said_first.errors);
}

#[tokio::test]
async fn what_cannot_have_neighbours_is_told_so() {
    let run = Run::new("redundancy: neighbour");
    for (workers, problem) in
        [(1, "requires two workers"), (2, "cannot be combined with local workers")]
    {
        let line = run.local(workers).end().await.error_line();
        assert!(line.contains(&format!("`redundancy: neighbour` {problem}: ")), "{line}");
    }
}

#[tokio::test]
async fn a_spare_worker_replaces_a_lost_one() {
    let quiet = quiet_with_replicas().await;
    let run = Run::new("checkpoint: {dir: c, every: 10, keep: 2}\nreplicas: [1, 2]");
    let (mut boss, at) = run.boss(3).await;
    let workers: Vec<_> = (0..3).map(|_| run.0.worker(&at.port, &[])).collect();
    boss.line(" written").await;
    workers[0].signal("KILL");
    boss.line("recovery: 2 of 3 workers remain, which is too few; waiting for more").await;
    let spare = run.0.worker(&at.port, &[]);
    boss.line("recovery: resuming with 3 of 3 workers").await;
    boss.end_within(PATIENCE).await.expect_success();
    spare.end().await.expect_success();
    assert_same(&run.outputs(), quiet);
}

/// The worker's machine and its connection stay alive, so silence does not reveal the fault.
#[tokio::test]
async fn others_take_over_from_a_worker_that_panics_or_has_no_memory_or_never_ends() {
    let quiet = quiet().await;
    for fault in [Fault::Panics, Fault::HasNoMemory, Fault::NeverEnds] {
        // A run that stores activations would keep a worker without memory.
        let run = Run::new("checkpoint: {dir: c, every: 10, keep: 2}\nrecompute: full");
        let (mut boss, at) = run.boss(2).await;
        let worker = run.0.worker(&at.port, &[]);
        let (_over, ends) = mpsc::channel();
        let (said, why) = match run_faulty_worker(&at, (fault, LATER), ends).await {
            LinkError::Evicted { reason } if fault != Fault::NeverEnds => (reason.clone(), reason),
            LinkError::Hung { seconds: 2 } if fault == Fault::NeverEnds => {
                ("2 s".into(), "one task has taken 2 s".into())
            }
            other => panic!("{fault:?}: {other}"),
        };
        assert!(said == "out of memory" || said == "2 s" || said.contains("panicked"), "{said}");
        let line = boss.line("workers were lost").await;
        assert!(line.contains(&why), "{line}");
        boss.line("recovery: resuming with 1 of 2 workers from the checkpoint of step").await;
        boss.end_within(PATIENCE).await.expect_success();
        worker.end().await.expect_success();
        assert_same(&run.outputs(), quiet);
    }
}

/// No other worker could do the work, and there are no activations to recompute.
#[tokio::test]
async fn a_run_of_one_worker_that_has_no_memory_ends() {
    let run = Run::new("checkpoint: {dir: c, every: 100}\nrecompute: full");
    let (boss, at) = run.boss(1).await;
    let (_over, ends) = mpsc::channel();
    let left = run_faulty_worker(&at, (Fault::HasNoMemory, LATER), ends).await;
    assert!(matches!(left, LinkError::Lost { .. }), "{left}");
    let line = boss.end().await.error_line();
    let told = line.contains("out of memory; use smaller microbatches or more workers");
    assert!(line.contains("worker 0") && told, "{line}");
}

/// Without checkpoints, what was trained would be lost.
#[tokio::test]
async fn a_run_that_trained_without_checkpoints_does_not_begin_again() {
    let run = Run::new("");
    let (boss, at) = run.boss(1).await;
    let (_over, ends) = mpsc::channel();
    run_faulty_worker(&at, (Fault::HasNoMemory, LATER), ends).await;
    let line = boss.end().await.error_line();
    assert!(line.contains("out of memory; set `recompute: full` in the run file"), "{line}");
}
