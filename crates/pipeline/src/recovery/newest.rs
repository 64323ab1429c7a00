//! The newest state that a run can resume from.

use super::StateSource;

/// The steps of the states that are stored, each the last of its kind.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct StoredSteps {
    /// The last step in the peer snapshot, if there is one.
    pub peer_snapshot: Option<u64>,
    /// The last step in the checkpoint, if there is one.
    pub checkpoint: Option<u64>,
}

impl StoredSteps {
    /// The state to resume from. A peer snapshot that is at least as new as the checkpoint is
    /// preferred, because the workers have it already.
    pub fn newest(self) -> StateSource {
        match (self.peer_snapshot, self.checkpoint) {
            (Some(step), checkpoint) if checkpoint.is_none_or(|checkpoint| step >= checkpoint) => {
                StateSource::PeerSnapshot { step }
            }
            (_, Some(step)) => StateSource::Checkpoint { step },
            (_, None) => StateSource::Beginning,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::StateSource::{Beginning, Checkpoint, PeerSnapshot};
    use super::*;

    #[test]
    fn a_peer_snapshot_that_is_not_older_wins() {
        for (peer_snapshot, checkpoint, newest) in [
            (None, None, Beginning),
            (None, Some(3), Checkpoint { step: 3 }),
            (Some(3), None, PeerSnapshot { step: 3 }),
            (Some(3), Some(2), PeerSnapshot { step: 3 }),
            (Some(3), Some(3), PeerSnapshot { step: 3 }),
            (Some(3), Some(4), Checkpoint { step: 4 }),
        ] {
            assert_eq!(StoredSteps { peer_snapshot, checkpoint }.newest(), newest);
        }
    }
}
