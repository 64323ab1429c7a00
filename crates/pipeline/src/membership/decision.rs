//! The decisions that the owner of a membership carries out.

use crate::ids::WorkerId;
use crate::replicas::StagePlacement;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// One thing to do.
#[derive(Clone, PartialEq, Debug)]
pub enum Decision {
    /// Tell the user.
    Notice(Notice),
    /// Prepare a worker for the stages that it has in this placement, and report the result.
    Prepare {
        /// The worker.
        worker: WorkerId,
        /// The current placement, joined by the worker.
        placement: StagePlacement,
    },
    /// Close the connection to a worker. It may join again.
    Disconnect {
        /// The worker.
        worker: WorkerId,
        /// The reason, which the worker is told.
        reason: String,
    },
    /// Forget the observed times of a worker, because it is tried again.
    ForgetTimes(WorkerId),
}

/// A change of a pool, for the user.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "snake_case")]
pub enum Notice {
    /// A worker left.
    Left {
        /// The worker.
        worker: WorkerId,
        /// The reason.
        why: String,
    },
    /// A worker that was told to leave stays, because nobody else who stays has its stage.
    Leaving {
        /// The worker.
        worker: WorkerId,
    },
    /// A worker could not be prepared for its stage.
    Unprepared {
        /// The worker.
        worker: WorkerId,
        /// The failure.
        why: String,
    },
    /// A worker stays connected and takes no part for a while.
    Evicted {
        /// The worker.
        worker: WorkerId,
        /// The reason.
        why: String,
    },
    /// A worker failed where others did not.
    Removed {
        /// The worker.
        worker: WorkerId,
        /// The failure.
        why: String,
    },
    /// Another number of workers takes part from this step on.
    Members {
        /// The step.
        step: u64,
        /// The workers.
        workers: usize,
    },
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::Left { worker, why } => write!(f, "{worker} left ({why})"),
            Notice::Leaving { worker } => {
                write!(f, "{worker} leaves as soon as another worker has its layers")
            }
            Notice::Unprepared { worker, why } => write!(f, "{worker} cannot take part: {why}"),
            Notice::Evicted { worker, why } => write!(f, "{worker} is put aside: {why}"),
            Notice::Removed { worker, why } => write!(f, "{worker} failed and is removed: {why}"),
            Notice::Members { step, workers } => write!(f, "step {step}: {workers} workers"),
        }
    }
}

/// The members from the next step on.
#[derive(Clone, PartialEq, Debug)]
pub struct Change {
    /// The workers of each stage.
    pub placement: StagePlacement,
    /// The followers, each with the worker of the same stages that provides its state.
    pub followers: BTreeMap<WorkerId, WorkerId>,
}
