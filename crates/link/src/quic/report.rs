//! The figures of a connection that the prediction of a schedule needs.

use pipeline::effect::Micros;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The carrier of tensors over a connection.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Carrier {
    /// Encrypted packets.
    Quic,
    /// Memory that both processes share; only heads go as packets.
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

/// A connection as measured after it came up.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PathReport {
    /// The shortest of a few round trips of a few bytes, in microseconds, through all that a frame goes
    /// through but the sessions.
    pub rtt: u64,
    /// How fast large tensors go.
    pub bytes_per_second: u64,
    /// The largest packet that arrives, so far.
    pub packet_bytes: u16,
    /// The carrier of tensors.
    pub carrier: Carrier,
    /// Whether both ends have the same network address.
    pub same_machine: bool,
}

impl PathReport {
    /// Half a round trip.
    pub fn latency(&self) -> Micros {
        Micros(self.rtt / 2)
    }
}
