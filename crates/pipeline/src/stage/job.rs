//! The current command of a worker, and the tasks at its compute thread.

use super::active_round::ActiveRound;
use crate::schedule::Action;
use crate::task::LayerTimes;

/// The current command.
pub(super) enum Job {
    /// An assignment: the stages are being built and the links opened.
    Assign {
        id: u64,
        built: bool,
    },
    Round(Box<ActiveRound>),
    /// A change of membership: the stages stay.
    ChangeMembership {
        id: u64,
    },
    /// A load whose tensors are arriving.
    Load {
        id: u64,
    },
    /// A snapshot: state is being copied.
    StoreSnapshot {
        id: u64,
    },
    /// State is being copied for the boss, which takes as many frames as this at a time.
    SendState {
        id: u64,
        window: u32,
    },
    /// A measurement of layers, which is one task, and of the links that are being measured.
    Measure {
        id: u64,
        times: Option<Vec<LayerTimes>>,
    },
    /// Communicators are being made with other workers.
    Communicate {
        id: u64,
    },
    /// Any command that is one task.
    Task {
        id: u64,
    },
    /// A cancelled command whose remains are being cleared.
    Abort {
        id: u64,
    },
}

impl Job {
    /// The command, if it is not cancelled.
    pub(super) fn id(&self) -> Option<u64> {
        match self {
            Job::Assign { id, .. }
            | Job::ChangeMembership { id }
            | Job::Load { id }
            | Job::StoreSnapshot { id }
            | Job::SendState { id, .. }
            | Job::Measure { id, .. }
            | Job::Communicate { id }
            | Job::Task { id } => Some(*id),
            Job::Round(active) => Some(active.id),
            Job::Abort { .. } => None,
        }
    }
}

/// The purpose of a task at the compute thread.
pub(super) enum Purpose {
    /// A whole command.
    Command(u64),
    /// An action of the round of a command.
    Action(u64, Action),
    /// Cleaning up after a cancelled command.
    Discard(u64),
}
