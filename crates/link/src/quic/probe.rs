//! Measures a connection once it is up.

use crate::connection::link_message::LinkMessage;
use crate::connection::shared::ConnectionShared;
use crate::quic::report::{Carrier, PathReport};
use bytes::Bytes;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// The other end answers within this long, or the path counts as not measured.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Round trips; fewer where one takes longer than [`LONG`].
const PINGS: u32 = 8;
const LONG: Duration = Duration::from_millis(5);
/// Bursts grow by four from the first size to the last: on a long path the first ones only open the
/// congestion window.
const FIRST_BURST: u32 = 64 << 10;
const LAST_BURST: u32 = 4 << 20;
/// The same on one machine, where a millisecond is enough.
const LAST_BURST_HERE: u32 = 1 << 20;
/// No further burst after this long.
const ENOUGH: Duration = Duration::from_secs(1);
/// Copied to measure memory.
const COPY: usize = 4 << 20;
static ZEROS: [u8; FIRST_BURST as usize] = [0; FIRST_BURST as usize];

/// Measures; nothing where the other end does not answer or the connection is lost.
pub(crate) async fn measure(
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

async fn round_trip(shared: &ConnectionShared, answers: &mut mpsc::Receiver<LinkMessage>) -> Option<Duration> {
    let mut shortest = Duration::MAX;
    for number in 0..PINGS {
        let start = Instant::now();
        shared.send_message(LinkMessage::Ping(number));
        await_answer(answers, |message| (*message == LinkMessage::Pong(number)).then_some(())).await?;
        shortest = shortest.min(start.elapsed());
        if shortest > LONG && number > 1 {
            break;
        }
    }
    Some(shortest)
}

/// Bytes per second of the fastest burst.
async fn burst_rate(
    shared: &ConnectionShared,
    answers: &mut mpsc::Receiver<LinkMessage>,
    rtt: Duration,
) -> Option<f64> {
    let last = if shared.path.same_machine { LAST_BURST_HERE } else { LAST_BURST };
    let start = Instant::now();
    let (mut size, mut best) = (FIRST_BURST, 0f64);
    loop {
        let mut stream = shared.quic.open_uni().await.ok()?;
        // Tensors go first.
        stream.set_priority(-1).ok()?;
        let message = Bytes::from(LinkMessage::Burst { bytes: size }.encode());
        let zeros = (0..size / FIRST_BURST).map(|_| Bytes::from_static(&ZEROS));
        let mut chunks: Vec<Bytes> = [message].into_iter().chain(zeros).collect();
        let began = Instant::now();
        stream.write_all_chunks(&mut chunks).await.ok()?;
        stream.finish().ok()?;
        await_answer(answers, |message| (*message == LinkMessage::BurstReceived { bytes: size }).then_some(())).await?;
        // The answer's way back is half a round trip, and the first byte's way is the other half.
        let took = began.elapsed().saturating_sub(rtt).max(Duration::from_micros(1));
        best = best.max(f64::from(size) / took.as_secs_f64());
        if size >= last || start.elapsed() > ENOUGH {
            return Some(best);
        }
        size *= 4;
    }
}

/// How fast this machine copies: tensors in shared memory are copied once.
fn copy_rate() -> f64 {
    let from = vec![1u8; COPY];
    let mut to = vec![2u8; COPY];
    let start = Instant::now();
    shm::copy(&mut to, &from);
    std::hint::black_box(&to);
    COPY as f64 / start.elapsed().as_secs_f64().max(1e-9)
}

async fn await_answer<T>(
    answers: &mut mpsc::Receiver<LinkMessage>,
    mut wanted: impl FnMut(&LinkMessage) -> Option<T>,
) -> Option<T> {
    let search = async {
        loop {
            if let Some(found) = wanted(&answers.recv().await?) {
                return Some(found);
            }
        }
    };
    tokio::time::timeout(ANSWER_TIMEOUT, search).await.ok().flatten()
}

/// Takes the other end's burst, and says so.
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
