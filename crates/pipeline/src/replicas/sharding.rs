//! What the replicas of a stage shard instead of each storing all of it (ZeRO).

use serde::{Deserialize, Serialize};
use std::fmt;

/// How much of a stage's training state each replica keeps only its part of, as in ZeRO (Rajbhandari et al. 2020).
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Sharding {
    /// The optimizer's state (ZeRO's first stage): each replica updates its part of every parameter, and gives the new
    /// values to the others.
    Optimizer,
    /// The gradients, too (its second stage): those of each microbatch leave for the replicas that update with them as soon
    /// as they are there, and no replica ever has all of them.
    Gradients,
    /// The parameters, too (its third stage): a replica has all of a stage's only while it takes microbatches through it.
    Parameters,
}

impl Sharding {
    /// Every way by its name in a run file.
    pub const NAMES: [(&'static str, Sharding); 3] =
        [("optimizer", Sharding::Optimizer), ("gradients", Sharding::Gradients), ("parameters", Sharding::Parameters)];

    /// Whether gradients leave with each microbatch, rather than once with the last.
    pub fn shards_gradients(self) -> bool {
        match self {
            Sharding::Optimizer => false,
            Sharding::Gradients | Sharding::Parameters => true,
        }
    }

    /// Whether parameters are gathered before they are used, rather than after they were updated.
    pub fn shards_parameters(self) -> bool {
        self == Sharding::Parameters
    }
}

impl fmt::Display for Sharding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(_, way)| way == self).map_or("", |(name, _)| name);
        f.write_str(name)
    }
}

/// Which of how many parts a replica has.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct ShardId {
    /// Which replica of the stage it is.
    pub replica: u16,
    /// The number of shards.
    pub replicas: u16,
}
