//! The measured figures of a connection. The prediction of a schedule needs them.

use pipeline::effect::Micros;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The carrier of tensors over a connection.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Carrier {
    /// Encrypted packets.
    Quic,
    /// Memory that both processes share. Only heads travel in packets.
    SharedMemory,
}

impl fmt::Display for Carrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Carrier::Quic => "quic",
            Carrier::SharedMemory => "shared memory",
        })
    }
}

/// The figures of a connection, measured when it was new.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PathReport {
    /// The shortest of a few round trips of a few bytes, in microseconds. They take the same way as
    /// frames, without the sessions.
    pub rtt: u64,
    /// The speed of large tensors, in bytes per second.
    pub bytes_per_second: u64,
    /// The largest packet that arrives so far, in bytes.
    pub packet_bytes: u16,
    /// The carrier of tensors.
    pub carrier: Carrier,
    /// Whether both ends have the same network address.
    pub same_machine: bool,
}

impl PathReport {
    /// The time of one way: half a round trip.
    pub fn latency(&self) -> Micros {
        Micros(self.rtt / 2)
    }
}
