//! The events that a connection reports to its driver.

use crate::memory::payload::Payload;
use crate::quic::report::PathReport;
use pipeline::effect::Peer;
use pipeline::frame::TensorEnvelope;

/// An event that a connection reports to its driver. `M` are the messages that the driver receives.
#[derive(Debug)]
pub enum ConnectionEvent<M> {
    /// A message arrived.
    Message {
        /// The sender.
        from: Peer,
        /// The message.
        message: M,
    },
    /// A frame with tensors arrived.
    Frame {
        /// The sender.
        from: Peer,
        /// The connection's [number](super::Connection::id). A frame that was read before its
        /// connection was closed may be reported after the next connection has begun.
        connection: u64,
        /// The frame's head, and the dtypes and shapes of its tensors.
        envelope: TensorEnvelope,
        /// The tensors' bytes, in the order of the envelope.
        payloads: Vec<Payload>,
    },
    /// The path was measured. Reported once, at the end that dialled.
    Measured {
        /// The other end.
        from: Peer,
        /// The measured figures. `None` if the path could not be measured.
        report: Option<PathReport>,
    },
    /// The connection ended.
    Closed {
        /// The other end.
        from: Peer,
        /// The connection's [number](super::Connection::id). A newer connection to the same peer
        /// has another one.
        connection: u64,
        /// Why the connection ended, as far as known.
        reason: String,
        /// The other end wants no new connection.
        permanent: bool,
    },
}
