//! One worker of a pool.

use link::WorkerInfo;
use pipeline::ids::{StageId, WorkerId};
use std::time::Instant;

/// The state of a worker of the pool.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum MemberState {
    /// It is here and has nothing yet.
    Joined,
    /// It gets its stages, of which this is the first, and links.
    Preparing(StageId),
    /// It has them, and can follow from the next step on.
    Ready(StageId),
    /// It has, or gets, the state of this one and takes the steps of the others after them.
    CatchingUp(WorkerId),
    /// It takes microbatches.
    Active,
    /// It would slow the others down.
    Evicted {
        /// How.
        reason: String,
        /// The number of updates after which it is tried again.
        until: u64,
    },
    /// It has left.
    Left {
        /// Why.
        reason: String,
    },
}

impl MemberState {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            MemberState::Joined | MemberState::Preparing(_) | MemberState::Ready(_) => "preparing",
            MemberState::CatchingUp(_) => "catching up",
            MemberState::Active => "working",
            MemberState::Evicted { .. } => "aside",
            MemberState::Left { .. } => "left",
        }
    }
}

/// A worker of the pool, with what it has done.
pub(crate) struct Member {
    pub(crate) info: WorkerInfo,
    pub(crate) state: MemberState,
    /// Steps in which it took part.
    pub(crate) steps: u64,
    /// Those since it began to take microbatches, or began again.
    pub(crate) steps_since_active: u64,
    pub(crate) samples: u64,
    /// Its part of the last batch.
    pub(crate) share: f64,
    /// How fast its slowest link to another worker is, in bytes a second.
    pub(crate) bytes_per_second: Option<u64>,
    /// When it was last heard of.
    pub(crate) last_seen: Instant,
}

impl Member {
    pub(crate) fn new(info: WorkerInfo, state: MemberState) -> Self {
        Member {
            info,
            state,
            steps: 0,
            steps_since_active: 0,
            samples: 0,
            share: 0.0,
            bytes_per_second: None,
            last_seen: Instant::now(),
        }
    }

    /// Its process, wherever that is: the same one may come again.
    pub(crate) fn process_key(&self) -> (String, u32) {
        (self.info.host.clone(), self.info.process)
    }

    pub(crate) fn has_left(&self) -> bool {
        matches!(self.state, MemberState::Left { .. })
    }
}
