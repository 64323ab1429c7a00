//! Tests real processes: the messages that a user sees when something goes wrong, and that nothing
//! is left behind.

use std::path::Path;
use std::time::{Duration, Instant};
use tests::programs::{
    assert_within, free_port, program, send_signal, train_in_processes, TestFolder, NO_CHECKPOINT,
    TIMEOUT,
};
use tests::{one_process, Case};

/// The time from the death of a worker to the error: three times the promised one, because other
/// tests keep the machine busy.
const NOTICED: Duration = Duration::from_secs(15);
/// The time in which processes end that wait for nobody. They write files, and a busy disk takes
/// seconds.
const AT_ONCE: Duration = Duration::from_secs(10);

#[tokio::test]
async fn a_local_worker_that_is_killed_ends_the_run_with_its_name() {
    let place = TestFolder::new();
    let mut boss =
        place.start("bossman", &["train", place.endless_run().to_str().unwrap(), "--local", "2"]);
    boss.line("step 1/").await;
    let workers = boss.children();
    assert_eq!(workers.len(), 2);
    send_signal(workers[1], "KILL");
    let killed = Instant::now();
    let ended = boss.end().await; // and both workers, which share its standard error
    assert_within(killed, NOTICED, "the end");
    let line = ended.error_line();
    assert!(
        line.starts_with("bossman: worker ") && line.contains("lost") && line.contains("signal: 9"),
        "{line}"
    );
    assert!(line.contains("with `checkpoint` in its run file it recovers by itself"), "{line}");
}

#[tokio::test]
async fn a_worker_that_is_killed_ends_the_run_and_the_other_worker_waits_for_the_next() {
    let place = TestFolder::new();
    let (mut boss, at) = place.boss(&place.endless_run(), 2, &[]).await;
    let mut stays = place.worker(&at.port, &[]);
    boss.line("worker 0 joined").await;
    let dies = place.worker(&at.port, &[]);
    boss.line("step 1/").await;
    dies.signal("KILL");
    let killed = Instant::now();
    let ended = boss.end().await;
    assert_within(killed, NOTICED, "the end");
    let line = ended.error_line();
    assert!(
        line.starts_with("bossman: worker 1") && line.contains(": lost (silent for 3 seconds)"),
        "{line}"
    );
    stays.line("waiting for the boss").await;
}

#[tokio::test]
async fn a_worker_whose_boss_is_lost_waits_no_longer_than_it_was_told() {
    let place = TestFolder::new();
    let (mut boss, at) = place.boss(&place.endless_run(), 1, &[]).await;
    let mut worker = place.worker(&at.port, &["--orphan-timeout", "1"]);
    boss.line("step 1/").await;
    boss.signal("KILL");
    worker.line("waiting for the boss").await;
    let line = worker.end().await.error_line();
    assert!(
        line.starts_with(
            "worker: the boss was lost, and none was there for 1 s (--orphan-timeout): "
        ),
        "{line}"
    );
}

#[tokio::test]
async fn a_boss_that_is_killed_takes_its_local_workers_along() {
    let place = TestFolder::new();
    let mut boss =
        place.start("bossman", &["train", place.endless_run().to_str().unwrap(), "--local", "2"]);
    boss.line("step 1/").await;
    assert_eq!(boss.children().len(), 2);
    boss.signal("KILL");
    let killed = Instant::now();
    // The workers share its standard error, so they are gone when it ends.
    let ended = boss.end().await;
    assert_within(killed, AT_ONCE, "the end of all");
    assert!(!ended.status.success());
}

#[tokio::test]
async fn a_worker_waits_for_a_boss_and_for_the_next_one() {
    let place = TestFolder::new();
    let port = free_port();
    let endless = place.endless_run();
    let start = |run: &Path| {
        place.start("bossman", &["train", run.to_str().unwrap(), "--workers", "1", "--port", &port])
    };
    let mut worker = place.worker(&port, &[]);
    worker.line("waiting for the boss at 127.0.0.1").await;

    let mut boss = start(&endless);
    worker.line("joined the boss").await;
    boss.line("step 1/").await;
    boss.signal("KILL");
    boss.end().await;
    worker.line("waiting for the boss at 127.0.0.1").await;

    let boss = start(&place.short_run(&Case::branchy(), ""));
    worker.line("joined the boss").await;
    boss.end().await.expect_success();
    let ended = worker.end().await.expect_success();
    assert_eq!(ended.output.last().map(String::as_str), Some("the run is over"));
}

#[tokio::test]
async fn two_workers_by_hand_end_with_the_weights_of_one_process() {
    assert_eq!(notices(&[]).await, [NO_CHECKPOINT]);
}

#[tokio::test]
async fn workers_that_take_no_direct_connections_are_relayed_to_the_same_weights() {
    let relays = "worker 0 and worker 1 cannot reach each other (one of them makes no direct \
                  connections); the boss relays between them";
    assert_eq!(notices(&["--relay"]).await, [NO_CHECKPOINT, relays]);
}

/// Trains with two workers, and asserts that nothing differs from one process. Returns the notices
/// that the boss printed.
async fn notices(flags: &[&str]) -> Vec<String> {
    let case = Case::skip();
    let run = train_in_processes(&case, 2, "microbatches: 5", flags).await;
    one_process(&case, 5).assert_same(&run.training, &"by hand");
    run.notices
}

#[tokio::test]
async fn a_worker_whose_words_nobody_reads_works_on() {
    let place = TestFolder::new();
    let (boss, at) = place.boss(&place.short_run(&Case::branchy(), ""), 1, &[]).await;
    let closed = || std::process::Stdio::from(std::io::pipe().unwrap().1);
    let mut worker = tokio::process::Command::new(program("worker"));
    worker.args(["--port", &at.port, "--device", "cpu", "--ticket", &at.ticket]).kill_on_drop(true);
    let mut worker = worker
        .stdin(std::process::Stdio::null())
        .stdout(closed())
        .stderr(closed())
        .spawn()
        .unwrap();
    boss.end().await.expect_success();
    assert!(tokio::time::timeout(TIMEOUT, worker.wait()).await.unwrap().unwrap().success());
}

#[tokio::test]
async fn a_third_worker_is_told_that_it_is_not_needed() {
    let place = TestFolder::new();
    let (mut boss, at) = place.boss(&place.endless_run(), 2, &[]).await;
    let _two = [place.worker(&at.port, &[]), place.worker(&at.port, &[])];
    boss.line("step 1/").await;
    let mut third = place.worker(&at.port, &[]);
    third.line("the run has all its 2 workers").await;
}

#[tokio::test]
async fn a_worker_with_a_wrong_ticket_is_turned_away_with_words() {
    let (place, stranger) = (TestFolder::new(), TestFolder::new());
    let (mut boss, at) = place.boss(&place.endless_run(), 1, &[]).await;
    // The key of the same boss, with another secret.
    let forger = TestFolder::new();
    std::fs::create_dir(forger.file("config")).unwrap();
    std::fs::copy(place.file("config/boss.key"), forger.file("config/boss.key")).unwrap();
    let forged = forger.start("bossman", &["ticket"]).end().await.expect_success().output.remove(0);
    assert_ne!(forged, at.ticket);
    let worker = place.start("worker", &["--port", &at.port, "--ticket", &forged]);
    let line = worker.end().await.error_line();
    assert!(
        line.contains("does not accept this ticket; copy the MODEL_TICKET that it prints"),
        "{line}"
    );
    boss.line("turned away 127.0.0.1: it has no valid ticket").await;

    // A ticket of another boss.
    let other =
        stranger.start("bossman", &["ticket"]).end().await.expect_success().output.remove(0);
    let worker = place.start_with("worker", &["--port", &at.port], &[("MODEL_TICKET", &other)]);
    let line = worker.end().await.error_line();
    assert!(
        line.contains(
            "is not the boss that this ticket was made for; check MODEL_HOST and MODEL_TICKET"
        ),
        "{line}"
    );
}

#[tokio::test]
async fn a_damaged_ticket_is_noticed_before_anything_is_dialled() {
    let place = TestFolder::new();
    let ticket = place.start("bossman", &["ticket"]).end().await.expect_success().output.remove(0);
    let line =
        place.start("worker", &["--ticket", &ticket[..ticket.len() - 1]]).end().await.error_line();
    assert!(line.contains("this join ticket is damaged; copy the whole MODEL_TICKET"), "{line}");
    let line = place.start("worker", &["--ticket", "sesame"]).end().await.error_line();
    assert!(line.contains("this is not a join ticket: it must start with `bossman1-`"), "{line}");
}

#[tokio::test]
async fn a_port_in_use_is_named() {
    let place = TestFolder::new();
    let taken = std::net::UdpSocket::bind(("0.0.0.0", 0)).unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let run = place.endless_run();
    let boss = place
        .start("bossman", &["train", run.to_str().unwrap(), "--workers", "1", "--port", &port]);
    let line = boss.end().await.error_line();
    assert_eq!(
        line,
        format!(
            "bossman: UDP port {port} is in use; end the other boss or use another port (--port or \
             MODEL_PORT)"
        )
    );
    assert!(!place.file("runs").exists(), "nothing began");
}

#[tokio::test]
async fn a_worker_ends_within_a_second_of_ctrl_c() {
    let place = TestFolder::new();
    let mut waits = place.worker(&free_port(), &[]);
    waits.line("waiting for the boss").await;
    let (mut boss, at) = place.boss(&place.endless_run(), 1, &[]).await;
    let works = place.worker(&at.port, &[]);
    boss.line("step 1/").await;
    for worker in [waits, works] {
        worker.signal("INT");
        let interrupted = Instant::now();
        let ended = worker.end_within(TIMEOUT).await;
        assert_within(interrupted, AT_ONCE, "the end");
        assert_eq!(ended.status.code(), Some(130), "{}", ended.status);
        assert_eq!(ended.errors, [""; 0]);
    }
}

#[tokio::test]
async fn ctrl_c_at_the_boss_ends_it_and_its_local_workers() {
    let place = TestFolder::new();
    let mut boss =
        place.start("bossman", &["train", place.endless_run().to_str().unwrap(), "--local", "2"]);
    boss.line("step 1/").await;
    // The terminal is closed, which ends nothing.
    boss.signal("HUP");
    boss.signal("INT");
    let interrupted = Instant::now();
    let ended = boss.end().await;
    assert_within(interrupted, AT_ONCE, "the end of all");
    assert_eq!(ended.status.code(), Some(130), "{}", ended.status);
    let [stopping, saved] = &ended.errors[..] else { panic!("{:?}", ended.errors) };
    assert!(stopping.starts_with("stopping: a step under way is completed"), "{stopping}");
    assert!(saved.starts_with("bossman: interrupted; step "), "{saved}");
    assert!(saved.contains(" is done; the weights are in "), "{saved}");
    assert!(saved.ends_with("; there is no checkpoint to go on from"), "{saved}");
}

#[tokio::test]
async fn mistakes_in_files_are_one_line_before_any_worker_starts() {
    let place = TestFolder::new();
    let run = place.short_run(&Case::branchy(), "schedule: 1f2b");
    let train =
        |run: &Path| place.start("bossman", &["train", run.to_str().unwrap(), "--local", "2"]);
    let line = train(&run).end().await.error_line();
    assert!(line.contains("run.yaml:8:11: ") && line.contains("did you mean `1f1b`?"), "{line}");

    let run = place.short_run(&Case::branchy(), "");
    std::fs::remove_file(place.file("data.safetensors")).unwrap();
    let line = train(&run).end().await.error_line();
    assert!(line.contains("data.safetensors: No such file"), "{line}");

    let line = train(&place.file("absent.yaml")).end().await.error_line();
    assert!(line.contains("absent.yaml"), "{line}");
}

#[tokio::test]
async fn a_plan_names_every_schedule_and_draws_the_first() {
    let place = TestFolder::new();
    let run = place.short_run(&Case::residual(), "microbatches: 4");
    let plan = ["plan", run.to_str().unwrap(), "--local", "2", "--timeline"];
    let ended = place.start("bossman", &plan).end().await.expect_success();
    let table: Vec<&str> =
        ended.output.iter().take_while(|line| !line.is_empty()).map(String::as_str).collect();
    assert!(table[0].trim().starts_with("schedule") && table[0].contains("step"), "{table:?}");
    for (name, _) in pipeline::ScheduleKind::NAMES {
        let first =
            |line: &str| line.trim_start_matches(['*', ' ']).starts_with(&format!("{name} "));
        assert!(table.iter().any(|line| first(line)), "no {name} in {table:?}");
    }
    assert_eq!(
        table.iter().filter(|line| line.starts_with('*')).count(),
        1,
        "one is to be taken: {table:?}"
    );
    assert!(
        table.iter().any(|line| line.starts_with("worker 0 to worker 1: ")),
        "no connection in {table:?}"
    );
    let picture = ended.output.split(String::is_empty).nth(1).unwrap();
    assert!(picture.len() >= 2, "no line for each worker: {picture:?}");
}

/// A trace has Chrome's format: a list of events, each with a phase, a process and a thread.
#[tokio::test]
async fn a_trace_has_what_was_measured_and_what_was_predicted() {
    let place = TestFolder::new();
    let run = place.run_file(&Case::residual(), 3, "microbatches: 4\nschedule: auto");
    let trace = place.file("trace.json");
    let train =
        ["train", run.to_str().unwrap(), "--local", "2", "--trace", trace.to_str().unwrap()];
    place.start("bossman", &train).end().await.expect_success();
    let events: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(trace).unwrap()).unwrap();
    let events = events.as_array().unwrap();
    for (process, side) in [(0, "measured"), (1, "predicted")] {
        let of_side = |event: &&serde_json::Value| event["pid"] == process;
        let named = |event: &&serde_json::Value| {
            event["name"] == "process_name" && event["args"]["name"] == side
        };
        assert!(events.iter().filter(of_side).any(|event| named(&event)), "no {side}");
        for (worker, step) in [(0, 1), (1, 2), (0, 3)] {
            let works = |event: &&serde_json::Value| {
                event["ph"] == "X"
                    && event["tid"] == worker
                    && event["args"]["step"] == step
                    && event["dur"].is_u64()
            };
            let count = events.iter().filter(of_side).filter(works).count();
            assert!(count >= 9, "{side}, worker {worker}, step {step}: {count} actions");
        }
    }
}

/// Returns whether text shows a part of these bytes as they are, in hexadecimal digits, or as a
/// list.
fn shows(text: &str, secret: &[u8]) -> bool {
    secret.chunks_exact(8).any(|part| {
        let hex: String = part.iter().map(|byte| format!("{byte:02x}")).collect();
        let list = format!("{part:?}");
        text.contains(list.trim_matches(['[', ']']))
            || text.contains(&hex)
            || std::str::from_utf8(part).is_ok_and(|part| text.contains(part))
    })
}

#[tokio::test]
async fn a_log_shows_members_commands_transfers_and_recovery_but_no_secret() {
    let place = TestFolder::new();
    let run = place.run_file(
        &Case::branchy(),
        1_000_000_000,
        "microbatches: 4\ncheckpoint: {dir: c, every: 20, keep: 1}",
    );
    let train = ["train", run.to_str().unwrap(), "--local", "2"];
    let log = [("BOSSMAN_LOG", "trace,quinn=debug,quinn_proto=debug")];
    let mut boss = place.start_with("bossman", &train, &log);
    boss.line("checkpoint ends").await;
    send_signal(*boss.children().last().unwrap(), "KILL");
    boss.line("remedy=Rebuild").await;
    boss.line("training begins").await;
    boss.line("step done").await;
    boss.signal("INT");
    let ended = boss.end().await;
    for (kind, parts) in [
        ("membership", &["INFO", "link::admission::listener: worker joined worker=1"][..]),
        ("loss", &["INFO", "runtime::boss_driver: worker lost worker="]),
        ("handshake", &["DEBUG", "handshake done", "reply=\"welcome\""]),
        ("request", &["DEBUG", "request", "kind=\"Run\" step=1"]),
        ("command", &["run{worker=1}:command{", "kind=\"Run\" step=1", "received peer=the boss"]),
        ("task", &["kind=\"Forward\" stage=1", "microbatch=3}", "task done micros="]),
        ("transfer", &["run{worker=0}", "sent peer=worker 1", "microbatch=0", "bytes="]),
        ("memory", &["run{worker=0}: link::connection::negotiation: shared memory", "agreed="]),
        ("stage", &["worker::compute::building: stage built stage=1"]),
        ("recovery", &["DEBUG", "the times of layers are known"]),
        ("state", &["worker::compute::state: a part of the state arrived"]),
        ("step", &["step{step=1}", "step done loss="]),
        ("checkpoint", &["checkpoint begins step=20"]),
        ("failure", &["recovery::policy: failure", "remedy=Rebuild"]),
        ("recovery", &["recovery{after=", "attempts=1}", "recovery report=ResumeReport"]),
    ] {
        let found = |line: &&String| parts.iter().all(|part| line.contains(part));
        let example = ended.errors.iter().find(found);
        assert!(example.is_some(), "no line of {kind}: {parts:?}");
    }
    let all = [ended.errors, ended.output].concat().join("\n");
    for file in ["ticket", "boss.key"] {
        let secret = std::fs::read(place.file("config").join(file)).unwrap();
        // The beginning of a ticket and of a key is no secret.
        assert!(!shows(&all, &secret[16..]), "the log shows a part of {file}");
    }
}

#[tokio::test]
async fn a_log_that_cannot_be_read_is_one_error() {
    let place = TestFolder::new();
    for (name, arguments) in [("bossman", &["ticket"][..]), ("worker", &[])] {
        let log = [("BOSSMAN_LOG", "info,debgu")];
        let line = place.start_with(name, arguments, &log).end().await.error_line();
        let expected = format!("{name}: BOSSMAN_LOG: cannot read `debgu`; expected a level");
        assert!(line.starts_with(&expected), "{line}");
    }
}
