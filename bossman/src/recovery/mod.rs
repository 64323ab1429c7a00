//! Continues after a loss of workers, from a checkpoint, a peer snapshot or a log of calls.
//!
//! ```text
//! policy (which failure, how often)
//!   runs:           resume -> peer_snapshots, checkpoints
//!   calls by hand:  replay
//! ```

pub(crate) mod peer_snapshots;
pub(crate) mod policy;
pub(crate) mod replay;
pub(crate) mod resume;
