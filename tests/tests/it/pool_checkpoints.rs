//! Tests pools that begin again: one whose boss is killed, one that loses the only worker of a
//! stage, and one that loses a worker while it starts. The first two resume from their last
//! checkpoint. Losses and weights are those of a quiet run, to the bit.

use std::net::Ipv4Addr;
use std::time::Duration;
use tests::hostile::MaliciousWorker;
use tests::programs::{free_port, Process, TestFolder};
use tests::Case;

/// The time limit of the test; far longer than it takes.
const LIMIT: Duration = Duration::from_secs(180);
/// Enough steps that no boss ends before it is killed.
const STEPS: usize = 120;

fn serve(place: &TestFolder, more: &str, flags: &[&str]) -> Process {
    // The model has dropout, and batch norms whose running statistics depend on the order of
    // microbatches.
    let run = place.run_file(&Case::convnet(), STEPS, &format!("microbatches: 4\n{more}"));
    let path = |name: &str| place.file(name).to_str().unwrap().to_string();
    let (metrics, weights) = (path("metrics.jsonl"), path("weights.safetensors"));
    let all = ["serve", run.to_str().unwrap(), "--metrics", &metrics, "--save", &weights];
    place.start("bossman", &[&all, flags].concat())
}

/// Returns step and loss of each line, and the weights.
fn outputs(place: &TestFolder) -> (Vec<String>, Vec<u8>) {
    let metrics = std::fs::read_to_string(place.file("metrics.jsonl")).unwrap();
    let losses = metrics.lines().map(|line| line.split(",\"samples\"").next().unwrap().to_string());
    (losses.collect(), std::fs::read(place.file("weights.safetensors")).unwrap())
}

async fn quiet_outputs() -> (Vec<String>, Vec<u8>) {
    let quiet = TestFolder::new();
    let boss = serve(&quiet, "", &["--local", "1", "--threads", "1", "--port", "0"]);
    boss.end_within(LIMIT).await.expect_success();
    outputs(&quiet)
}

/// The story: a pool needs two workers to start. The first one vanishes once it has its stage,
/// before it has received its weights. Until then the session has fixed members.
#[tokio::test]
async fn a_pool_that_loses_a_worker_while_it_starts_begins_again() {
    let place = TestFolder::new();
    let mut boss = serve(&place, "", &["--workers", "2", "--port", "0"]);
    let line = boss.line("MODEL_TICKET=").await;
    let word = |key: &str| line.split_whitespace().find_map(|word| word.strip_prefix(key)).unwrap();
    let (port, ticket) = (word("MODEL_PORT="), word("MODEL_TICKET="));
    let at = (Ipv4Addr::LOCALHOST, port.parse().unwrap()).into();
    let mut vanishes = MaliciousWorker::join(at, &ticket.parse().unwrap(), 10).await;
    let stays = place.worker(port, &[]);
    vanishes.peer_addresses().await;
    drop(vanishes);
    boss.line("recovery: 1 of 2 workers remain, which is too few; waiting for more").await;
    let comes = place.worker(port, &[]);
    boss.line("recovery: resuming with 2 of 2 workers from the beginning").await;
    boss.end_within(LIMIT).await.expect_success();
    for worker in [stays, comes] {
        worker.end().await.expect_success();
    }
    assert!(outputs(&place) == quiet_outputs().await);
}

/// Each of two workers has one of two stages.
#[tokio::test]
async fn a_pool_that_loses_a_stage_goes_on_from_its_checkpoint() {
    let test = async {
        let (place, port) = (TestFolder::new(), free_port());
        let more = "replicas: [1, 1]\ncheckpoint: {dir: c, every: 3, keep: 2}";
        let mut boss = serve(&place, more, &["--workers", "2", "--port", &port]);
        let stays = place.worker(&port, &[]);
        let dies = place.worker(&port, &[]);
        boss.line("checkpoint of step 6 written").await;
        dies.signal("KILL");
        boss.line("everybody has left who had stage").await;
        let comes = place.worker(&port, &[]);
        boss.line("recovery: resuming with 2 of 2 workers from the checkpoint of step").await;
        boss.end_within(LIMIT).await.expect_success();
        for worker in [stays, comes] {
            worker.end().await.expect_success();
        }
        assert!(outputs(&place) == quiet_outputs().await);
    };
    tokio::time::timeout(2 * LIMIT, test).await.unwrap();
}

#[tokio::test]
async fn a_pool_whose_boss_is_killed_goes_on_with_the_workers_that_wait() {
    let test = async {
        let expected = quiet_outputs().await;
        let (place, port) = (TestFolder::new(), free_port());
        let begin = |workers: &str| {
            let flags = ["--workers", workers, "--port", &port, "--resume=if-any"];
            serve(&place, "checkpoint: {dir: c, every: 3, keep: 2}", &flags)
        };
        let mut workers = [place.worker(&port, &[]), place.worker(&port, &[])];
        for (first, killed_at) in
            [("1", "checkpoint of step 6 written"), ("1", " written"), ("2", " written")]
        {
            let mut boss = begin(first);
            boss.line(killed_at).await;
            boss.signal("KILL");
            boss.end().await;
            for worker in &mut workers {
                worker.line("waiting for the boss").await;
            }
        }
        // One worker leaves for good, while copies of the other's state travel.
        let mut boss = begin("2");
        boss.line("resuming from the checkpoint of step").await;
        boss.line(" written").await;
        let [stays, dies] = workers;
        dies.signal("KILL");
        boss.end_within(LIMIT).await.expect_success();
        let ended = stays.end().await.expect_success();
        assert_eq!(ended.output.last().map(String::as_str), Some("the run is over"));

        let found = outputs(&place);
        let differs = found.0.iter().zip(&expected.0).find(|(found, expected)| found != expected);
        assert!(found == expected, "{differs:?}; {} and {} lines", found.0.len(), expected.0.len());
    };
    tokio::time::timeout(2 * LIMIT, test).await.unwrap();
}
