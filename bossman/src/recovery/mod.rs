//! Continues after a loss of workers, from a checkpoint, a peer snapshot or a log of calls.
//!
//! ```text
//! recovery_source (what the user chose)
//! both:           policy (which failure, how often, the cost), rejoin (the wait for workers)
//! runs:           resume -> peer_snapshots, checkpoints
//! calls by hand:  call_log
//! ```

pub(crate) mod call_log;
pub(crate) mod peer_snapshots;
pub(crate) mod policy;
pub(crate) mod recovery_source;
pub(crate) mod rejoin;
pub(crate) mod resume;
