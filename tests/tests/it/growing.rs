//! Tests runs that go on with fewer workers and take in one that comes late. Metrics, weights and
//! the digest of the last state are those of a run that lost nobody, to the bit.

use crate::recovery::{assert_same, said, Outputs, Run, PATIENCE};
use tests::programs::{Ended, Process};
use tokio::sync::OnceCell;

/// A worker that waits asks each second, which is a quarter of the time of these steps on an idle
/// machine, and less on a busy one.
const STEPS: u64 = 400;

const CHECKPOINTS: &str = "checkpoint: {dir: c, every: 10, keep: 2}";

/// The results of a run that lost no worker, and the digest of its last state.
async fn quiet() -> &'static (Outputs, String) {
    static QUIET: OnceCell<(Outputs, String)> = OnceCell::const_new();
    let train = || async {
        let run = Run::with_steps(STEPS, "");
        run.local(1).end_within(PATIENCE).await.expect_success();
        (run.outputs(), last_digest(&run))
    };
    QUIET.get_or_init(train).await
}

fn last_digest(run: &Run) -> String {
    let events = run.0.file("run-folders").join("latest").join("events.jsonl");
    let events = std::fs::read_to_string(events).unwrap();
    let parsed = |line: &str| -> serde_json::Value { serde_json::from_str(line).unwrap() };
    let mut digests = events.lines().map(parsed).filter(|event| event["event"] == "digest");
    let last = digests.next_back().unwrap();
    assert_eq!(last["step"], STEPS);
    last["digest"].to_string()
}

/// A run that goes on with one of two workers, while a third one waits and stands still.
struct Shrunk {
    boss: Process,
    stays: Process,
    late: Process,
}

impl Shrunk {
    /// Starts the run with two workers that have these flags, and the late worker with its own. One
    /// of the two is lost after the boss has said `moment`. The late worker must not replace it.
    async fn start(run: &Run, moment: &str, flags: &[&str], late: &[&str]) -> Self {
        let (mut boss, at) = run.boss(2).await;
        let stays = run.0.worker(&at.port, flags);
        let lost = run.0.worker(&at.port, flags);
        boss.line(moment).await;
        let mut late = run.0.worker(&at.port, late);
        // It then asks again after a second.
        late.line("the run has all its 2 workers").await;
        late.stop().await;
        lost.signal("KILL");
        boss.line("recovery: repeated").await;
        Shrunk { boss, stays, late }
    }

    /// Waits for the end, after which the late worker has ended, too.
    async fn end(self) -> Ended {
        let ended = self.boss.end_within(PATIENCE).await.expect_success();
        self.stays.end().await.expect_success();
        self.late.end().await.expect_success();
        ended
    }
}

/// The numbers of lines about the loss of a worker, about a growth, and about resuming with these
/// workers.
fn course(ended: &Ended, resuming: &str) -> [usize; 3] {
    let count = |text: &str| said(ended, text).len();
    [
        count("workers were lost"),
        count(": 1 waiting worker is taken in; 1 of 2 so far"),
        count(&format!("recovery: resuming with {resuming}")),
    ]
}

/// A growth repeats no step. The loss before it may.
#[track_caller]
fn assert_repeats_nothing(ended: &Ended) {
    let repeated = said(ended, "recovery: repeated");
    assert!(repeated.last().unwrap().contains("repeated 0 steps"), "{repeated:?}");
}

#[tokio::test]
async fn a_late_worker_is_taken_in_at_a_checkpoint() {
    let quiet = quiet().await;
    let run = Run::with_steps(STEPS, CHECKPOINTS);
    let shrunk = Shrunk::start(&run, " written", &[], &[]).await;
    shrunk.late.signal("CONT");
    let ended = shrunk.end().await;
    assert_eq!(course(&ended, "2 of 2 workers from the checkpoint of step"), [1, 1, 1]);
    assert_repeats_nothing(&ended);
    assert_same(&run.outputs(), &quiet.0);
    assert_eq!(last_digest(&run), quiet.1);
}

/// The run has no other place for its state.
#[tokio::test]
async fn a_late_worker_is_taken_in_with_a_peer_snapshot() {
    let quiet = quiet().await;
    let run = Run::with_steps(STEPS, "redundancy: {neighbour: 3}");
    let shrunk = Shrunk::start(&run, "peer snapshots protect the run", &[], &[]).await;
    shrunk.late.signal("CONT");
    let ended = shrunk.end().await;
    assert_eq!(course(&ended, "2 of 2 workers from the peer snapshot of step"), [1, 1, 1]);
    assert_repeats_nothing(&ended);
    assert_same(&run.outputs(), &quiet.0);
    assert_eq!(last_digest(&run), quiet.1);
}

/// The state is with the workers alone, so the boss saves it once they have joined again.
#[tokio::test]
async fn a_growth_that_the_user_interrupts_is_completed_and_saved() {
    let run = Run::with_steps(STEPS, "redundancy: {neighbour: 3}");
    let shrunk = Shrunk::start(&run, "peer snapshots protect the run", &[], &[]).await;
    shrunk.late.signal("CONT");
    // The workers live until the end of the boss.
    let Shrunk { mut boss, stays: _stays, late: _late } = shrunk;
    let grows = boss.line(": 1 waiting worker is taken in; 1 of 2 so far").await;
    boss.signal("INT");
    let ended = boss.end_within(PATIENCE).await;
    assert_eq!(ended.status.code(), Some(130), "{:?}", ended.errors);
    let last = ended.errors.last().unwrap();
    let number = |text: &str| {
        let (_, after) = text.split_once("step ").unwrap();
        after.split([' ', ':']).next().unwrap().parse::<u64>().unwrap()
    };
    assert!(last.contains(" is done; the weights are in "), "{last}");
    assert!(number(last) >= number(&grows), "{last}; {grows}");
}

/// It stands still again in the second in which it does not ask.
#[tokio::test]
async fn a_late_worker_that_does_not_come_costs_a_wait_and_no_step() {
    let quiet = quiet().await;
    let run = Run::with_steps(STEPS, CHECKPOINTS);
    let Shrunk { boss, stays, mut late } = Shrunk::start(&run, " written", &[], &[]).await;
    late.signal("CONT");
    late.line("the run has a free place; it takes workers in when a plan fits their number").await;
    late.stop().await;
    let ended = boss.end_within(PATIENCE).await.expect_success();
    stays.end().await.expect_success();
    // The first time was the loss.
    assert_eq!(course(&ended, "1 of 2 workers from the checkpoint of step"), [1, 1, 2]);
    assert_repeats_nothing(&ended);
    assert_same(&run.outputs(), &quiet.0);
    assert_eq!(last_digest(&run), quiet.1);
}

/// The boss learns that it lacks the files only once it has taken it in.
#[tokio::test]
async fn a_late_worker_that_is_not_fit_does_not_end_the_run() {
    let quiet = quiet().await;
    let run = Run::with_steps(STEPS, CHECKPOINTS);
    let file = run.0.file("run.yaml");
    let text = std::fs::read_to_string(&file).unwrap();
    let on_workers = text.replace("{split: 0.2}}", "{split: 0.2}, on: workers}");
    assert_ne!(on_workers, text);
    std::fs::write(&file, on_workers).unwrap();
    let folder = run.0.file("");
    let there = ["--data", folder.to_str().unwrap()];
    let Shrunk { boss, stays, late } = Shrunk::start(&run, " written", &there, &[]).await;
    late.signal("CONT");
    let ended = boss.end_within(PATIENCE).await.expect_success();
    stays.end().await.expect_success();
    let line = late.end().await.error_line();
    assert!(line.contains("was not told where its files are"), "{line}");
    // The second loss is that of the late worker.
    assert_eq!(course(&ended, "2 of 2 workers from the checkpoint of step"), [2, 1, 1]);
    assert_eq!(course(&ended, "1 of 2 workers from the checkpoint of step"), [2, 1, 2]);
    assert_repeats_nothing(&ended);
    assert_same(&run.outputs(), &quiet.0);
    assert_eq!(last_digest(&run), quiet.1);
}
