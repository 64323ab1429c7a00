//! Measures the round trip and the speed of a new connection.

use crate::connection::link_message::LinkMessage;
use crate::connection::shared::ConnectionShared;
use crate::quic::report::{Carrier, PathReport};
use bytes::Bytes;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, Mutex};

/// The time for each answer of the other end. After it, the path counts as not measured.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The number of round trips. A path slower than [`LONG_RTT`] gets fewer.
const PINGS: u32 = 8;
const LONG_RTT: Duration = Duration::from_millis(5);
/// Each burst is four times as large as the one before. On a long path the first ones only open the
/// congestion window.
const FIRST_BURST: u32 = 64 << 10;
const LAST_BURST: u32 = 4 << 20;
/// The last burst within one machine. A millisecond is enough there.
const LAST_BURST_LOCAL: u32 = 1 << 20;
/// No burst begins after this long.
const MAX_DURATION: Duration = Duration::from_secs(1);
/// A burst that takes this long, and several round trips, is the last: it is exact enough, and the
/// next one takes four times as long.
const LONG_BURST: Duration = Duration::from_millis(200);
const LONG_BURST_TRIPS: u32 = 4;
/// A path on which nothing else fits between the tensors is not measured, so that others are.
const TIME_LIMIT: Duration = Duration::from_secs(10);
/// Bytes that are copied to measure the speed of memory.
const COPY_BYTES: usize = 4 << 20;
static ZEROS: [u8; FIRST_BURST as usize] = [0; FIRST_BURST as usize];
/// One path is measured at a time. Together they would share this machine's line, and each would
/// seem to be a part of it.
static TURN: Mutex<()> = Mutex::const_new(());

/// Measures the path. Returns `None` if the other end does not answer or the connection is lost.
pub(crate) async fn measure(
    shared: &ConnectionShared,
    answers: &mut mpsc::Receiver<LinkMessage>,
) -> Option<PathReport> {
    let _turn = TURN.lock().await;
    tokio::select! {
        report = measure_now(shared, answers) => report,
        // The next path does not wait for answers that never come.
        _ = shared.quic.closed() => None,
        () = tokio::time::sleep(TIME_LIMIT) => None,
    }
}

async fn measure_now(
    shared: &ConnectionShared,
    answers: &mut mpsc::Receiver<LinkMessage>,
) -> Option<PathReport> {
    let rtt = round_trip(shared, answers).await?;
    let (carrier, rate) = if shared.memory.is_shared() {
        (Carrier::SharedMemory, copy_rate())
    } else {
        (Carrier::Quic, burst_rate(shared, answers, rtt).await?)
    };
    let rtt = u64::try_from(rtt.as_micros()).unwrap_or(u64::MAX);
    let packet_bytes = shared.quic.stats().path.current_mtu;
    let same_machine = shared.path.same_machine;
    Some(PathReport { rtt, bytes_per_second: rate as u64, packet_bytes, carrier, same_machine })
}

/// Measures the shortest of a few round trips.
async fn round_trip(
    shared: &ConnectionShared,
    answers: &mut mpsc::Receiver<LinkMessage>,
) -> Option<Duration> {
    let mut shortest = Duration::MAX;
    for number in 0..PINGS {
        let start = Instant::now();
        shared.send_message(LinkMessage::Ping(number));
        await_answer(answers, LinkMessage::Pong(number)).await?;
        shortest = shortest.min(start.elapsed());
        if shortest > LONG_RTT && number > 1 {
            break;
        }
    }
    Some(shortest)
}

/// Measures the fastest burst, in bytes per second.
async fn burst_rate(
    shared: &ConnectionShared,
    answers: &mut mpsc::Receiver<LinkMessage>,
    rtt: Duration,
) -> Option<f64> {
    let last = if shared.path.same_machine { LAST_BURST_LOCAL } else { LAST_BURST };
    let start = Instant::now();
    let (mut size, mut best) = (FIRST_BURST, 0f64);
    loop {
        let mut stream = shared.quic.open_uni().await.ok()?;
        // Tensors have precedence.
        stream.set_priority(-1).ok()?;
        let message = Bytes::from(LinkMessage::Burst { bytes: size }.encode());
        let zeros = (0..size / FIRST_BURST).map(|_| Bytes::from_static(&ZEROS));
        let mut chunks: Vec<Bytes> = [message].into_iter().chain(zeros).collect();
        let began = Instant::now();
        stream.write_all_chunks(&mut chunks).await.ok()?;
        stream.finish().ok()?;
        await_answer(answers, LinkMessage::BurstReceived { bytes: size }).await?;
        // The first byte and the answer each take half a round trip.
        let took = began.elapsed().saturating_sub(rtt).max(Duration::from_micros(1));
        best = best.max(f64::from(size) / took.as_secs_f64());
        if size >= last || is_exact(took, rtt) || start.elapsed() > MAX_DURATION {
            return Some(best);
        }
        size *= 4;
    }
}

/// Whether a burst that took this long beside a round trip tells the speed. A short one tells how
/// the congestion window opens, which takes a few round trips.
fn is_exact(took: Duration, rtt: Duration) -> bool {
    took > LONG_BURST.max(rtt * LONG_BURST_TRIPS)
}

/// Measures copying within memory, in bytes per second: a tensor in shared memory is copied once.
fn copy_rate() -> f64 {
    let from = vec![1u8; COPY_BYTES];
    let mut to = vec![2u8; COPY_BYTES];
    let start = Instant::now();
    shm::copy(&mut to, &from);
    std::hint::black_box(&to);
    COPY_BYTES as f64 / start.elapsed().as_secs_f64().max(1e-9)
}

/// Waits for this answer. Returns `None` if it does not arrive.
async fn await_answer(
    answers: &mut mpsc::Receiver<LinkMessage>,
    wanted: LinkMessage,
) -> Option<()> {
    let search = async {
        while answers.recv().await? != wanted {}
        Some(())
    };
    tokio::time::timeout(ANSWER_TIMEOUT, search).await.ok().flatten()
}

/// Reads the other end's burst, and reports it.
///
/// # Errors
/// The burst is larger than any of ours, or the connection is lost.
pub(crate) async fn receive_burst(
    shared: &ConnectionShared,
    stream: &mut quinn::RecvStream,
    bytes: u32,
) -> Result<(), String> {
    if bytes > LAST_BURST {
        return Err(format!("a burst of {bytes} bytes"));
    }
    let mut left = bytes as usize;
    while left > 0 {
        let chunk = stream.read_chunk(left, true).await.map_err(|e| e.to_string())?;
        left -= chunk.ok_or("a burst that ends early")?.bytes.len();
    }
    shared.send_answer(LinkMessage::BurstReceived { bytes });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::event::ConnectionEvent;
    use crate::{join, worker_endpoint, Identity, Listener, Transport, WorkerInfo};
    use std::net::Ipv4Addr;

    #[test]
    fn a_burst_that_only_opens_the_window_is_not_the_last() {
        for (took, rtt, exact) in [
            (100, 5, false),
            (250, 5, true),
            (300, 300, false),
            (900, 300, false),
            (1300, 300, true),
        ] {
            let [took, rtt] = [took, rtt].map(Duration::from_millis);
            assert_eq!(is_exact(took, rtt), exact, "{took:?} and {rtt:?}");
        }
    }

    #[tokio::test]
    async fn a_path_is_measured_when_no_other_one_is() {
        let keys = tempfile::tempdir().unwrap();
        let identity = Identity::load_or_create_in(keys.path()).unwrap();
        let mut boss = Listener::open(&identity, (Ipv4Addr::LOCALHOST, 0).into(), 1).unwrap();
        let addresses = [boss.address()];
        let endpoint = worker_endpoint(identity.ticket(), &addresses).unwrap();
        let joining = join(&endpoint, &addresses, identity.ticket(), WorkerInfo::default());
        let (joined, _) = tokio::join!(joining, boss.next());
        let mut joined = joined.unwrap();

        let turn_of_another = TURN.lock().await;
        joined.boss.negotiate(Transport::Quic);
        let soon = tokio::time::timeout(Duration::from_millis(50), joined.events.recv()).await;
        assert!(soon.is_err(), "{soon:?}");
        drop(turn_of_another);
        let event = tokio::time::timeout(Duration::from_secs(60), joined.events.recv()).await;
        let Ok(Some(ConnectionEvent::Measured { report, .. })) = event else { panic!("{event:?}") };
        assert!(report.is_some());
    }
}
