//! The decisions that the owner of a membership carries out.

use crate::ids::WorkerId;
use crate::replicas::StagePlacement;
use std::collections::BTreeMap;

/// One thing to do.
#[derive(Clone, PartialEq, Debug)]
pub enum Decision {
    /// Tell the user.
    Notice(String),
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

/// The members from the next step on.
#[derive(Clone, PartialEq, Debug)]
pub struct Change {
    /// The workers of each stage.
    pub placement: StagePlacement,
    /// The followers, each with the worker of the same stages that provides its state.
    pub followers: BTreeMap<WorkerId, WorkerId>,
}
