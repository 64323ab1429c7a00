//! Plays a list of events into each observer. The status board's test is beside the board.

use super::console::Line;
use super::*;
use crate::metrics::Metrics;
use crate::receipt::Inputs;
use crate::runs::{EventLog, TextLog};
use crate::{BossManError, Score, StepReport, Timelines, ValidationResult};
use link::{Identity, Ticket};
use parking_lot::Mutex;
use pipeline::ids::{StageId, WorkerId};
use pipeline::membership::Notice;
use pipeline::message::Failure;
use pipeline::recovery::{RecoveryCost, Repeated, ResumeReport, StateSource};
use pipeline::schedule::Timeline;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use testkit::assert_golden;

const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 168, 1, 7));

fn step(step: u64, loss: f32) -> Event {
    let report = StepReport {
        step,
        loss,
        samples: 32,
        tokens: None,
        time: Duration::from_micros(3100),
        lr: Some(0.003),
        grad_norm: None,
    };
    Event::Step { report, timelines: None }
}

fn validated(step: u64, epoch: u64, loss: f64, best: bool) -> Event {
    let score = Score { loss, accuracy: Some(0.5) };
    let validation = ValidationResult { score, translations: None };
    Event::Validated { step, epoch, validation, best }
}

fn started(done: u64, from: Option<StateSource>, metrics_bytes: u64) -> Event {
    Event::Started { steps: 4, done, from, microbatches: 2, metrics_bytes, pool: false }
}

fn joined(missing: Option<usize>) -> Event {
    Event::Joined {
        worker: WorkerId(1),
        address: ADDRESS,
        host: "attic\u{1b}[2J".into(),
        device: "cpu".into(),
        processor: "x86_64 AuthenticAMD family 26 model 2".into(),
        threads: 2,
        missing,
    }
}

fn lost(message: &str) -> BossManError {
    let failure = Failure { stage: Some(StageId(1)), ..Failure::lost(message) };
    BossManError::Worker(failure.on(WorkerId(1)))
}

pub(crate) fn ticket() -> Ticket {
    let folder = tempfile::tempdir().unwrap();
    Identity::load_or_create_in(folder.path()).unwrap().ticket().clone()
}

/// A run that loses a worker, and every other event.
pub(crate) fn run(ticket: Ticket) -> Vec<Event> {
    let invitation = Invitation {
        missing: 1,
        address: Some(ADDRESS),
        port: 1024,
        ticket,
        program: "/home/me/bossman/target/release/worker".into(),
        is_pool: false,
        data: Some("data".into()),
        weights: Some("models/mine".into()),
    };
    let waiting = |missing, reason, invitation| Event::Waiting {
        missing,
        workers: 2,
        reason,
        waited_s: 7,
        invitation,
    };
    let checkpoint = |step, outcome| Event::Checkpoint { step, outcome };
    let snapshot = |step, outcome| Event::PeerSnapshot { step, outcome };
    let source = StateSource::Checkpoint { step: 2 };
    let why = || "the disk is full".to_string();
    vec![
        Event::Folder { path: "runs/digits".into() },
        Event::Listening { port: 1024 },
        waiting(2, WaitReason::Start, Some(invitation)),
        joined(Some(0)),
        Event::Left { worker: WorkerId(1), why: "it ended".into(), while_waiting: true },
        Event::TurnedAway { address: ADDRESS, why: "its ticket is another boss's".into() },
        Event::Planned {
            schedule: "1f1b".into(),
            stages: vec![PlannedStage { first_layer: "0".into(), workers: vec![WorkerId(0)] }],
            why: "it was asked for".into(),
        },
        started(0, None, 0),
        step(1, 0.5),
        step(2, 0.25),
        Event::WeightsSaved {
            step: 2,
            path: "w.safetensors".into(),
            best: false,
            modified: Some(1.5),
        },
        Event::Inputs(Inputs { initial_weights: Some("00ff".into()), ..Inputs::default() }),
        Event::Digest { step: 2, digest: "0123abcd".into() },
        validated(2, 1, 0.125, true),
        snapshot(2, SnapshotOutcome::Stored { first: true }),
        snapshot(2, SnapshotOutcome::Stored { first: false }),
        snapshot(3, SnapshotOutcome::Failed { why: why() }),
        checkpoint(2, CheckpointOutcome::Written),
        checkpoint(3, CheckpointOutcome::Failed { why: why() }),
        checkpoint(4, CheckpointOutcome::Waits { before: 3 }),
        step(3, f32::NAN),
        Event::workers_lost(Completed::Steps(3), &lost("it is silent")),
        waiting(1, WaitReason::Rejoin, None),
        waiting(1, WaitReason::TooFewRemain, None),
        Event::Transfer(Transfer {
            direction: Direction::ToWorkers,
            bytes: 1_250_000_000,
            of_bytes: 6_000_000_000,
            elapsed_s: 10.0,
            ended: false,
        }),
        Event::Transfer(Transfer {
            direction: Direction::FromWorkers,
            bytes: 1_250_000_000,
            of_bytes: 6_000_000_000,
            elapsed_s: 12.5,
            ended: true,
        }),
        Event::Resuming(ResumeReport { workers: 1, initial_workers: 2, source }),
        started(2, Some(source), 200),
        step(3, 0.25),
        Event::Recovered(RecoveryCost {
            repeated: Repeated::Steps(1),
            rejoin: Duration::from_millis(1500),
            restore: Duration::from_millis(250),
            recompute: Duration::from_millis(250),
        }),
        Event::warning("the learning rate is too small"),
        Event::warning(
            Remark::from("step 3: all gradients of layer 0 (Linear) are 0")
                .at_step(3)
                .of_layers(vec!["0".into()]),
        ),
        Event::warning(Remark::from("out of memory").of_error(&lost("it is silent"))),
        Event::notice("replicas sum over QUIC"),
        joined(None),
        Notice::Left { worker: WorkerId(1), why: "it ended".into() }.into(),
        Notice::Evicted { worker: WorkerId(1), why: "it is slow".into() }.into(),
        Notice::Leaving { worker: WorkerId(2) }.into(),
        Notice::Members { step: 4, workers: 2 }.into(),
        step(4, 0.125),
        Event::Growing { after: 4, workers: 1, waiting: 1, initial_workers: 3 },
        Event::Growing { after: 4, workers: 1, waiting: 2, initial_workers: 3 },
        waiting(3, WaitReason::Grow, None),
        Event::Interrupted {
            step: Some(4),
            weights: Some("w.safetensors".into()),
            checkpoint: Some(4),
        },
        Event::Ended { steps: 4, time: Duration::from_secs(9), error: None },
        Event::Tested { validation: validation(0.5) },
    ]
}

fn validation(loss: f64) -> ValidationResult {
    ValidationResult { score: Score { loss, accuracy: None }, translations: None }
}

#[test]
fn the_console_shows_each_event() {
    let (mut console, begin, ticket) = (Console::without_bar(), Instant::now(), ticket());
    // A second passes between two events.
    let lines = (0..)
        .zip(run(ticket.clone()))
        .flat_map(|(second, event)| console.lines(&event, begin + Duration::from_secs(second)));
    let lines = lines.map(|line| match line {
        Line::Progress(text) => text,
        Line::Warning(text) => format!("! {text}"),
    });
    let text = lines.collect::<Vec<_>>().join("\n") + "\n";
    assert_golden!("console.txt", &text.replace(&ticket.to_string(), "TICKET"));
}

/// The log is a file that users send to others. It has the console's lines after its times, but for
/// those with the ticket, and a second run continues it.
#[test]
fn the_text_log_has_the_consoles_lines_without_the_ticket() {
    let (folder, secret) = (tempfile::tempdir().unwrap(), ticket());
    let path = folder.path().join("log.txt");
    let (mut console, mut expected) = (Console::without_bar(), Vec::new());
    for _ in 0..2 {
        let mut log = TextLog::open(path.clone()).unwrap();
        for event in run(secret.clone()) {
            log.on_event(&event).unwrap();
        }
    }
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(!text.contains(&secret.to_string()) && !text.contains("MODEL_TICKET"), "{text}");
    for event in run(secret.clone()) {
        let lines = console.lines(&event, Instant::now());
        let with_ticket = matches!(event, Event::Waiting { invitation: Some(_), .. });
        expected.extend(lines.iter().filter(|_| !with_ticket).map(|line| line.text().to_string()));
    }
    let written = |line: &str| line.split_once(" s  ").map(|(_, text)| text.to_string());
    let all: Vec<String> = text.lines().filter_map(written).collect();
    // Lines that show a speed depend on the time.
    let count =
        |lines: &[String], start: &str| lines.iter().filter(|line| line.starts_with(start)).count();
    assert!(expected.len() > 10);
    for line in &expected {
        let start: String = line.chars().take(8).collect();
        assert_eq!(count(&all, &start), 2 * count(&expected, &start), "{line}\n{text}");
    }
}

#[test]
fn a_console_shows_ten_callers_that_it_turns_away() {
    let mut console = Console::without_bar();
    let event = Event::TurnedAway { address: ADDRESS, why: "no".into() };
    let shown = (0..30).filter(|_| !console.lines(&event, Instant::now()).is_empty()).count();
    assert_eq!(shown, 10);
}

/// As JSON each event can be read back, and the ticket is in none. EVENT-3, EVENT-6, JOIN-1.
#[test]
fn events_are_values() {
    let secret = ticket();
    let texts: Vec<String> =
        run(secret.clone()).iter().map(|event| serde_json::to_string(event).unwrap()).collect();
    for text in &texts {
        let event: Event = serde_json::from_str(text).unwrap();
        assert_eq!(&serde_json::to_string(&event).unwrap(), text);
        assert!(!text.contains(&secret.to_string()), "{text}");
    }
    assert_golden!("events.jsonl", &(texts.join("\n") + "\n"));
}

/// The log of events has each as JSON, after the time and the version.
#[test]
fn the_event_log_has_each_event() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events.jsonl");
    let mut log = EventLog::open(path.clone(), Events::unobserved()).unwrap();
    let mut expected = Vec::new();
    for event in run(ticket()) {
        log.on_event(&event).unwrap();
        expected.push(serde_json::to_value(&event).unwrap());
    }
    let text = std::fs::read_to_string(&path).unwrap();
    let written = text.lines().map(|line| {
        let mut line: serde_json::Value = serde_json::from_str(line).unwrap();
        let fields = line.as_object_mut().unwrap();
        assert!(fields.remove("time").is_some_and(|time| time.as_f64().unwrap() > 1.7e9));
        assert_eq!(fields.remove("version"), Some(1.into()));
        line
    });
    assert_eq!(written.collect::<Vec<_>>(), expected);
}

#[test]
fn metrics_have_a_line_for_each_step_and_go_back_with_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("metrics.jsonl");
    std::fs::write(&path, "a run before\n").unwrap();
    let mut metrics = Metrics::open(&path, 0).unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "a run before\n");
    for event in run(ticket()) {
        let event = match event {
            Event::Started { from: Some(_), .. } => {
                let text = std::fs::read_to_string(&path).unwrap();
                let third = text.find("{\"step\":3").unwrap();
                started(2, Some(StateSource::Checkpoint { step: 2 }), third as u64)
            }
            event => event,
        };
        metrics.on_event(&event).unwrap();
    }
    let expected = "\
        {\"step\":1,\"loss\":0.5,\"samples\":32,\"step_ms\":3.1,\"lr\":0.003}\n\
        {\"step\":2,\"loss\":0.25,\"samples\":32,\"step_ms\":3.1,\"lr\":0.003}\n\
        {\"epoch\":1,\"step\":2,\"validation\":{\"accuracy\":0.5,\"loss\":0.125}}\n\
        {\"step\":3,\"loss\":0.25,\"samples\":32,\"step_ms\":3.1,\"lr\":0.003}\n\
        {\"step\":4,\"loss\":0.125,\"samples\":32,\"step_ms\":3.1,\"lr\":0.003}\n";
    assert_eq!(std::fs::read_to_string(&path).unwrap(), expected);
    assert_eq!(metrics.bytes(), expected.len() as u64);
    // A run that resumes needs the lines of its state.
    let error = Metrics::open(&path, 1000).err().unwrap().to_string();
    assert!(error.contains("but had 1000 when the checkpoint was made"), "{error}");
}

#[test]
fn a_trace_has_the_last_steps_of_a_run_that_ends_well() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    let timelines = || {
        let measured = Timeline { workers: Vec::new(), step_time: 0 };
        Some(Arc::new(Timelines { measured, predicted: None }))
    };
    let mut recorder = crate::train::trace::TraceRecorder::new(path.clone());
    assert!(recorder.wants_timelines());
    for event in run(ticket()) {
        let event = match event {
            Event::Step { report, .. } => Event::Step { report, timelines: timelines() },
            event => event,
        };
        assert!(!path.exists() || matches!(event, Event::Tested { .. }));
        recorder.on_event(&event).unwrap();
    }
    assert!(path.exists());
}

/// Every observer sees every event, and the first error is the caller's.
#[test]
fn an_observer_that_fails_hides_nothing_from_the_others() {
    struct Fails;
    impl Observer for Fails {
        fn on_event(&mut self, _: &Event) -> Result<(), BossManError> {
            Err(BossManError::Usage("full".into()))
        }
    }
    #[derive(Default)]
    struct Counts(Vec<String>);
    impl Observer for Counts {
        fn on_event(&mut self, event: &Event) -> Result<(), BossManError> {
            self.0.push(serde_json::to_string(event).unwrap());
            Ok(())
        }
    }
    let seen = Arc::new(Mutex::new(Counts::default()));
    let events = Events::unobserved().with(Fails).with(seen.clone());
    assert_eq!(events.emit(&step(1, 0.5)).unwrap_err().to_string(), "full");
    assert_eq!(seen.lock().0.len(), 1);
    // The work goes on, and the user reads why.
    events.report(&step(2, 0.5));
    let warning = "{\"event\":\"warning\",\"message\":\"full\"}";
    assert_eq!(seen.lock().0.last().map(String::as_str), Some(warning));
    assert!(!events.want_timelines());
}
