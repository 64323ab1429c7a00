//! A connection at work: one ordered stream for control and whatever is small, a stream of its own for every
//! other tensor frame, so that a large tensor holds nothing up. Between processes of one machine large
//! tensors go through shared memory and only their heads over the stream.
//!
//! ```text
//! Connection -> lane (streams out) -> outgoing (a frame as bytes)
//!      +------> ends -> link_message (ping, shared memory)
//!      +------> wire (bytes in as frames), taking (who is silent)
//! ```

pub(crate) mod link_message;
pub(crate) mod ordered_stream;
pub mod outgoing;
pub(crate) mod progress;
pub(crate) mod shared;
pub(crate) mod wire;

use crate::connection::link_message::LinkMessage;
use crate::connection::ordered_stream::OrderedStream;
use crate::connection::outgoing::Channel;
use crate::connection::progress::{SendProgress, StallDetector};
use crate::connection::shared::{ConnectionShared, MAX_PENDING_ANSWERS};
use crate::connection::wire::Incoming;
use crate::memory::payload::Payload;
use crate::memory::pool::BufferPool;
use crate::memory::shared::{SharedMemory, Transport};
use crate::quic::close_codes::{DONE, EVICTED, PROTOCOL_VIOLATION};
use crate::quic::endpoint::KEEP_ALIVE;
use crate::quic::network_path::NetworkPath;
use crate::quic::probe;
use crate::quic::report::PathReport;
use bytes::Bytes;
use parking_lot::Mutex;
use pipeline::effect::Peer;
use pipeline::frame::Envelope;
use quinn::{ConnectionError, RecvStream, SendStream, VarInt};
use shm::FileAddress;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

/// Tensors up to this size go behind their head on the ordered stream: a stream of their own, or shared
/// memory, would cost more than it gains.
const INLINE_LIMIT: usize = 8 << 10;
/// Shared memory is agreed upon within this long or not used.
const MEMORY_TIMEOUT: Duration = Duration::from_secs(2);

/// How often is looked whether something has come: twice for each time that the other end says that it is there.
const CHECK_INTERVAL: Duration = Duration::from_millis(KEEP_ALIVE.as_millis() as u64 / 2);
/// The number of checks without a sign of life after which a connection counts as dead.
pub struct SilenceLimit(u32);

impl SilenceLimit {
    /// Of boss and worker: 2.75 to 3 seconds after the last message.
    pub const WITH_BOSS: SilenceLimit = SilenceLimit(11);
    /// Longer, so that the boss is the first to miss a worker here, too.
    pub const BETWEEN_WORKERS: SilenceLimit = SilenceLimit(24);
}

/// Why a connection ended on which nothing came, or nothing went.
const SILENT: &str = "silent for 3 seconds";
const STALLED: &str = "it takes nothing of what it is sent";

/// An event that a connection reports to its driver.
#[derive(Debug)]
pub enum ConnectionEvent {
    /// A frame arrived.
    Frame {
        /// The sender.
        from: Peer,
        /// Its head, and what its tensors are.
        envelope: Envelope,
        /// The tensors' bytes, in the order of the envelope.
        payloads: Vec<Payload>,
    },
    /// The path was measured. Comes once, at the end that dialled.
    Measured {
        /// The other end.
        from: Peer,
        /// How fast the path is. `None` if it could not be measured.
        report: Option<PathReport>,
    },
    /// The connection ended.
    Closed {
        /// The other end.
        from: Peer,
        /// Its [number](Connection::id), which tells it from a connection that took its place.
        connection: usize,
        /// Why it ended, as far as known.
        reason: String,
        /// The other end wants no other connection in its place.
        permanent: bool,
    },
}

/// A frame with its tensors.
type LargeFrame = (Vec<u8>, Vec<Bytes>);

/// A connection that is up. Dropping it does not close it; its tasks end with the connection.
pub struct Connection {
    shared: Arc<ConnectionShared>,
    data: mpsc::UnboundedSender<LargeFrame>,
    background: mpsc::UnboundedSender<LargeFrame>,
    events: mpsc::Sender<ConnectionEvent>,
}

impl Connection {
    /// Starts reading and writing. `control` is the stream on which the ends greeted each other.
    pub fn start(
        peer: Peer,
        quic: quinn::Connection,
        (send, recv): (SendStream, RecvStream),
        events: &mpsc::Sender<ConnectionEvent>,
        transport: Transport,
        patience: SilenceLimit,
    ) -> Self {
        // Small frames precede large tensors when both wait for the network.
        send.set_priority(1).ok();
        let progress = Arc::new(SendProgress::default());
        let shared = Arc::new(ConnectionShared {
            peer,
            path: NetworkPath::to(quic.remote_address()),
            quic,
            memory: SharedMemory::default(),
            transport,
            ordered: OrderedStream::new(send, progress.clone()),
            progress,
            pool: BufferPool::global(),
            answers: Mutex::default(),
            report: Mutex::default(),
            ended: OnceLock::new(),
        });
        let (data, large) = mpsc::unbounded_channel();
        tokio::spawn(write_large(shared.clone(), large));
        let (background, large) = mpsc::unbounded_channel();
        tokio::spawn(write_background(shared.clone(), large));
        tokio::spawn(read_streams(shared.clone(), recv, events.clone()));
        tokio::spawn(watch_liveness(shared.clone(), patience));
        Connection { shared, data, background, events: events.clone() }
    }

    /// Agrees with the other end on shared memory, if wanted and possible, and measures the path; for the end
    /// that dialled. Frames may be sent meanwhile.
    pub fn negotiate(&self, transport: Transport) {
        let (sender, answers) = mpsc::channel(MAX_PENDING_ANSWERS);
        *self.shared.answers.lock() = Some(sender);
        tokio::spawn(negotiate(self.shared.clone(), transport, answers, self.events.clone()));
    }

    /// How fast the path is, once measured, at the end that dialled.
    pub fn report(&self) -> Option<PathReport> {
        *self.shared.report.lock()
    }

    /// Sends a frame. Small ones, and all of control, arrive in the order given.
    pub fn send(&self, way: Channel, head: Vec<u8>, tensors: Vec<Bytes>) {
        let large = tensors.iter().map(Bytes::len).sum::<usize>() > INLINE_LIMIT;
        // Copying is left to a task: the caller has a compute thread to feed. A task that has ended
        // means a lost connection, which the reader reports.
        match way {
            Channel::Data if large => drop(self.data.send((head, tensors))),
            Channel::Background if large => drop(self.background.send((head, tensors))),
            _ => self.shared.ordered.send(wire::whole_frame(head, tensors)),
        }
    }

    /// Closes the connection. The other end is told the code and the reason.
    pub fn close(&self, code: VarInt, reason: &str) {
        self.shared.quic.close(code, reason.as_bytes());
    }

    /// Bytes of a packet now, and how many packets were lost that were not probes.
    pub fn packets(&self) -> (u16, u64) {
        let path = self.shared.quic.stats().path;
        (path.current_mtu, path.lost_packets)
    }

    /// Names this connection among all of the process.
    pub fn id(&self) -> usize {
        self.shared.quic.stable_id()
    }

    /// The address of the other end.
    pub fn address(&self) -> SocketAddr {
        self.shared.quic.remote_address()
    }

    /// Whether the other end has closed, or is lost.
    pub fn is_closed(&self) -> bool {
        self.shared.quic.close_reason().is_some()
    }
}

/// Sends frames with large tensors, those first that were given first. A copy into shared memory keeps its thread busy for
/// less than a millisecond, in which nothing else could be sent over this connection anyway.
async fn write_large(shared: Arc<ConnectionShared>, mut frames: mpsc::UnboundedReceiver<LargeFrame>) {
    while let Some((head, tensors)) = frames.recv().await {
        if let Some(place) = shared.memory.write(&tensors) {
            shared.ordered.send(wire::shared_frame(head, place));
            continue;
        }
        if write_stream(&shared, 0, wire::whole_frame(head, tensors)).await.is_none() {
            return;
        }
    }
}

/// Sends what can wait whenever nothing else wants to go; not through shared memory, of which the rest has need.
async fn write_background(shared: Arc<ConnectionShared>, mut frames: mpsc::UnboundedReceiver<LargeFrame>) {
    while let Some((head, tensors)) = frames.recv().await {
        if write_stream(&shared, -1, wire::whole_frame(head, tensors)).await.is_none() {
            return;
        }
    }
}

/// Sends a frame on a stream of its own; nothing where the connection is gone.
async fn write_stream(shared: &ConnectionShared, priority: i32, mut frame: Vec<Bytes>) -> Option<()> {
    let _waits = shared.progress.begin_write();
    let mut stream = shared.quic.open_uni().await.ok()?;
    shared.progress.record_progress();
    stream.set_priority(priority).ok()?;
    shared.progress.write(&mut stream, &mut frame).await.ok()?;
    stream.finish().ok()
}

async fn negotiate(
    shared: Arc<ConnectionShared>,
    transport: Transport,
    mut answers: mpsc::Receiver<LinkMessage>,
    events: mpsc::Sender<ConnectionEvent>,
) {
    if transport == Transport::Auto && shared.path.same_machine {
        if let Some(address) = shared.memory.offer() {
            shared.send_message(LinkMessage::memory_file(address));
            let agreed = async {
                // The other end has no use for memory, or its own file comes and is opened.
                while !matches!(
                    answers.recv().await,
                    None | Some(LinkMessage::MemoryNonce(None) | LinkMessage::MemoryFile { .. })
                ) {}
            };
            tokio::time::timeout(MEMORY_TIMEOUT, agreed).await.ok();
        }
    }
    let report = probe::measure(&shared, &mut answers).await;
    *shared.report.lock() = report;
    events.send(ConnectionEvent::Measured { from: shared.peer, report }).await.ok();
}

/// Closes a connection on which nothing comes any more, or whose other end takes nothing. In silence quinn does so, too, but
/// later: it counts from what this end sent last, and waits three times as long as an answer may take, which is long once a
/// machine or a line has stood still. Looks are counted and not time, for this process may have stood still itself, with all
/// that came meanwhile still to be read.
async fn watch_liveness(shared: Arc<ConnectionShared>, SilenceLimit(most): SilenceLimit) {
    let mut looks = tokio::time::interval(CHECK_INTERVAL);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut heard, mut idle_checks, mut takes) = (0, 0, StallDetector::default());
    let (code, reason) = loop {
        tokio::select! {
            _ = shared.quic.closed() => return,
            _ = looks.tick() => {}
        }
        let now = shared.quic.stats().udp_rx.datagrams;
        idle_checks = if now == heard { idle_checks + 1 } else { 0 };
        heard = now;
        if idle_checks >= most {
            break (DONE, SILENT);
        }
        if takes.is_stuck(&shared.progress) {
            break (PROTOCOL_VIOLATION, STALLED);
        }
    };
    shared.ended.set(reason).ok();
    shared.quic.close(code, reason.as_bytes());
}

/// Reads every stream until the connection ends, and says how it ended.
async fn read_streams(shared: Arc<ConnectionShared>, mut control: RecvStream, events: mpsc::Sender<ConnectionEvent>) {
    let (control_shared, control_events) = (shared.clone(), events.clone());
    tokio::spawn(async move { while deliver_frame(&control_shared, &mut control, &control_events).await {} });
    let (reason, permanent) = loop {
        match shared.quic.accept_uni().await {
            Ok(mut stream) => {
                let (shared, events) = (shared.clone(), events.clone());
                tokio::spawn(async move { while deliver_frame(&shared, &mut stream, &events).await {} });
            }
            Err(e) => {
                let permanent = matches!(&e, ConnectionError::ApplicationClosed(close) if close.error_code == EVICTED);
                break (shared.ended.get().map_or_else(|| close_reason(&e), |reason| reason.to_string()), permanent);
            }
        }
    };
    let closed = ConnectionEvent::Closed { from: shared.peer, connection: shared.quic.stable_id(), reason, permanent };
    events.send(closed).await.ok();
}

/// Hands one frame to the driver; false where no more will come.
async fn deliver_frame(
    shared: &ConnectionShared,
    stream: &mut RecvStream,
    events: &mpsc::Sender<ConnectionEvent>,
) -> bool {
    let done = match wire::read(stream, &shared.memory, &shared.pool).await {
        Ok(Some(Incoming::Frame(envelope, payloads))) => {
            return events.send(ConnectionEvent::Frame { from: shared.peer, envelope, payloads }).await.is_ok();
        }
        Ok(Some(Incoming::LinkMessage(LinkMessage::Burst { bytes }))) => {
            probe::receive_burst(shared, stream, bytes).await
        }
        Ok(Some(Incoming::LinkMessage(message))) => {
            on_link_message(shared, message);
            Ok(())
        }
        Ok(None) => return false,
        Err(reason) => Err(reason),
    };
    match done {
        Ok(()) => true,
        // If the connection itself ended, `read_streams` reports why.
        Err(_) if shared.quic.close_reason().is_some() => false,
        Err(reason) => {
            let reason_here = format!("it broke the protocol: {reason}");
            let (from, connection) = (shared.peer, shared.quic.stable_id());
            let closed = ConnectionEvent::Closed { from, connection, reason: reason_here, permanent: false };
            events.send(closed).await.ok();
            shared.quic.close(PROTOCOL_VIOLATION, reason.as_bytes());
            false
        }
    }
}

fn on_link_message(shared: &ConnectionShared, message: LinkMessage) {
    let asker = shared.answers.lock().clone();
    match message {
        LinkMessage::Ping(number) => shared.send_answer(LinkMessage::Pong(number)),
        LinkMessage::MemoryFile { process, file } if asker.is_none() => {
            answer_memory(shared, FileAddress { process, file })
        }
        LinkMessage::MemoryFile { process, file } => {
            shared.send_answer(LinkMessage::MemoryNonce(shared.memory.open_peer(FileAddress { process, file })))
        }
        LinkMessage::MemoryNonce(Some(nonce)) => shared.memory.on_nonce(&nonce),
        LinkMessage::MemoryNonce(None)
        | LinkMessage::Pong(_)
        | LinkMessage::BurstReceived { .. }
        | LinkMessage::Burst { .. } => {}
    }
    if let Some(asker) = asker {
        // Nobody waits for more answers than there is room for.
        asker.try_send(message).ok();
    }
}

/// The end that was dialled: opens the other's file and shows its own, or says no.
fn answer_memory(shared: &ConnectionShared, address: FileAddress) {
    // Only what an address of this machine says may have files opened here.
    let may = shared.transport == Transport::Auto && shared.path.same_machine;
    let own = may.then(|| shared.memory.offer()).flatten();
    let seen = own.and_then(|own| Some((own, shared.memory.open_peer(address)?)));
    shared.send_answer(LinkMessage::MemoryNonce(seen.map(|(_, nonce)| nonce)));
    if let Some((own, _)) = seen {
        shared.send_answer(LinkMessage::memory_file(own));
    }
}

/// Why a connection ended, in words.
pub fn close_reason(e: &ConnectionError) -> String {
    match e {
        ConnectionError::ApplicationClosed(close) if close.reason.is_empty() => "it closed the connection".into(),
        ConnectionError::ApplicationClosed(close) => String::from_utf8_lossy(&close.reason).into_owned(),
        ConnectionError::TimedOut => SILENT.into(),
        ConnectionError::LocallyClosed => "closed here".into(),
        ConnectionError::Reset => "it was restarted".into(),
        other => other.to_string(),
    }
}
