//! A worker's place among the others.

use crate::determinism::Determinism;
use crate::ids::{StageId, WorkerId};
use crate::initialization::Initialization;
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
    /// The state that the replicas of a stage shard, if any.
    pub sharding: Option<Sharding>,
    /// The workers it exchanges tensors with.
    pub peers: Vec<PeerAddress>,
    /// The run's seed: parameters and dropout come from it.
    pub seed: u64,
    /// Whether GPUs use deterministic kernels only.
    pub determinism: Determinism,
    /// When the initial values of parameters are drawn.
    pub initialization: Initialization,
}

/// The address of another worker.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PeerAddress {
    /// Which worker.
    pub worker: WorkerId,
    /// Its address as the boss sees it. `None` if one of the pair makes no direct connections.
    pub address: Option<SocketAddr>,
    /// Whether this worker is the one of the pair that dials.
    pub dial: bool,
    /// Whether the boss relays for the pair, because they cannot connect.
    pub relayed: bool,
}

/// The new placement of the stages, in a run that workers join and leave.
///
/// A worker that joins while others train is first a *follower*. It receives the state of a replica
/// of its stages between two rounds, while the others continue. After that it receives the sums of
/// gradients of each round and takes the same optimizer steps. It gets no microbatches, and no
/// worker waits for it. When it has nearly caught up, it becomes a replica.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ChangeMembership {
    /// For every stage of the run, the workers that have it.
    pub stage_placement: StagePlacement,
    /// Followers, for each stage that they will have.
    pub followers: Vec<(StageId, WorkerId)>,
    /// The workers this one exchanges tensors with.
    pub peers: Vec<PeerAddress>,
    /// The new followers that receive the state of this worker.
    pub give: Vec<WorkerId>,
    /// The replica that sends this worker its state, if it is a new follower.
    pub take: Option<WorkerId>,
}
