//! A peer that holds the ticket and violates the protocol is disconnected. The results of the
//! others are the same as without it, to the bit, and no process takes more memory than it was
//! sent.

#![cfg(target_os = "linux")]
use link::testing::{ping, TestConnection};
use link::{Identity, Listener, Payload, Ticket};
use pipeline::effect::Micros;
use pipeline::frame::Route;
use pipeline::ids::{MicrobatchKey, StageId, WorkerId};
use pipeline::message::{Failure, TensorHead, ToBoss, ToWorker};
use pipeline::TensorMeta;
use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;
use tests::hostile::{frame, message, peak, MaliciousWorker, RawConnection};
use tests::programs::{Process, TestFolder, TIMEOUT};
use tests::Case;

/// The time limit of a test; far longer than it takes.
const LIMIT: Duration = Duration::from_secs(180);
/// The most MiB by which a process may grow, with all that libtorch and QUIC keep for later. Each
/// attack requests gigabytes.
const GROWTH: u64 = 300;
/// The number of streams that a peer opens: enough to request gigabytes, but not all that this
/// machine has.
const STREAMS: usize = 32;

/// A pool that trains without end.
struct Pool {
    place: TestFolder,
    boss: Process,
    workers: Vec<Process>,
    at: SocketAddr,
    ticket: Ticket,
}

impl Pool {
    async fn at_work(workers: usize) -> Self {
        let place = TestFolder::new();
        let run = place.run_file(&Case::branchy(), 1_000_000_000, "microbatches: 4");
        let (count, metrics) = (workers.to_string(), place.file("metrics.jsonl"));
        let all = [
            run.to_str().unwrap(),
            "--metrics",
            metrics.to_str().unwrap(),
            "--workers",
            &count,
            "--port",
            "0",
        ];
        let mut boss = place.start("bossman", &[&["serve"], &all[..]].concat());
        let line = boss.line("MODEL_TICKET=").await;
        let word = |key: &str| {
            line.split_whitespace().find_map(|w| w.strip_prefix(key)).unwrap().to_string()
        };
        let (port, ticket) = (word("MODEL_PORT="), word("MODEL_TICKET="));
        let workers = (0..workers).map(|_| place.worker(&port, &[])).collect();
        boss.line("step 1/").await;
        let at = (Ipv4Addr::LOCALHOST, port.parse().unwrap()).into();
        let pool = Pool { place, boss, workers, at, ticket: ticket.parse().unwrap() };
        // By then, everything that is kept from step to step exists.
        pool.goes_on(20).await;
        pool
    }

    async fn hostile(&self, process: u32) -> MaliciousWorker {
        MaliciousWorker::join(self.at, &self.ticket, process).await
    }

    /// A hostile worker that is to take part beside this number of others, and their addresses. On
    /// a busy machine, one of these may be evicted for a while as a straggler.
    async fn hostile_beside(
        &self,
        number: usize,
    ) -> (MaliciousWorker, Vec<(WorkerId, SocketAddr)>) {
        for process in 1.. {
            let mut hostile = self.hostile(process).await;
            let others = hostile.peer_addresses().await;
            if others.len() == number {
                return (hostile, others);
            }
            drop(hostile);
            self.goes_on(20).await;
        }
        unreachable!("there are always further processes")
    }

    fn steps(&self) -> usize {
        losses(&self.place.file("metrics.jsonl")).len()
    }

    /// Waits until `steps` more steps are done.
    async fn goes_on(&self, steps: usize) {
        let until = self.steps() + steps;
        let mut looks = tokio::time::interval(Duration::from_millis(10));
        let done = async {
            while self.steps() < until {
                looks.tick().await;
            }
        };
        tokio::time::timeout(TIMEOUT, done)
            .await
            .unwrap_or_else(|_| panic!("{} of {until} steps", self.steps()));
    }

    /// Checks that every loss is that of an undisturbed run.
    async fn ends_as_a_quiet_run(self) {
        self.goes_on(5).await;
        self.boss.signal("INT");
        self.boss.end().await;
        let found = losses(&self.place.file("metrics.jsonl"));
        let quiet = TestFolder::new();
        let run = quiet.run_file(&Case::branchy(), found.len(), "microbatches: 4");
        let metrics = quiet.file("metrics.jsonl");
        let all = [
            run.to_str().unwrap(),
            "--metrics",
            metrics.to_str().unwrap(),
            "--local",
            "1",
            "--threads",
            "1",
            "--port",
            "0",
        ];
        quiet.start("bossman", &[&["serve"], &all[..]].concat()).end().await.expect_success();
        let expected = losses(&metrics);
        let differs = found.iter().zip(&expected).position(|(found, expected)| found != expected);
        assert!(found == expected, "{differs:?} of {} and {}", found.len(), expected.len());
        drop(self.workers);
    }
}

/// Returns step and loss of each line, as they are written.
fn losses(metrics: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(metrics).unwrap_or_default();
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().map(|line| line.split(",\"samples\"").next().unwrap().to_string()).collect()
}

async fn within_limit<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(TIMEOUT, what).await.unwrap()
}

fn done(id: u64) -> ToBoss {
    let (losses, spans) = (vec![(0, f32::NAN)], Vec::new());
    ToBoss::Done { id, losses, sent: 0, received: Micros(0), answered: Micros(u64::MAX), spans }
}

fn state(id: u64) -> TensorHead {
    TensorHead::State { id, name: "stem.weight".into() }
}

/// A tensor without elements.
fn nothing() -> TensorMeta {
    TensorMeta { dtype: layerspec::DType::UInt8, shape: vec![0] }
}

fn value(batch: u64) -> TensorHead {
    TensorHead::Value {
        key: MicrobatchKey { batch, index: 0 },
        value: layerspec::ValueId(0),
        to: StageId(0),
    }
}

/// Checks why a connection was closed. If the message with the reason is lost, QUIC reports that
/// the connection is gone when the next packet arrives.
#[track_caller]
fn assert_closed(reason: &str, expected: &str) {
    assert!(reason.contains(expected) || reason == "reset by peer", "{reason}");
}

/// Dials until it is admitted. On a busy machine, a greeting may take too long.
async fn called(hostile: &MaliciousWorker, at: SocketAddr, me: WorkerId) -> RawConnection {
    loop {
        match hostile.call(at, me).await {
            Ok(line) => return line,
            Err(e) => eprintln!("{me} calls again: {e}"),
        }
    }
}

/// Sends bytes, and returns why the connection ends.
async fn sent_away(mut line: RawConnection, bytes: &[u8]) -> String {
    line.send_bytes(bytes).await;
    within_limit(line.closed()).await
}

/// FRAME-1, FRAME-4, FRAME-8, FRAME-9.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_boss_is_attacked_by_workers_that_joined() {
    let test = async {
        let pool = Pool::at_work(1).await;
        let before = peak(pool.boss.id());

        // Frames that no worker may send.
        for (bytes, expected) in [
            (u32::MAX.to_le_bytes().to_vec(), "a frame head of 4294967295 bytes"),
            (message(ToWorker::Stop), "a frame head that cannot be read"),
            (message(ToWorker::TotalNorm { id: 1, norm: 0.0 }), "a frame head that cannot be read"),
        ] {
            let reason = sent_away(pool.hostile(1).await.boss, &bytes).await;
            assert_closed(&reason, expected);
        }
        let other = pool.hostile(1).await;
        let route = Some(Route { from: WorkerId(0), to: other.worker });
        other.boss.send(route, value(1), &[0; 100]).await;
        let reason = within_limit(other.boss.closed()).await;
        assert_closed(&reason, "in another worker's name");

        // Answers to every request that others may receive, from a worker that received none, or
        // only the request to make itself ready.
        let failure = || Failure::new("out of spite");
        let heads = || vec![("stem.weight".to_string(), nothing())];
        let spite: [&dyn Fn(u64) -> ToBoss; 5] = [
            &|id| ToBoss::StateHeads { id, heads: heads() },
            &|id| ToBoss::Failed { id, failure: failure() },
            &|id| ToBoss::Aborted { id, stepped: true },
            &done,
            &|_| ToBoss::LinkFailed {
                peer: WorkerId(0),
                reason: "out of spite".into(),
                was_up: true,
            },
        ];
        for (process, head) in (2..).zip(spite) {
            // A worker that comes again after it failed is set aside.
            for _ in 0..2 {
                let mut hostile = pool.hostile(process).await;
                let all: Vec<u8> = (1..2000).flat_map(|id| message(head(id))).collect();
                hostile.boss.send_bytes(&all).await;
                pool.goes_on(3).await;
            }
        }

        // Pings whose answers are not read, and tensors that never arrive.
        let mut hostile = pool.hostile(10).await;
        let words: Vec<u8> = (0..2000).flat_map(ping).collect();
        hostile.boss.send_bytes(&words).await;
        let streams = hostile.boss.open_unfinished_streams(&state(1), STREAMS).await;
        pool.goes_on(5).await;
        drop(streams);

        let after = peak(pool.boss.id());
        assert!(after < before + GROWTH, "the boss took {before} MiB, and then {after}");
        pool.ends_as_a_quiet_run().await;
    };
    tokio::time::timeout(LIMIT, test).await.unwrap();
}

/// FRAME-1, FRAME-4, FRAME-8, FRAME-9, JOIN-7.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_worker_is_attacked_by_others_that_joined() {
    let test = async {
        let pool = Pool::at_work(2).await;
        let before: Vec<u64> = pool.workers.iter().map(|worker| peak(worker.id())).collect();
        let (hostile, others) = pool.hostile_beside(2).await;
        let me = hostile.worker;
        for (place, (_, at)) in others.iter().enumerate() {
            let (at, (neighbour, _)) = (*at, others[1 - place]);
            let refused = async |me, run: Option<u64>| match run {
                None => within_limit(hostile.call(at, me)).await.err().unwrap().to_string(),
                Some(run) => {
                    within_limit(hostile.call_of_run(at, me, run)).await.err().unwrap().to_string()
                }
            };
            // From another run, and under the number of a worker that is present.
            let reason = refused(me, Some(7)).await;
            assert!(reason.contains("this worker is in another run"), "{reason}");
            let reason = refused(neighbour, None).await;
            assert!(reason.contains("is connected from another address"), "{reason}");

            // Under its own number, and under an unknown one.
            for me in [me, WorkerId(777)] {
                let call = async || within_limit(called(&hostile, at, me)).await;
                for (bytes, expected) in [
                    (u32::MAX.to_le_bytes().to_vec(), "a frame head of 4294967295 bytes"),
                    (message(ToWorker::Stop), "a frame head that cannot be read"),
                    (message(done(1)), "a frame head that cannot be read"),
                    // Tensors that only the boss takes.
                    (
                        frame(None, state(1), vec![nothing()]),
                        "sent tensors that no worker takes from it",
                    ),
                ] {
                    let reason = sent_away(call().await, &bytes).await;
                    assert_closed(&reason, expected);
                }
                // For a stage that does not exist here, or that takes the value from others.
                let line = call().await;
                line.send(None, value(1), &[0; 100]).await;
                let reason = within_limit(line.closed()).await;
                assert_closed(&reason, "does not take from it");
                // Ahead of all others, without end.
                let line = call().await;
                let ahead = async {
                    let mut batch = 1 << 40;
                    let sum = |batch| TensorHead::Reduced { batch, stage: StageId(0), bucket: 0 };
                    while line.send(None, sum(batch), &[0; 100]).await {
                        batch += 1;
                    }
                };
                within_limit(ahead).await;
                let reason = within_limit(line.closed()).await;
                assert_closed(&reason, "others wait");
                // Pings whose answers are not read, and tensors that never arrive.
                let mut line = call().await;
                let streams = line.open_unfinished_streams(&value(1), STREAMS).await;
                let words: Vec<u8> = (0..2000).flat_map(ping).collect();
                line.send_bytes(&words).await;
                pool.goes_on(5).await;
                drop(streams);
            }
        }
        for (worker, before) in pool.workers.iter().zip(before) {
            let after = peak(worker.id());
            assert!(after < before + GROWTH, "a worker took {before} MiB, and then {after}");
        }
        pool.ends_as_a_quiet_run().await;
    };
    tokio::time::timeout(LIMIT, test).await.unwrap();
}

/// A peer that reads nothing cannot make others keep its data for as long as it stays alive.
/// FRAME-9.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_peer_that_reads_nothing_is_disconnected() {
    let test = async {
        let keys = tempfile::tempdir().unwrap();
        let identity = Identity::load_or_create_in(keys.path()).unwrap();
        let listener = Listener::open(&identity, (Ipv4Addr::LOCALHOST, 0).into(), 1).unwrap();
        let (at, ticket) = (listener.address(), identity.ticket());
        let (boss, hostile) =
            tokio::join!(TestConnection::accept(listener), MaliciousWorker::join(at, ticket, 1));
        let mut boss = boss.unwrap();
        let bytes = bytes::Bytes::from(vec![7; 8 << 20]);
        let meta = TensorMeta { dtype: layerspec::DType::UInt8, shape: vec![bytes.len() as u64] };
        let tensor = Payload { meta, bytes };
        // Send far more than a connection takes unread.
        for batch in 0..100 {
            boss.send(&value(batch), std::slice::from_ref(&tensor)).unwrap();
        }
        let reason = boss.receive().await.unwrap_err();
        assert_eq!(reason, "it takes nothing of what it is sent");
        assert_eq!(within_limit(hostile.boss.closed()).await, reason);
    };
    tokio::time::timeout(LIMIT, test).await.unwrap();
}
