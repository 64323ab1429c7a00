//! One worker of a pool.

use link::WorkerInfo;
use pipeline::ids::{StageId, WorkerId};
use std::time::Instant;

/// The state of a worker of the pool.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum State {
    /// It is here and has nothing yet.
    Arrived,
    /// It gets its stages, of which this is the first, and links.
    Preparing(StageId),
    /// It has them, and can follow from the next step on.
    Ready(StageId),
    /// It has, or gets, the state of this one and takes the steps of the others after them.
    Following(WorkerId),
    /// It takes microbatches.
    Working,
    /// It would slow the others down.
    Aside {
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

impl State {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            State::Arrived | State::Preparing(_) | State::Ready(_) => "preparing",
            State::Following(_) => "catching up",
            State::Working => "working",
            State::Aside { .. } => "aside",
            State::Left { .. } => "left",
        }
    }
}

/// A worker of the pool, with what it has done.
pub(crate) struct Contributor {
    pub(crate) info: WorkerInfo,
    pub(crate) state: State,
    /// Steps in which it took part.
    pub(crate) steps: u64,
    /// Those since it began to take microbatches, or began again.
    pub(crate) in_a_row: u64,
    pub(crate) samples: u64,
    /// Its part of the last batch.
    pub(crate) share: f64,
    /// How fast its slowest link to another worker is, in bytes a second.
    pub(crate) bytes_per_second: Option<u64>,
    /// When it was last heard of.
    pub(crate) seen: Instant,
}

impl Contributor {
    pub(crate) fn new(info: WorkerInfo, state: State) -> Self {
        Contributor {
            info,
            state,
            steps: 0,
            in_a_row: 0,
            samples: 0,
            share: 0.0,
            bytes_per_second: None,
            seen: Instant::now(),
        }
    }

    /// Its process, wherever that is: the same one may come again.
    pub(crate) fn machine(&self) -> (String, u32) {
        (self.info.host.clone(), self.info.process)
    }

    pub(crate) fn has_left(&self) -> bool {
        matches!(self.state, State::Left { .. })
    }
}
