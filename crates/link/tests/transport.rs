//! Tests that tensors arrive as they were sent, over every carrier and every kind of path.

#![allow(clippy::unwrap_used, clippy::panic, reason = "everything here is part of a test")]

mod proxy;

use layerspec::{DType, ValueId};
use link::testing::TestConnection;
use link::{Carrier, Identity, Listener, Payload, Transport, WorkerInfo};
use pipeline::ids::{MicrobatchKey, StageId};
use pipeline::message::{TensorHead, ToBoss, ToWorker};
use pipeline::TensorMeta;
use proxy::Proxy;
use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

/// A boss and a worker, and perhaps a proxy between them.
struct Pair {
    boss: TestConnection<ToBoss>,
    worker: TestConnection<ToWorker>,
    _keys: tempfile::TempDir,
    proxy: Option<Proxy>,
}

impl Pair {
    async fn new(transport: Transport, largest_packet: Option<usize>) -> Self {
        let keys = tempfile::tempdir().unwrap();
        let identity = Identity::load_or_create_in(keys.path()).unwrap();
        let listener =
            Listener::open(&identity, SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), 1).unwrap();
        let proxy = largest_packet.map(|largest| Proxy::start(listener.address(), largest));
        let address = proxy.as_ref().map_or(listener.address(), Proxy::address);
        let ticket = identity.ticket().clone();
        let endpoint = link::worker_endpoint(&ticket, &[address]).unwrap();
        let info = WorkerInfo { direct: false, ..WorkerInfo::default() };
        let (boss, worker) = tokio::join!(
            TestConnection::accept(listener),
            TestConnection::dial(&endpoint, address, &ticket, info, transport)
        );
        Pair { boss: boss.unwrap(), worker: worker.unwrap(), _keys: keys, proxy }
    }
}

async fn soon<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), work).await.unwrap()
}

fn head(number: u32) -> TensorHead {
    let key = MicrobatchKey { batch: 0, index: number };
    TensorHead::Gradient { key, value: ValueId(0), from: None, to: StageId(0) }
}

fn tensor(size: usize, seed: usize) -> Payload {
    let bytes: Vec<u8> = (0..size).map(|i| (i * 31 + (i >> 11) + seed) as u8).collect();
    Payload {
        meta: TensorMeta { dtype: DType::UInt8, shape: vec![size as u64] },
        bytes: bytes.into(),
    }
}

/// Sends frame after frame and waits for each.
async fn exchange<A: Send + 'static, B: Send + 'static>(
    from: &TestConnection<A>,
    to: &mut TestConnection<B>,
    frames: u32,
    size: usize,
) {
    let sent = tensor(size, 3);
    for number in 0..frames {
        from.send(&head(number), std::slice::from_ref(&sent)).unwrap();
        let (_, received) = to.receive().await.unwrap();
        assert!(received[0].bytes == sent.bytes, "frame {number}");
    }
}

/// Receives all that was sent, in any order.
async fn assert_arrives<M: Send + 'static>(wire: &mut TestConnection<M>, sent: &[Vec<Payload>]) {
    let mut arrived = vec![false; sent.len()];
    for _ in 0..sent.len() {
        let (TensorHead::Gradient { key, .. }, tensors) = wire.receive().await.unwrap() else {
            unreachable!()
        };
        let number = key.index as usize;
        assert!(!std::mem::replace(&mut arrived[number], true), "twice");
        assert_eq!(tensors.len(), sent[number].len());
        for (got, gave) in tensors.iter().zip(&sent[number]) {
            assert!(got.meta == gave.meta && got.bytes == gave.bytes, "frame {number}");
            assert!(got.bytes.is_empty() || (got.bytes.as_ptr() as usize).is_multiple_of(64));
        }
    }
}

/// FRAME-7.
#[tokio::test]
async fn both_carriers_bring_the_same_bytes() {
    soon(async {
        for (transport, carrier) in
            [(Transport::Quic, Carrier::Quic), (Transport::Auto, Carrier::SharedMemory)]
        {
            let mut pair = Pair::new(transport, None).await;
            let expected = if cfg!(target_os = "linux") { carrier } else { Carrier::Quic };
            let report = pair.worker.report().unwrap();
            assert_eq!(report.carrier, expected);
            assert!(
                report.rtt > 0 && report.rtt < 1_000_000 && report.bytes_per_second > 1_000_000,
                "{report:?}"
            );
            let sizes = [0, 1, 63, 64, 8192, 8193, 100_000, 5 << 20];
            let sent: Vec<Vec<Payload>> = (0..sizes.len())
                .map(|n| sizes[..=n].iter().rev().take(3).map(|size| tensor(*size, n)).collect())
                .collect();
            for (number, tensors) in sent.iter().enumerate() {
                pair.worker.send(&head(number as u32), tensors).unwrap();
                pair.boss.send(&head(number as u32), tensors).unwrap();
            }
            assert_arrives(&mut pair.worker, &sent).await;
            assert_arrives(&mut pair.boss, &sent).await;
        }
    })
    .await;
}

/// FRAME-6.
#[tokio::test]
async fn small_frames_arrive_in_the_order_given() {
    soon(async {
        for transport in [Transport::Quic, Transport::Auto] {
            let mut pair = Pair::new(transport, None).await;
            let sent = tensor(8 << 10, 7);
            // More than a stream takes unread, so that some wait.
            for number in 0..6_000 {
                pair.worker.send(&head(number), std::slice::from_ref(&sent)).unwrap();
            }
            for number in 0..6_000 {
                let (found, tensors) = pair.boss.receive().await.unwrap();
                assert_eq!(found, head(number));
                assert!(tensors[0].bytes == sent.bytes, "frame {number}");
            }
        }
    })
    .await;
}

#[tokio::test]
async fn more_than_fits_into_memory_goes_over_the_network() {
    soon(async {
        let mut pair = Pair::new(Transport::Auto, None).await;
        let sent = tensor(16 << 20, 1);
        let mut kept = Vec::new();
        // More than the limit of half a gibibyte. The receiver keeps all of it.
        for number in 0..34 {
            pair.boss.send(&head(number), std::slice::from_ref(&sent)).unwrap();
            kept.push(pair.worker.receive().await.unwrap().1);
        }
        assert!(kept.iter().all(|tensors| tensors[0].bytes == sent.bytes));
    })
    .await;
}

/// Makes a connection whose packets have grown to this size in both directions. On a busy machine
/// that loses datagrams, quinn ends its search for ten minutes. Another connection then searches
/// again.
async fn grown(largest: Option<usize>, at_least: u16) -> Pair {
    for _ in 0..5 {
        let mut pair = Pair::new(Transport::Quic, largest).await;
        // The search continues while frames travel in both directions.
        for _ in 0..100 {
            exchange(&pair.worker, &mut pair.boss, 1, 100_000).await;
            exchange(&pair.boss, &mut pair.worker, 1, 100_000).await;
            if pair.worker.packets().0 >= at_least && pair.boss.packets().0 >= at_least {
                return pair;
            }
        }
    }
    panic!("packets do not grow to {at_least} bytes on any of five connections");
}

#[tokio::test]
async fn packets_grow_to_what_the_path_carries() {
    soon(async {
        for (largest, at_least, at_most) in
            [(None, 60_000, 65_000), (Some(8_972), 8_000, 8_972), (Some(1_472), 1_300, 1_472)]
        {
            let mut pair = grown(largest, at_least).await;
            exchange(&pair.worker, &mut pair.boss, 4, 2 << 20).await;
            let packets = (pair.worker.packets().0, pair.boss.packets().0);
            assert!(packets.0 <= at_most && packets.1 <= at_most, "{packets:?}");
            assert_eq!(pair.proxy.is_some(), largest.is_some());
        }
    })
    .await;
}

#[tokio::test]
async fn a_path_that_stops_carrying_large_packets_is_noticed() {
    soon(async {
        let mut pair = grown(Some(usize::MAX), 60_000).await;
        pair.proxy.as_ref().unwrap().allow(1_472);
        exchange(&pair.worker, &mut pair.boss, 20, 1 << 20).await;
        assert!(pair.worker.packets().0 <= 1_472, "{:?}", pair.worker.packets());
        exchange(&pair.boss, &mut pair.worker, 20, 1 << 20).await;
    })
    .await;
}

#[tokio::test]
async fn shared_memory_is_used_again() {
    soon(async {
        let mut pair = Pair::new(Transport::Auto, None).await;
        if pair.worker.report().unwrap().carrier == Carrier::SharedMemory {
            let sent = tensor(1 << 20, 5);
            let mut places = std::collections::BTreeSet::new();
            for number in 0..50 {
                pair.worker.send(&head(number), std::slice::from_ref(&sent)).unwrap();
                let (_, received) = pair.boss.receive().await.unwrap();
                places.insert(received[0].bytes.as_ptr() as usize);
            }
            assert_eq!(places.len(), 1);
        }
    })
    .await;
}

/// A worker that broke the protocol calls again. If its new connection had the number of the old
/// one, all that arrives on it would be ignored.
#[tokio::test]
async fn no_connection_has_the_number_of_one_that_has_ended() {
    let mut numbers = std::collections::BTreeSet::new();
    for connections in 1..=10 {
        let mut pair = soon(Pair::new(Transport::Quic, None)).await;
        numbers.extend([pair.boss.id(), pair.worker.id()]);
        assert_eq!(numbers.len(), 2 * connections, "{numbers:?}");
        pair.worker.close();
        soon(pair.boss.receive()).await.unwrap_err();
    }
}
