//! Plays lists of events into the board, and reads the status after each.

use super::board::Board;
use super::*;
use crate::events::tests::{run, ticket};
use crate::events::{Completed, Direction, Event, Events, Transfer, WaitReason};
use crate::StepReport;
use pipeline::ids::WorkerId;
use pipeline::recovery::{RecoveryCost, Repeated, ResumeReport, StateSource};
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};
use testkit::assert_golden;

/// The most bytes of a handshake, as `link` has it.
const HANDSHAKE: usize = 64 << 10;

fn waiting(missing: usize, reason: WaitReason, waited_s: u64) -> Event {
    Event::Waiting { missing, workers: 3, reason, waited_s, invitation: None }
}

fn joined(worker: u16, missing: Option<usize>) -> Event {
    Event::Joined {
        worker: WorkerId(worker),
        address: IpAddr::V4(Ipv4Addr::LOCALHOST),
        host: "attic\u{1b}[2J".into(),
        device: "cpu".into(),
        processor: String::new(),
        threads: 1,
        missing,
    }
}

fn left(worker: u16) -> Event {
    Event::Left { worker: WorkerId(worker), why: "it ended".into(), while_waiting: true }
}

fn started(done: u64) -> Event {
    let (steps, from, microbatches, metrics_bytes) = (200, None, 2, 0);
    Event::Started { steps, done, from, microbatches, metrics_bytes, pool: false }
}

fn step(step: u64, loss: f32) -> Event {
    let report = StepReport {
        step,
        loss,
        samples: 32,
        tokens: None,
        time: Duration::from_millis(3),
        lr: None,
        grad_norm: None,
    };
    Event::Step { report, timelines: None }
}

fn lost(after: Completed, worker: Option<u16>) -> Event {
    let (worker, stage) = (worker.map(WorkerId), None);
    Event::WorkersLost { after, worker, stage, error: "it is silent".into() }
}

fn resuming() -> Event {
    let source = StateSource::Checkpoint { step: 50 };
    Event::Resuming(ResumeReport { workers: 2, initial_workers: 3, source })
}

fn recovered() -> Event {
    Event::Recovered(RecoveryCost {
        repeated: Repeated::Steps(1),
        rejoin: Duration::ZERO,
        restore: Duration::ZERO,
        recompute: Duration::ZERO,
    })
}

fn ended(error: Option<&str>) -> Event {
    let error = error.map(String::from);
    Event::Ended { steps: 200, time: Duration::from_secs(9), error }
}

/// Takes the events, a second after each other. After each the first line of the status is this.
#[track_caller]
fn assert_lines(run: &[(Event, &str)]) -> Status {
    let (mut board, begin) = (Board::default(), Instant::now());
    let mut status = board.status(begin);
    for (second, (event, expected)) in (0..).zip(run) {
        let now = begin + Duration::from_secs(second);
        board.follow(event, now);
        status = board.status(now);
        let text = status.to_string();
        assert_eq!(text.lines().next().unwrap(), *expected, "after {event:?}");
    }
    status
}

#[test]
fn a_run_waits_trains_and_ends() {
    let status = assert_lines(&[
        (Event::Listening { port: 1024 }, "starting"),
        (waiting(3, WaitReason::Start, 0), "waiting for 3 of 3 workers, for 0 s"),
        (joined(0, Some(2)), "waiting for 2 of 3 workers, for 1 s"),
        (joined(1, Some(1)), "waiting for 1 of 3 workers, for 2 s"),
        (left(0), "waiting for 2 of 3 workers, for 3 s"),
        (joined(0, Some(1)), "waiting for 1 of 3 workers, for 4 s"),
        (joined(2, Some(0)), "ready: 3 of 3 workers"),
        (started(0), "training: step 0 of 200, 3 of 3 workers"),
        (step(1, 0.5), "training: step 1 of 200, loss 0.5000, 32.0 samples/s, 3 of 3 workers"),
        (step(2, f32::NAN), "training: step 2 of 200, 32.0 samples/s, 3 of 3 workers"),
        (step(3, 0.25), "training: step 3 of 200, loss 0.2500, 32.0 samples/s, 3 of 3 workers"),
        (ended(None), "the run has ended: step 200 of 200, loss 0.2500"),
    ]);
    assert_eq!((status.phase, status.step, status.wait), (Phase::Ended, 200, None));
    let third = &status.workers[2];
    assert_eq!((third.worker, third.joined_seconds, &third.member), (2, 5.0, &None));
    assert!(status.to_string().ends_with(
        "\nworkers: 0 on attic [2J (cpu), 1 on attic [2J (cpu), 2 on attic [2J (cpu)\n"
    ));
}

#[test]
fn a_long_transfer_is_told_until_its_end() {
    let transfer = |ended| {
        let (direction, bytes, of_bytes) = (Direction::ToWorkers, 1_250_000_000, 6_000_000_000);
        Event::Transfer(Transfer { direction, bytes, of_bytes, elapsed_s: 10.4, ended })
    };
    assert_lines(&[
        (waiting(3, WaitReason::Start, 0), "waiting for 3 of 3 workers, for 0 s"),
        (joined(0, Some(0)), "ready: 1 of 3 workers"),
        (
            transfer(false),
            "ready: 1 of 3 workers; loading state into the workers: 1.25 of 6.00 GB in 10 s",
        ),
        (transfer(true), "ready: 1 of 3 workers"),
        (started(0), "training: step 0 of 200, 1 of 3 workers"),
        (
            transfer(false),
            "training: step 0 of 200, 1 of 3 workers; loading state into the workers: 1.25 of \
             6.00 GB in 10 s",
        ),
        (transfer(true), "training: step 0 of 200, 1 of 3 workers"),
    ]);
}

#[test]
fn a_run_recovers_with_fewer_workers_and_grows() {
    assert_lines(&[
        (waiting(3, WaitReason::Start, 0), "waiting for 3 of 3 workers, for 0 s"),
        (joined(0, Some(2)), "waiting for 2 of 3 workers, for 1 s"),
        (joined(1, Some(1)), "waiting for 1 of 3 workers, for 2 s"),
        (joined(2, Some(0)), "ready: 3 of 3 workers"),
        (started(0), "training: step 0 of 200, 3 of 3 workers"),
        (step(57, 0.5), "training: step 57 of 200, loss 0.5000, 32.0 samples/s, 3 of 3 workers"),
        (lost(Completed::Steps(57), Some(1)), "recovering: step 57 of 200, 2 of 3 workers"),
        (
            waiting(3, WaitReason::Rejoin, 0),
            "recovering: waiting for 3 of 3 workers to join again, for 0 s, after step 57 of 200",
        ),
        (
            joined(0, Some(2)),
            "recovering: waiting for 2 of 3 workers to join again, for 1 s, after step 57 of 200",
        ),
        // The wait is the same one.
        (
            waiting(2, WaitReason::TooFewRemain, 1),
            "recovering: too few workers remain, waiting for 2 of 3 workers, for 2 s, after step \
             57 of 200",
        ),
        (
            joined(1, Some(1)),
            "recovering: too few workers remain, waiting for 1 of 3 workers, for 3 s, after step \
             57 of 200",
        ),
        (resuming(), "recovering: step 57 of 200, 2 of 3 workers"),
        (started(50), "training: step 50 of 200, 2 of 3 workers"),
        (recovered(), "training: step 50 of 200, 2 of 3 workers"),
        (step(51, 0.5), "training: step 51 of 200, loss 0.5000, 16.0 samples/s, 2 of 3 workers"),
        (
            Event::Growing { after: 51, workers: 2, waiting: 1, initial_workers: 3 },
            "taking in workers that wait: step 51 of 200, 2 of 3 workers",
        ),
        (
            waiting(3, WaitReason::Grow, 0),
            "taking in workers: waiting for 3 of 3 to join again, for 0 s, after step 51 of 200",
        ),
        (
            Event::Interrupted { step: Some(51), weights: None, checkpoint: None },
            "the run was interrupted: step 51 of 200, loss 0.5000",
        ),
    ]);
}

/// There is no event of their steps.
#[test]
fn calls_by_hand_are_ready_again_after_a_loss() {
    assert_lines(&[
        (waiting(3, WaitReason::Start, 0), "waiting for 3 of 3 workers, for 0 s"),
        (joined(0, Some(0)), "ready: 1 of 3 workers"),
        (lost(Completed::Updates(7), None), "recovering: 1 of 3 workers"),
        (
            waiting(3, WaitReason::Rejoin, 0),
            "recovering: waiting for 3 of 3 workers to join again, for 0 s",
        ),
        (joined(0, Some(2)), "recovering: waiting for 2 of 3 workers to join again, for 1 s"),
        (resuming(), "recovering: 1 of 3 workers"),
        (recovered(), "ready: 1 of 3 workers"),
    ]);
}

#[test]
fn a_wait_may_end_with_fewer_workers() {
    let (mut board, now) = (Board::default(), Instant::now());
    board.follow(&waiting(3, WaitReason::Rejoin, 0), now);
    board.follow(&joined(0, Some(2)), now);
    // The plan needs no two workers.
    board.follow(&joined(1, Some(1)), now);
    board.wait_ended(1);
    let status = board.status(now);
    assert_eq!((status.phase, status.wait), (Phase::Ready, None));
    assert!(status.to_string().starts_with("ready: 1 of 3 workers\n"));
    // Only a wait can end.
    board.follow(&started(0), now);
    board.wait_ended(0);
    assert_eq!(board.status(now).phase, Phase::Training);
}

#[test]
fn a_run_fails_with_its_error() {
    let error = "no memory\u{1b}".repeat(100);
    let (mut board, now) = (Board::default(), Instant::now());
    board.follow(&started(0), now);
    board.follow(&ended(Some(&error)), now);
    let status = board.status(now);
    assert_eq!((status.phase, status.error.unwrap().len()), (Phase::Failed, MAX_TEXT));
    let line = board.status(now).to_string();
    assert!(line.starts_with("the run failed: step 200 of 200, no memory no memory "), "{line}");
}

#[test]
fn long_waits_are_rounded() {
    let begin = Instant::now();
    let mut board = Board::default();
    board.follow(&waiting(3, WaitReason::Start, 0), begin);
    for (seconds, text) in [(119, "119 s"), (120, "2 min"), (7199, "120 min"), (7200, "2 h")] {
        let status = board.status(begin + Duration::from_secs(seconds)).to_string();
        assert_eq!(status, format!("waiting for 3 of 3 workers, for {text}\n"));
    }
}

fn member(worker: u16, text: &str) -> WorkerStatus {
    let member = MemberStatus {
        state: "left".into(),
        reason: Some(text.into()),
        share: 0.5,
        steps: 7,
        samples: 112,
        milliseconds: Some(3.25),
        link_bytes_per_second: None,
        memory_bytes: Some(1 << 30),
        last_seen_seconds: 1.5,
    };
    WorkerStatus {
        worker,
        host: "attic".into(),
        device: "cpu".into(),
        joined_seconds: 9.0,
        member: Some(member),
    }
}

/// The board of a pool knows its members, and forgets them when a new session waits.
#[test]
fn a_pool_has_a_table() {
    let board = StatusBoard::default();
    let (text, events) = (board.text(), board.before(Events::unobserved()));
    events.report(&started(0));
    let pool = Status {
        phase: Phase::Training,
        step: 7,
        loss: Some(0.5),
        samples_per_second: Some(10.0),
        workers: vec![member(0, "it is slow")],
        ..Status::default()
    };
    board.set_pool(pool.clone());
    let read: Status = serde_json::from_str(&text.text()).unwrap();
    assert_eq!(read, Status { steps: Some(200), ..pool });
    let shown = read.to_string();
    let lines: Vec<_> = shown.lines().collect();
    assert_eq!(lines[0], "step 7, loss 0.5000, 10.0 samples/s");
    assert!(lines[1].starts_with("worker  host") && lines[2].ends_with("1.5  it is slow"));
    events.report(&waiting(3, WaitReason::Rejoin, 0));
    let read: Status = serde_json::from_str(&text.text()).unwrap();
    assert_eq!((read.phase, read.workers), (Phase::Waiting, Vec::new()));
}

/// A second passes between two events.
#[test]
fn the_status_after_each_event_of_a_run() {
    let (mut board, begin) = (Board::default(), Instant::now());
    let mut statuses: Vec<String> = Vec::new();
    for (second, event) in (0..).zip(run(ticket())) {
        let now = begin + Duration::from_secs(second);
        board.follow(&event, now);
        let event = serde_json::to_value(&event).unwrap();
        statuses.push(format!("{}: {}", event["event"], board.status(now).json()));
    }
    assert_golden!("status.txt", &(statuses.join("\n") + "\n"));
}

#[test]
fn json_reads_back_and_fits_into_a_handshake() {
    let (mut board, now) = (Board::default(), Instant::now());
    board.follow(&waiting(3, WaitReason::Start, 0), now);
    for worker in 0..500 {
        board.follow(&joined(worker, Some(1)), now);
    }
    let status = board.status(now);
    assert_eq!((status.workers.len(), status.more), (MAX_WORKERS, 500 - MAX_WORKERS));
    let text = status.clone().json();
    assert!(text.len() < HANDSHAKE);
    assert_eq!(serde_json::from_str::<Status>(&text).unwrap(), status);
    assert!(status.to_string().ends_with("7 on attic [2J (cpu), and 492 more\n"));

    let longest = "\u{10348}\"".repeat(MAX_TEXT / 2);
    let workers: Vec<_> = (0..100).map(|worker| member(worker, &longest)).collect();
    let text = Status { workers, more: 5, ..Status::default() }.json();
    assert!(text.len() < HANDSHAKE, "{}", text.len());
    let read: Status = serde_json::from_str(&text).unwrap();
    assert_eq!(read.workers.len() + read.more, 105);
    assert!(!read.workers.is_empty());
}
