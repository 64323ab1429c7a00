//! The source of the state from which a run resumes.

use crate::checkpoint::Every;

/// The source of the state from which a run resumes after a loss of workers.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub enum RecoverySource {
    /// The run does not resume by itself.
    #[default]
    None,
    /// The run resumes from the last checkpoint.
    Checkpoint,
    /// The run resumes from the last peer snapshot, or from a checkpoint that is newer. Workers
    /// make snapshots at this interval.
    PeerSnapshot(Every),
}
