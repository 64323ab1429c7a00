//! A connection between its handshake and its first frame.

use quinn::{RecvStream, SendStream};

/// A QUIC connection whose handshake is done. [`Connection::start`](super::Connection::start) takes
/// it over.
pub struct EstablishedConnection {
    /// The QUIC connection.
    pub quic: quinn::Connection,
    /// Our half of the control stream, on which the handshake went.
    pub send: SendStream,
    /// The other end's half of the control stream.
    pub recv: RecvStream,
}
