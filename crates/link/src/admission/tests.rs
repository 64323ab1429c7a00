//! Workers join a boss that has several addresses.

use crate::admission::listener::NextStep;
use crate::quic::close_codes::DONE;
use crate::testing::dial;
use crate::{
    join, punch_hole, query_status, worker_endpoint, Identity, JoinedRun, LinkError, Listener,
    ListenerEvent, StatusText, Ticket, WorkerInfo,
};
use pipeline::recovery::{JoinDesk, KeptPlaces, LastSession};
use std::future::Future;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

struct Boss {
    listener: Listener,
    identity: Identity,
    _keys: TempDir,
}

impl Boss {
    fn with_places(places: usize) -> Self {
        let keys = tempfile::tempdir().unwrap();
        let identity = Identity::load_or_create_in(keys.path()).unwrap();
        let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
        let listener = Listener::open(&identity, any, places).unwrap();
        Boss { listener, identity, _keys: keys }
    }

    fn ipv4(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.listener.address().port()).into()
    }

    /// `None` if this machine has no IPv6.
    fn ipv6(&self) -> Option<SocketAddr> {
        let has_ipv6 = UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).is_ok();
        has_ipv6.then(|| (Ipv6Addr::LOCALHOST, self.listener.address().port()).into())
    }

    /// A worker with these addresses joins. Returns the address by which the boss knows it.
    async fn joined_by(&mut self, addresses: &[SocketAddr]) -> (JoinedRun, SocketAddr) {
        let ticket = self.identity.ticket().clone();
        let endpoint = worker_endpoint(&ticket, addresses).unwrap();
        let joining = join(&endpoint, addresses, &ticket, WorkerInfo::default());
        let (joined, event) = soon(async { tokio::join!(joining, self.listener.next()) }).await;
        match event {
            ListenerEvent::Joined { address, .. } => (joined.unwrap(), address),
            other => panic!("{other:?}"),
        }
    }
}

async fn soon<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), work).await.unwrap()
}

#[tokio::test]
async fn workers_join_over_ipv6_and_ipv4_at_once() {
    let mut boss = Boss::with_places(2);
    let over_ipv4 = boss.ipv4();
    let (joined, seen) = boss.joined_by(&[over_ipv4]).await;
    assert_eq!((joined.boss_address, seen.is_ipv4()), (over_ipv4, true), "{seen}");
    let Some(over_ipv6) = boss.ipv6() else { return };
    let (joined, seen) = boss.joined_by(&[over_ipv6]).await;
    assert_eq!((joined.boss_address, seen.is_ipv6()), (over_ipv6, true), "{seen}");
}

#[tokio::test]
async fn silent_addresses_delay_a_worker_only_a_moment() {
    let mut boss = Boss::with_places(1);
    let silent: Vec<_> =
        (0..7).map(|_| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()).collect();
    let silent = silent.iter().map(|socket| socket.local_addr().unwrap());
    let addresses: Vec<_> = silent.chain([boss.ipv4()]).collect();
    let began = Instant::now();
    let (joined, _) = boss.joined_by(&addresses).await;
    assert_eq!(joined.boss_address, boss.ipv4());
    // Each silent one fails after 3 seconds. One after the other they would take 21.
    assert!(began.elapsed() < Duration::from_secs(12), "{:?}", began.elapsed());
}

#[tokio::test]
async fn an_address_that_cannot_be_reached_is_passed_over() {
    let mut boss = Boss::with_places(1);
    // Port 0 is no address to send to.
    let addresses = [(Ipv4Addr::LOCALHOST, 0).into(), boss.ipv4()];
    let (joined, _) = boss.joined_by(&addresses).await;
    assert_eq!(joined.boss_address, boss.ipv4());
}

#[tokio::test]
async fn the_boss_says_nothing_of_a_worker_that_keeps_another_connection() {
    let mut boss = Boss::with_places(1);
    let (address, ticket) = (boss.ipv4(), boss.identity.ticket().clone());
    let endpoint = worker_endpoint(&ticket, &[address]).unwrap();
    let unused = soon(dial(&endpoint, address, &ticket)).await.unwrap();
    unused.close(DONE, b"another address answered first");
    // The first event is that the worker joined.
    let (joined, _) = boss.joined_by(&[address]).await;
    assert_eq!(joined.worker.0, 0);
}

fn process(process: u32) -> WorkerInfo {
    WorkerInfo { process, ..WorkerInfo::default() }
}

/// A desk of three places after a session of the workers 1 and 2. 7 is unfit.
fn desk() -> JoinDesk<WorkerInfo> {
    let last = LastSession {
        workers: 2,
        lost: 0,
        newcomers: Vec::new(),
        kept: KeptPlaces::Remaining,
        known: vec![process(1), process(2)],
        unfit: vec![process(7)],
    };
    JoinDesk::again(3, Vec::new(), last, |_| true, Box::new(|_, _| true))
}

/// JOIN-6.
#[tokio::test]
async fn workers_get_the_places_that_the_desk_gives() {
    let Boss { listener, identity, _keys } = Boss::with_places(3);
    let mut listener = listener.desk(desk());
    let boss: [SocketAddr; 1] = [(Ipv4Addr::LOCALHOST, listener.address().port()).into()];
    let endpoint = worker_endpoint(identity.ticket(), &boss).unwrap();
    let mut members = Vec::new();
    // A stranger may have the third place, and a second one none.
    let asks = [
        (7, Some("does not fit")),
        (10, None),
        (11, Some("are kept")),
        (1, None),
        (12, Some("are kept")),
        (2, None),
        (12, Some("all its 3 workers")),
    ];
    for (number, refusal) in asks {
        let joining = join(&endpoint, &boss, identity.ticket(), process(number));
        // A refusal is no event.
        let listening = async {
            let mut joining = std::pin::pin!(joining);
            loop {
                tokio::select! {
                    joined = &mut joining => return joined,
                    _ = listener.next() => {}
                }
            }
        };
        match (soon(listening).await, refusal) {
            (Ok(joined), None) => members.push(joined),
            (Err(LinkError::Refused { reason, retry: true }), Some(refusal)) => {
                assert!(reason.contains(refusal), "{reason}");
            }
            (other, _) => panic!("{number}: {:?}", other.map(|joined| joined.worker)),
        }
    }
    assert_eq!(members.iter().map(|joined| joined.worker.0).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!((listener.missing(), listener.poll()), (0, NextStep::Begin(3)));
}

/// The boss has not heard yet that a worker left, so its place is taken.
#[tokio::test]
async fn a_run_does_not_begin_on_a_closed_connection() {
    let mut boss = Boss::with_places(1);
    let addresses = [boss.ipv4()];
    let ticket = boss.identity.ticket().clone();
    // Without it, no packet says that the connection is closed.
    let endpoint = worker_endpoint(&ticket, &addresses).unwrap();
    let joining = join(&endpoint, &addresses, &ticket, WorkerInfo::default());
    let (joined, _) = soon(async { tokio::join!(joining, boss.listener.next()) }).await;
    assert_eq!(boss.listener.poll(), NextStep::Begin(1));
    joined.unwrap().boss.close(DONE, "it ends");
    let mut looks = tokio::time::interval(Duration::from_millis(10));
    soon(async {
        while boss.listener.poll() == NextStep::Begin(1) {
            looks.tick().await;
        }
    })
    .await;
    assert_eq!((boss.listener.poll(), boss.listener.missing()), (NextStep::Wait(None), 0));
    let event = soon(boss.listener.next()).await;
    assert!(matches!(event, ListenerEvent::Left { .. }), "{event:?}");
    let (_again, _) = boss.joined_by(&addresses).await;
    assert_eq!(boss.listener.poll(), NextStep::Begin(1));
}

/// A question takes no place, and is no event.
#[tokio::test]
async fn a_boss_that_waits_tells_its_status_as_of_now() {
    let Boss { listener, identity, _keys } = Boss::with_places(1);
    let asked = AtomicU32::new(0);
    let text = move || format!("asked {} times", asked.fetch_add(1, Ordering::Relaxed));
    let mut listener = listener.status(StatusText::new(text));
    let boss: [SocketAddr; 1] = [(Ipv4Addr::LOCALHOST, listener.address().port()).into()];
    let endpoint = worker_endpoint(identity.ticket(), &boss).unwrap();
    for times in 0..2 {
        let told = soon(async {
            tokio::select! {
                told = query_status(&endpoint, &boss, identity.ticket()) => told.unwrap(),
                event = listener.next() => panic!("{event:?}"),
            }
        });
        assert_eq!(told.await, format!("asked {times} times"));
    }
    assert_eq!(listener.missing(), 1);
}

/// A ticket with another secret, and one that names another boss. JOIN-2.
#[tokio::test]
async fn each_end_refuses_the_other_without_its_ticket() {
    let boss = Boss::with_places(1);
    let (address, ticket) = (boss.ipv4(), boss.identity.ticket());
    let other_boss = Ticket { boss: [0; 32], ..ticket.clone() };
    let other_secret = Ticket { secret: [0; 32], ..ticket.clone() };
    for (ticket, names_another_boss) in [(other_boss, true), (other_secret, false)] {
        let addresses = [address];
        let endpoint = worker_endpoint(&ticket, &addresses).unwrap();
        let joining = join(&endpoint, &addresses, &ticket, WorkerInfo::default());
        match soon(joining).await.map(|joined| joined.worker) {
            Err(LinkError::WrongBoss { .. }) if names_another_boss => {}
            Err(LinkError::TicketRefused { .. }) if !names_another_boss => {}
            other => panic!("{other:?}"),
        }
    }
}

/// A worker whose machine vanished says no farewell. Until it counts as lost, its place is taken.
#[tokio::test]
async fn no_run_begins_with_a_worker_that_is_silent() {
    let mut boss = Boss::with_places(1);
    let (address, ticket) = (boss.ipv4(), boss.identity.ticket().clone());
    let (speaks, stand_still) = std::sync::mpsc::channel::<()>();
    let worker = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let endpoint = worker_endpoint(&ticket, &[address]).unwrap();
            let joined = join(&endpoint, &[address], &ticket, WorkerInfo::default()).await.unwrap();
            // This thread carries the connection, too.
            stand_still.recv().ok();
            endpoint.wait_idle().await;
            drop(joined);
        });
    });
    let joined = soon(boss.listener.next()).await;
    assert!(matches!(joined, ListenerEvent::Joined { .. }), "{joined:?}");
    let mut looks = tokio::time::interval(Duration::from_millis(10));
    let waits = async {
        while matches!(boss.listener.poll(), NextStep::Begin(1)) {
            looks.tick().await;
        }
        speaks.send(()).unwrap();
        while matches!(boss.listener.poll(), NextStep::Wait(Some(_))) {
            looks.tick().await;
        }
        boss.listener.poll()
    };
    let step = soon(waits).await;
    assert!(matches!(step, NextStep::Begin(1)), "{step:?}");
    drop(boss);
    worker.join().unwrap();
}

/// Firewalls let pass what looks like an answer.
#[tokio::test]
async fn a_hole_is_punched_from_the_port_that_others_dial() {
    let boss = Boss::with_places(1);
    let there = tokio::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let ticket = boss.identity.ticket();
    let endpoint = worker_endpoint(ticket, &[boss.ipv4()]).unwrap();
    punch_hole(&endpoint, ticket, there.local_addr().unwrap()).unwrap();
    let (_, from) = soon(there.recv_from(&mut [0; 2000])).await.unwrap();
    assert_eq!(from.port(), endpoint.local_addr().unwrap().port());
}
