//! The codes with which connections are closed.

use quinn::VarInt;

/// The close code of a connection that is no longer needed.
pub const DONE: VarInt = VarInt::from_u32(0);
/// The close code for a peer that violates the protocol.
pub const PROTOCOL_VIOLATION: VarInt = VarInt::from_u32(1);
/// The close code for a worker that the boss removes, and that must not join again.
pub const EVICTED: VarInt = VarInt::from_u32(2);
