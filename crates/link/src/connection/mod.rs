//! A connection in use.
//!
//! One ordered stream carries control frames and all small ones. Every other frame with tensors has
//! a stream of its own, so that a large tensor delays nothing. Between processes of one machine,
//! large tensors lie in shared memory, and only their heads travel on the ordered stream.
//!
//! ```text
//! established -> Connection -> ordered_stream           small frames (outgoing encodes them)
//!                        +---> writers                  large tensors
//!                        +---> readers -> wire          bytes to frames, reported as an event
//!                        +---> negotiation -> probe     shared memory, speed of the path
//!                        +---> liveness -> progress     silent and stalled peers
//! ```
//!
//! All of them share one `ConnectionShared`. The ends also exchange link messages
//! (`link_message`), which are about the connection itself.

pub mod established;
pub mod event;
pub(crate) mod link_message;
pub(crate) mod liveness;
mod negotiation;
pub(crate) mod ordered_stream;
pub mod outgoing;
mod probe;
pub(crate) mod progress;
pub(crate) mod readers;
pub(crate) mod shared;
pub(crate) mod wire;
mod writers;

pub use crate::connection::established::EstablishedConnection;
pub use crate::connection::event::ConnectionEvent;
pub use crate::connection::liveness::SilenceLimit;

use crate::connection::liveness::{watch_liveness, SILENT_CHECKS};
use crate::connection::negotiation::negotiate;
use crate::connection::ordered_stream::OrderedStream;
use crate::connection::outgoing::Channel;
use crate::connection::progress::SendProgress;
use crate::connection::readers::read_streams;
use crate::connection::shared::{next_id, ConnectionShared, MAX_PENDING_ANSWERS};
use crate::connection::writers::{write_background, write_large, LargeFrame};
use crate::memory::pool::BufferPool;
use crate::memory::shared::{SharedMemory, Transport};
use crate::quic::network_path::{canonical, NetworkPath};
use crate::quic::report::PathReport;
use bytes::Bytes;
use parking_lot::Mutex;
use pipeline::effect::Peer;
use pipeline::frame::FrameMessage;
use quinn::VarInt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use tokio::sync::mpsc;
use tracing::Instrument;

/// Tensors up to this size follow their head on the ordered stream. A stream of their own, or
/// shared memory, would cost more than it gains.
const INLINE_LIMIT: usize = 8 << 10;
/// The priority of the ordered stream: small frames precede large tensors if both wait.
const CONTROL_PRIORITY: i32 = 1;

/// A connection in use. Dropping it does not close it. Its tasks end when it closes.
pub struct Connection<M> {
    shared: Arc<ConnectionShared>,
    data: mpsc::UnboundedSender<LargeFrame>,
    background: mpsc::UnboundedSender<LargeFrame>,
    events: mpsc::Sender<ConnectionEvent<M>>,
}

impl<M: Send + 'static> Connection<M> {
    /// Starts the tasks that read, write and watch. They report to `events`. The peer may send the
    /// messages `D` and no others.
    pub fn start<D: FrameMessage + Into<M> + Send + 'static>(
        established: EstablishedConnection,
        peer: Peer,
        events: &mpsc::Sender<ConnectionEvent<M>>,
        transport: Transport,
        silence_limit: SilenceLimit,
    ) -> Self {
        let EstablishedConnection { quic, send, recv } = established;
        send.set_priority(CONTROL_PRIORITY).ok();
        let progress = Arc::new(SendProgress::default());
        let shared = Arc::new(ConnectionShared {
            id: next_id(),
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
            closed_here: OnceLock::new(),
            silent_checks: AtomicU32::new(0),
        });
        let (data, frames) = mpsc::unbounded_channel();
        tokio::spawn(write_large(shared.clone(), frames));
        let (background, frames) = mpsc::unbounded_channel();
        tokio::spawn(write_background(shared.clone(), frames));
        let reading = read_streams::<D, M>(shared.clone(), recv, events.clone());
        tokio::spawn(reading.in_current_span());
        tokio::spawn(watch_liveness(shared.clone(), silence_limit));
        Connection { shared, data, background, events: events.clone() }
    }

    /// Agrees with the other end on shared memory, if wanted and possible, and measures the path.
    /// Called at the end that dialled. Frames may be sent at the same time.
    pub fn negotiate(&self, transport: Transport) {
        let (sender, answers) = mpsc::channel(MAX_PENDING_ANSWERS);
        *self.shared.answers.lock() = Some(sender);
        let negotiation = negotiate(self.shared.clone(), transport, answers, self.events.clone());
        tokio::spawn(negotiation.in_current_span());
    }

    /// The measured figures of the path, at the end that dialled. `None` until they are known.
    pub fn report(&self) -> Option<PathReport> {
        *self.shared.report.lock()
    }

    /// Sends a frame. Small frames and all control frames arrive in the order given.
    pub fn send(&self, channel: Channel, head: Vec<u8>, tensors: Vec<Bytes>) {
        let large = tensors.iter().map(Bytes::len).sum::<usize>() > INLINE_LIMIT;
        // A task copies large tensors, because the caller must keep a compute thread busy. If the
        // task has ended, the connection is lost, which the reader reports.
        match channel {
            Channel::Data if large => drop(self.data.send(LargeFrame { head, tensors })),
            Channel::Background if large => {
                drop(self.background.send(LargeFrame { head, tensors }))
            }
            _ => self.shared.ordered.send(wire::whole_frame(head, tensors)),
        }
    }

    /// Closes the connection. The other end is told the code and the reason.
    pub fn close(&self, code: VarInt, reason: &str) {
        self.shared.quic.close(code, reason.as_bytes());
    }

    /// The current packet size in bytes, and the number of lost packets that were not probes.
    pub fn packets(&self) -> (u16, u64) {
        let path = self.shared.quic.stats().path;
        (path.current_mtu, path.lost_packets)
    }

    /// A number that no other connection of this process has, also not after this one has ended.
    pub fn id(&self) -> u64 {
        self.shared.id
    }

    /// The address of the other end.
    pub fn address(&self) -> SocketAddr {
        canonical(self.shared.quic.remote_address())
    }

    /// Whether nothing has arrived for a second, so that the other end may be gone.
    pub fn is_silent(&self) -> bool {
        self.shared.silent_checks.load(Ordering::Relaxed) >= SILENT_CHECKS
    }

    /// Whether the connection is closed or lost.
    pub fn is_closed(&self) -> bool {
        self.shared.quic.close_reason().is_some()
    }
}
