//! A connection at work: one ordered stream for control and whatever is small, a stream of its own for every
//! other tensor frame, so that a large tensor holds nothing up. Between processes of one machine large
//! tensors go through shared memory and only their heads over the stream.
//!
//! ```text
//! Connection -> lane (streams out) -> outgoing (a frame as bytes)
//!      +------> ends -> link_message (ping, shared memory)
//!      +------> wire (bytes in as frames), taking (who is silent)
//! ```

pub(crate) mod ends;
pub(crate) mod lane;
pub(crate) mod link_message;
pub mod outgoing;
pub(crate) mod taking;
pub(crate) mod wire;

use crate::connection::ends::{Ends, ANSWERS};
use crate::connection::lane::Lane;
use crate::connection::link_message::LinkMessage;
use crate::connection::outgoing::Channel;
use crate::connection::taking::{Looks, Taking};
use crate::connection::wire::Incoming;
use crate::memory::payload::Payload;
use crate::memory::pool::Pool;
use crate::memory::shared::{Memory, Transport};
use crate::quic::endpoint::KEEP_ALIVE;
use crate::quic::path::Path;
use crate::quic::probe;
use crate::quic::report::PathReport;
use bytes::Bytes;
use pipeline::effect::Peer;
use pipeline::frame::Envelope;
use quinn::{ConnectionError, RecvStream, SendStream, VarInt};
use shm::Address;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

/// Tensors up to this size go behind their head on the ordered stream: a stream of their own, or shared
/// memory, would cost more than it gains.
const SMALL: usize = 8 << 10;
/// Shared memory is agreed upon within this long or not used.
const PATIENCE: Duration = Duration::from_secs(2);

/// How often is looked whether something has come: twice for each time that the other end says that it is there.
const LOOK: Duration = Duration::from_millis(KEEP_ALIVE.as_millis() as u64 / 2);
/// After so many looks in vain a connection is taken for dead.
pub struct Silence(u32);

impl Silence {
    /// Of boss and worker: 2.75 to 3 seconds after the last message.
    pub const WITH_BOSS: Silence = Silence(11);
    /// Longer, so that the boss is the first to miss a worker here, too.
    pub const BETWEEN_WORKERS: Silence = Silence(24);
}

/// Why a connection ended on which nothing came, or nothing went.
const SILENT: &str = "silent for 3 seconds";
const TAKES_NOTHING: &str = "it takes nothing of what it is sent";

/// The close code of a connection that is not needed any more.
pub const DONE: VarInt = VarInt::from_u32(0);
/// The close code for a peer that violates the protocol.
pub const BROKE_PROTOCOL: VarInt = VarInt::from_u32(1);
/// The boss does without this worker, which is not to come again.
pub const SENT_AWAY: VarInt = VarInt::from_u32(2);

/// What a connection reports to its driver.
#[derive(Debug)]
pub enum Event {
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
        for_good: bool,
    },
}

/// A frame with its tensors.
type Large = (Vec<u8>, Vec<Bytes>);

/// A connection that is up. Dropping it does not close it; its tasks end with the connection.
pub struct Connection {
    ends: Arc<Ends>,
    data: mpsc::UnboundedSender<Large>,
    background: mpsc::UnboundedSender<Large>,
    events: mpsc::Sender<Event>,
}

impl Connection {
    /// Starts reading and writing. `control` is the stream on which the ends greeted each other.
    pub fn start(
        peer: Peer,
        quic: quinn::Connection,
        (send, recv): (SendStream, RecvStream),
        events: &mpsc::Sender<Event>,
        transport: Transport,
        patience: Silence,
    ) -> Self {
        // What is small goes before large tensors when both wait for the network.
        send.set_priority(1).ok();
        let taking = Arc::new(Taking::default());
        let ends = Arc::new(Ends {
            peer,
            path: Path::to(quic.remote_address()),
            quic,
            memory: Memory::default(),
            transport,
            lane: Lane::new(send, taking.clone()),
            taking,
            pool: Pool::of_process(),
            answers: Mutex::default(),
            report: Mutex::default(),
            ended: OnceLock::new(),
        });
        let (data, large) = mpsc::unbounded_channel();
        tokio::spawn(write_large(ends.clone(), large));
        let (background, large) = mpsc::unbounded_channel();
        tokio::spawn(write_background(ends.clone(), large));
        tokio::spawn(read(ends.clone(), recv, events.clone()));
        tokio::spawn(end_in_silence(ends.clone(), patience));
        Connection { ends, data, background, events: events.clone() }
    }

    /// Agrees with the other end on shared memory, if wanted and possible, and measures the path; for the end
    /// that dialled. Frames may be sent meanwhile.
    pub fn settle(&self, transport: Transport) {
        let (sender, answers) = mpsc::channel(ANSWERS);
        *self.ends.answers.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
        tokio::spawn(settle(self.ends.clone(), transport, answers, self.events.clone()));
    }

    /// How fast the path is, once measured, at the end that dialled.
    pub fn report(&self) -> Option<PathReport> {
        *self.ends.report.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a frame. Small ones, and all of control, arrive in the order given.
    pub fn send(&self, way: Channel, head: Vec<u8>, tensors: Vec<Bytes>) {
        let large = tensors.iter().map(Bytes::len).sum::<usize>() > SMALL;
        // Copying is left to a task: the caller has a compute thread to feed. A task that has ended
        // means a lost connection, which the reader reports.
        match way {
            Channel::Data if large => drop(self.data.send((head, tensors))),
            Channel::Background if large => drop(self.background.send((head, tensors))),
            _ => self.ends.lane.send(wire::whole_frame(head, tensors)),
        }
    }

    /// Closes the connection. The other end is told the code and the reason.
    pub fn close(&self, code: VarInt, reason: &str) {
        self.ends.quic.close(code, reason.as_bytes());
    }

    /// Bytes of a packet now, and how many packets were lost that were not probes.
    pub fn packets(&self) -> (u16, u64) {
        let path = self.ends.quic.stats().path;
        (path.current_mtu, path.lost_packets)
    }

    /// Names this connection among all of the process.
    pub fn id(&self) -> usize {
        self.ends.quic.stable_id()
    }

    /// Where the other end is.
    pub fn address(&self) -> SocketAddr {
        self.ends.quic.remote_address()
    }

    /// Whether the other end has closed, or is lost.
    pub fn is_closed(&self) -> bool {
        self.ends.quic.close_reason().is_some()
    }
}

/// Sends frames with large tensors, those first that were given first. A copy into shared memory keeps its thread busy for
/// less than a millisecond, in which nothing else could be sent over this connection anyway.
async fn write_large(ends: Arc<Ends>, mut frames: mpsc::UnboundedReceiver<Large>) {
    while let Some((head, tensors)) = frames.recv().await {
        if let Some(place) = ends.memory.put(&tensors) {
            ends.lane.send(wire::shared_frame(head, place));
            continue;
        }
        if write_stream(&ends, 0, wire::whole_frame(head, tensors)).await.is_none() {
            return;
        }
    }
}

/// Sends what can wait whenever nothing else wants to go; not through shared memory, of which the rest has need.
async fn write_background(ends: Arc<Ends>, mut frames: mpsc::UnboundedReceiver<Large>) {
    while let Some((head, tensors)) = frames.recv().await {
        if write_stream(&ends, -1, wire::whole_frame(head, tensors)).await.is_none() {
            return;
        }
    }
}

/// Sends a frame on a stream of its own; nothing where the connection is gone.
async fn write_stream(ends: &Ends, priority: i32, mut frame: Vec<Bytes>) -> Option<()> {
    let _waits = ends.taking.waits();
    let mut stream = ends.quic.open_uni().await.ok()?;
    ends.taking.took();
    stream.set_priority(priority).ok()?;
    ends.taking.write(&mut stream, &mut frame).await.ok()?;
    stream.finish().ok()
}

async fn settle(
    ends: Arc<Ends>,
    transport: Transport,
    mut answers: mpsc::Receiver<LinkMessage>,
    events: mpsc::Sender<Event>,
) {
    if transport == Transport::Auto && ends.path.same_machine {
        if let Some(address) = ends.memory.offer() {
            ends.say(LinkMessage::memory(address));
            let agreed = async {
                // The other end has no use for memory, or its own file comes and is opened.
                while !matches!(answers.recv().await, None | Some(LinkMessage::Seen(None) | LinkMessage::Memory { .. }))
                {
                }
            };
            tokio::time::timeout(PATIENCE, agreed).await.ok();
        }
    }
    let report = probe::measure(&ends, &mut answers).await;
    *ends.report.lock().unwrap_or_else(PoisonError::into_inner) = report;
    events.send(Event::Measured { from: ends.peer, report }).await.ok();
}

/// Closes a connection on which nothing comes any more, or whose other end takes nothing. In silence quinn does so, too, but
/// later: it counts from what this end sent last, and waits three times as long as an answer may take, which is long once a
/// machine or a line has stood still. Looks are counted and not time, for this process may have stood still itself, with all
/// that came meanwhile still to be read.
async fn end_in_silence(ends: Arc<Ends>, Silence(most): Silence) {
    let mut looks = tokio::time::interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut heard, mut attempts, mut takes) = (0, 0, Looks::default());
    let (code, reason) = loop {
        tokio::select! {
            _ = ends.quic.closed() => return,
            _ = looks.tick() => {}
        }
        let now = ends.quic.stats().udp_rx.datagrams;
        attempts = if now == heard { attempts + 1 } else { 0 };
        heard = now;
        if attempts >= most {
            break (DONE, SILENT);
        }
        if takes.is_stuck(&ends.taking) {
            break (BROKE_PROTOCOL, TAKES_NOTHING);
        }
    };
    ends.ended.set(reason).ok();
    ends.quic.close(code, reason.as_bytes());
}

/// Reads every stream until the connection ends, and says how it ended.
async fn read(ends: Arc<Ends>, mut control: RecvStream, events: mpsc::Sender<Event>) {
    let (control_ends, control_events) = (ends.clone(), events.clone());
    tokio::spawn(async move { while forward(&control_ends, &mut control, &control_events).await {} });
    let (reason, for_good) = loop {
        match ends.quic.accept_uni().await {
            Ok(mut stream) => {
                let (ends, events) = (ends.clone(), events.clone());
                tokio::spawn(async move { while forward(&ends, &mut stream, &events).await {} });
            }
            Err(e) => {
                let for_good = matches!(&e, ConnectionError::ApplicationClosed(close) if close.error_code == SENT_AWAY);
                break (ends.ended.get().map_or_else(|| close_reason(&e), |reason| reason.to_string()), for_good);
            }
        }
    };
    let closed = Event::Closed { from: ends.peer, connection: ends.quic.stable_id(), reason, for_good };
    events.send(closed).await.ok();
}

/// Hands one frame to the driver; false where no more will come.
async fn forward(ends: &Ends, stream: &mut RecvStream, events: &mpsc::Sender<Event>) -> bool {
    let done = match wire::read(stream, &ends.memory, &ends.pool).await {
        Ok(Some(Incoming::Frame(envelope, payloads))) => {
            return events.send(Event::Frame { from: ends.peer, envelope, payloads }).await.is_ok();
        }
        Ok(Some(Incoming::LinkMessage(LinkMessage::Burst { bytes }))) => {
            probe::receive_burst(ends, stream, bytes).await
        }
        Ok(Some(Incoming::LinkMessage(message))) => {
            on_link_message(ends, message);
            Ok(())
        }
        Ok(None) => return false,
        Err(reason) => Err(reason),
    };
    match done {
        Ok(()) => true,
        // Where the connection itself is gone, `read` says why.
        Err(_) if ends.quic.close_reason().is_some() => false,
        Err(reason) => {
            let reason_here = format!("it broke the protocol: {reason}");
            let (from, connection) = (ends.peer, ends.quic.stable_id());
            let closed = Event::Closed { from, connection, reason: reason_here, for_good: false };
            events.send(closed).await.ok();
            ends.quic.close(BROKE_PROTOCOL, reason.as_bytes());
            false
        }
    }
}

fn on_link_message(ends: &Ends, message: LinkMessage) {
    let asker = ends.answers.lock().unwrap_or_else(PoisonError::into_inner).clone();
    match message {
        LinkMessage::Ping(number) => ends.answer(LinkMessage::Pong(number)),
        LinkMessage::Memory { process, file } if asker.is_none() => answer_memory(ends, Address { process, file }),
        LinkMessage::Memory { process, file } => {
            ends.answer(LinkMessage::Seen(ends.memory.open(Address { process, file })))
        }
        LinkMessage::Seen(Some(nonce)) => ends.memory.on_seen(&nonce),
        LinkMessage::Seen(None) | LinkMessage::Pong(_) | LinkMessage::Came { .. } | LinkMessage::Burst { .. } => {}
    }
    if let Some(asker) = asker {
        // Nobody waits for more answers than there is room for.
        asker.try_send(message).ok();
    }
}

/// The end that was dialled: opens the other's file and shows its own, or says no.
fn answer_memory(ends: &Ends, address: Address) {
    // Only what an address of this machine says may have files opened here.
    let may = ends.transport == Transport::Auto && ends.path.same_machine;
    let own = may.then(|| ends.memory.offer()).flatten();
    let seen = own.and_then(|own| Some((own, ends.memory.open(address)?)));
    ends.answer(LinkMessage::Seen(seen.map(|(_, nonce)| nonce)));
    if let Some((own, _)) = seen {
        ends.answer(LinkMessage::memory(own));
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
