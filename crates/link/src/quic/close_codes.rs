//! The codes with which connections are closed.

use quinn::VarInt;

/// The close code of a connection that is not needed any more.
pub const DONE: VarInt = VarInt::from_u32(0);
/// The close code for a peer that violates the protocol.
pub const PROTOCOL_VIOLATION: VarInt = VarInt::from_u32(1);
/// The boss does without this worker, which is not to come again.
pub const EVICTED: VarInt = VarInt::from_u32(2);
