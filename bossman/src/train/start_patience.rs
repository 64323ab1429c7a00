//! The patience with a session that starts after the user ended the run.

use crate::RecoverySource;
use std::time::Duration;

/// The time to start a session that is to save what only the workers have.
const LAST_START: Duration = Duration::from_secs(30);

/// The time that a session has to start once the user ends the run. Only a session can save the
/// state that a run left to its workers when it grew or lost some. Without such a state there is
/// nothing to save before the first step.
pub(super) fn patience_with_start(has_state: bool, redundancy: RecoverySource) -> Duration {
    match redundancy {
        RecoverySource::PeerSnapshot(_) if has_state => LAST_START,
        RecoverySource::PeerSnapshot(_) | RecoverySource::Checkpoint | RecoverySource::None => {
            Duration::ZERO
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Every;

    #[test]
    fn a_session_that_can_save_the_workers_state_has_time_to_start() {
        let peers = RecoverySource::PeerSnapshot(Every::Steps(3));
        for (has_state, redundancy, patience) in [
            (true, peers, LAST_START),
            (false, peers, Duration::ZERO),
            (true, RecoverySource::Checkpoint, Duration::ZERO),
            (true, RecoverySource::None, Duration::ZERO),
        ] {
            let found = patience_with_start(has_state, redundancy);
            assert_eq!(found, patience, "{has_state}, {redundancy:?}");
        }
    }
}
