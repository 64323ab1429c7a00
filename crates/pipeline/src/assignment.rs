//! A worker's place among the others.

use crate::ids::{StageId, WorkerId};
use crate::replicas::{BucketBytes, Sharding, StagePlacement};
use crate::stage_spec::StageSpec;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// A worker's part of the model.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Assignment {
    /// The number of the worker that gets it.
    pub worker: WorkerId,
    /// Its stages, in the order of the model.
    pub stages: Vec<StageSpec>,
    /// For every stage of the run, the workers that have it.
    pub stage_placement: StagePlacement,
    /// How large the buckets are in which replicas exchange gradients.
    pub buckets: BucketBytes,
    /// What the replicas of a stage shard, if anything.
    pub sharding: Option<Sharding>,
    /// The workers it exchanges tensors with.
    pub peers: Vec<PeerAddress>,
    /// The run's seed: parameters and dropout come from it.
    pub seed: u64,
}

/// The address of another worker.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PeerAddress {
    /// Which worker.
    pub worker: WorkerId,
    /// Its address as the boss sees it; nothing where one of the pair makes no direct connections.
    pub address: Option<SocketAddr>,
    /// Whether this worker is the one of the pair that dials.
    pub dial: bool,
    /// The pair is known not to reach each other: the boss passes on between them.
    pub relayed: bool,
}

/// The new placement of the stages, in a run that workers join and leave.
///
/// A worker that comes while others train is first a *follower*: it gets the state that the replicas of its stages have
/// between two rounds, and while that is on its way the others go on. From then on it is sent the sums of gradients of each
/// round as they are, takes the same optimizer steps, but no microbatches, and nobody waits for it. Once it has as good as
/// caught up it becomes one of them.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ChangeMembership {
    /// For every stage of the run, the workers that have it.
    pub stage_placement: StagePlacement,
    /// Followers, for each stage that they will have.
    pub followers: Vec<(StageId, WorkerId)>,
    /// The workers this one exchanges tensors with.
    pub peers: Vec<PeerAddress>,
    /// Those of the followers to which this worker gives its state.
    pub give: Vec<WorkerId>,
    /// The replica that sends this worker its state, if it is a new follower.
    pub take: Option<WorkerId>,
}
