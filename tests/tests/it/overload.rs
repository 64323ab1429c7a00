//! Tests crowds of callers: thousands that have no ticket, and hundreds that have one and leave at
//! once. Training continues, and a worker that wants to work is admitted.

use link::{Ticket, WorkerInfo};
use quinn::Endpoint;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;
use std::time::Duration;
use tests::programs::{Process, TestFolder, TIMEOUT};
use tests::strangers::dial_without_ticket;
use tests::Case;

const LIMIT: Duration = Duration::from_secs(300);
const STRANGERS: u32 = 10_000;
const JOINERS: u32 = 500;
/// The number of callers of a crowd at a time.
const AT_A_TIME: u32 = 40;

/// Starts a pool that trains without end, with one worker.
async fn pool(place: &TestFolder) -> (Process, Process, SocketAddr, Ticket) {
    let run = place.run_file(&Case::convnet(), 1_000_000_000, "microbatches: 4");
    let mut boss =
        place.start("bossman", &["serve", run.to_str().unwrap(), "--workers", "1", "--port", "0"]);
    let line = boss.line("MODEL_TICKET=").await;
    let word =
        |key: &str| line.split_whitespace().find_map(|w| w.strip_prefix(key)).unwrap().to_string();
    let (port, ticket) = (word("MODEL_PORT="), word("MODEL_TICKET="));
    let worker = place.worker(&port, &[]);
    boss.line("step 1/").await;
    (boss, worker, (Ipv4Addr::LOCALHOST, port.parse().unwrap()).into(), ticket.parse().unwrap())
}

/// Makes `size` calls, `AT_A_TIME` of them at a time. A call returns true if it went wrong. Returns
/// the number of such calls.
async fn crowd<F>(size: u32, call: impl Fn() -> F + Send + Sync + 'static) -> u32
where
    F: std::future::Future<Output = bool> + Send + 'static,
{
    let (next, wrong, call) =
        (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)), Arc::new(call));
    let callers = (0..AT_A_TIME).map(|_| {
        let (next, wrong, call) = (next.clone(), wrong.clone(), call.clone());
        tokio::spawn(async move {
            while next.fetch_add(1, Ordering::Relaxed) < size {
                wrong.fetch_add(u32::from(call().await), Ordering::Relaxed);
            }
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await.unwrap();
    }
    wrong.load(Ordering::Relaxed)
}

/// Checks that training continues, and that another worker is admitted and takes part.
async fn still_well(place: &TestFolder, mut boss: Process, worker: Process, at: SocketAddr) {
    let second = place.worker(&at.port().to_string(), &[]);
    boss.line(": 2 workers").await;
    boss.signal("INT");
    boss.end().await;
    drop((worker, second));
}

/// JOIN-2, JOIN-5.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn ten_thousand_callers_without_a_ticket_are_turned_away_while_training_goes_on() {
    let test = async {
        let place = TestFolder::new();
        let (boss, worker, at, _) = pool(&place).await;
        let endpoint = Endpoint::client((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let away = crowd(STRANGERS, move || {
            let endpoint = endpoint.clone();
            async move {
                // On a busy machine, some calls may time out.
                !dial_without_ticket(&endpoint, at).await.contains("certificate")
            }
        });
        let others = away.await;
        assert!(others < STRANGERS / 10, "{others} of {STRANGERS} were not told why");
        still_well(&place, boss, worker, at).await;
    };
    tokio::time::timeout(LIMIT, test).await.unwrap();
}

/// JOIN-5.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn joiners_that_leave_at_once_by_the_hundred_do_not_end_a_pool() {
    let test = async {
        let place = TestFolder::new();
        let (boss, worker, at, ticket) = pool(&place).await;
        let refused = crowd(JOINERS, move || {
            let ticket = ticket.clone();
            async move {
                let info = WorkerInfo { direct: false, ..WorkerInfo::default() };
                let endpoint = link::worker_endpoint(&ticket, &[at]).unwrap();
                let joined =
                    tokio::time::timeout(TIMEOUT, link::join(&endpoint, &[at], &ticket, info))
                        .await
                        .unwrap();
                endpoint.close(0u32.into(), b"changed my mind");
                joined.is_err()
            }
        });
        let refused = refused.await;
        assert!(refused < JOINERS / 10, "{refused} of {JOINERS} were not let in");
        still_well(&place, boss, worker, at).await;
    };
    tokio::time::timeout(LIMIT, test).await.unwrap();
}
