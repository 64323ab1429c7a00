//! The state that the replicas of a stage shard instead of each storing all of it (ZeRO).

use serde::{Deserialize, Serialize};
use std::fmt;

/// The training state of a stage of which each replica stores only its shard, as in ZeRO
/// (Rajbhandari et al. 2020).
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Sharding {
    /// The optimizer's state (ZeRO's first stage). Each replica updates its shard of every
    /// parameter and sends the new values to the others.
    Optimizer,
    /// Also the gradients (its second stage). Those of each microbatch leave at once for the
    /// replicas that use them, so no replica ever has all of them.
    Gradients,
    /// Also the parameters (its third stage). A replica has all parameters of a stage only while it
    /// takes microbatches through it.
    Parameters,
}

impl Sharding {
    /// Every value, with its name in run files.
    pub const NAMES: [(&'static str, Sharding); 3] = [
        ("optimizer", Sharding::Optimizer),
        ("gradients", Sharding::Gradients),
        ("parameters", Sharding::Parameters),
    ];

    /// Whether gradients leave with each microbatch, instead of once with the last.
    pub fn shards_gradients(self) -> bool {
        match self {
            Sharding::Optimizer => false,
            Sharding::Gradients | Sharding::Parameters => true,
        }
    }

    /// Whether parameters are gathered before use, instead of after the update.
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

/// The shard of a replica.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct ShardId {
    /// The number of the replica.
    pub replica: u16,
    /// The number of shards.
    pub replicas: u16,
}
