//! One worker of a pool.

use crate::ids::{StageId, WorkerId};
use std::collections::BTreeSet;

/// A worker process. The same process may join again under another number.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Process {
    /// The name of its machine.
    pub host: String,
    /// The process id on that machine.
    pub id: u32,
    /// A random number that the process drew. Containers may have one name, and the same process
    /// ids.
    pub instance: u64,
}

/// The state of a worker of a pool.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum MemberState {
    /// It has joined and has no stages yet.
    #[default]
    Joined,
    /// It receives its stages, of which this is the first, and connects to the others.
    Preparing(StageId),
    /// It has its stages, and can follow from the next step on.
    Ready(StageId),
    /// It receives the state of this worker, and repeats the steps of the others.
    CatchingUp(WorkerId),
    /// It takes microbatches.
    Active,
    /// It takes no part for a while.
    Evicted {
        /// The reason.
        reason: String,
        /// The number of updates after which it is tried again.
        until: u64,
    },
    /// It has left.
    Left {
        /// The reason.
        reason: String,
    },
}

impl MemberState {
    /// The name that users read.
    pub fn name(&self) -> &'static str {
        match self {
            MemberState::Joined | MemberState::Preparing(_) | MemberState::Ready(_) => "preparing",
            MemberState::CatchingUp(_) => "catching up",
            MemberState::Active => "working",
            MemberState::Evicted { .. } => "aside",
            MemberState::Left { .. } => "left",
        }
    }

    /// The reason of a worker that was evicted or has left.
    pub fn reason(&self) -> Option<&str> {
        match self {
            MemberState::Evicted { reason, .. } | MemberState::Left { reason } => Some(reason),
            _ => None,
        }
    }

    /// Whether it has left.
    pub fn has_left(&self) -> bool {
        matches!(self, MemberState::Left { .. })
    }
}

/// A worker of a pool, and its part in the steps so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Member {
    /// Its process.
    pub process: Process,
    /// Its state.
    pub state: MemberState,
    /// The steps in which it took part.
    pub steps: u64,
    /// The steps since it last became active.
    pub steps_since_active: u64,
    /// The samples that it took.
    pub samples: u64,
    /// Its part of the last batch, from 0 to 1.
    pub share: f64,
    /// The rate of its slowest link to another worker, in bytes per second.
    pub bytes_per_second: Option<u64>,
    /// Whether it is told to leave.
    pub(super) is_leaving: bool,
    /// The stages for which it was found unfit beside their workers.
    pub(super) unfit: BTreeSet<StageId>,
}

impl Member {
    /// Takes it out of the steps.
    pub(super) fn retire(&mut self, state: MemberState) {
        (self.state, self.share) = (state, 0.0);
    }
}
