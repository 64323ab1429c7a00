//! The replicas of one stage, as one of them sees it.

use super::inbox::Item;
use crate::effect::Peer;
use crate::ids::{Slot, WorkerId};
use crate::message::MAX_MICROBATCHES;
use crate::plan::StageSpec;
use crate::replicas::{buckets, keeps_statistics, shard, BucketBytes, ShardId, Sharding};

/// A stage of this worker that other workers hold or follow, too.
pub(super) struct ReplicaGroup {
    /// The replicas.
    pub(super) workers: Vec<WorkerId>,
    /// The number of this worker among them. A follower has the number after the last.
    pub(super) me: usize,
    /// Workers that follow them.
    pub(super) followers: Vec<WorkerId>,
    /// The number of slices in the shard of every bucket and replica.
    slices: Vec<Vec<usize>>,
    /// Whether each replica updates its shard of the bucket alone, for every bucket.
    sharded: Vec<bool>,
    /// Whether gradients leave with each microbatch.
    shards_gradients: bool,
    /// Whether parameters are gathered before they are used.
    shards_parameters: bool,
    /// Whether replicas exchange the statistics of batch norms.
    pub(super) statistics: bool,
}

/// A replica's shard of a bucket.
#[derive(Copy, Clone)]
pub(super) struct Shard {
    pub(super) bucket: u32,
    pub(super) replica: usize,
}

impl ReplicaGroup {
    /// The group of a stage, or `None` for a stage that no other worker holds or follows.
    pub(super) fn new(
        spec: &StageSpec,
        workers: &[WorkerId],
        followers: Vec<WorkerId>,
        me: WorkerId,
        bytes: BucketBytes,
        sharding: Option<Sharding>,
    ) -> Option<ReplicaGroup> {
        if workers.len() + followers.len() < 2 {
            return None;
        }
        let replicas = workers.len() as u16;
        let sharding = sharding.filter(|_| replicas > 1);
        let buckets = buckets(spec, bytes, sharding);
        let sharded: Vec<bool> = buckets.iter().map(|bucket| bucket.sharded).collect();
        let is_sharded = sharded.contains(&true);
        let slices = buckets
            .iter()
            .map(|bucket| (0..replicas).map(|r| shard(bucket, r, replicas).len()).collect());
        Some(ReplicaGroup {
            workers: workers.to_vec(),
            me: workers.iter().position(|worker| *worker == me).unwrap_or(workers.len()),
            followers,
            slices: slices.collect(),
            sharded,
            shards_gradients: is_sharded && sharding.is_some_and(Sharding::shards_gradients),
            shards_parameters: is_sharded && sharding.is_some_and(Sharding::shards_parameters),
            statistics: keeps_statistics(spec),
        })
    }

    /// The number of replicas.
    pub(super) fn replicas(&self) -> u16 {
        self.workers.len() as u16
    }

    /// Whether gradients leave with each microbatch, instead of once with the last.
    pub(super) fn shards_gradients(&self) -> bool {
        self.shards_gradients
    }

    /// Whether parameters are gathered before use, instead of after the update.
    pub(super) fn shards_parameters(&self) -> bool {
        self.shards_parameters
    }

    /// Whether each replica updates a part of the parameters alone.
    pub(super) fn is_sharded(&self) -> bool {
        self.sharded.contains(&true)
    }

    /// Whether each replica updates its shard of this bucket alone.
    pub(super) fn shards_bucket(&self, bucket: u32) -> bool {
        self.sharded.get(bucket as usize) == Some(&true)
    }

    /// Whether only this worker uses the sum of a shard.
    pub(super) fn updates_alone(&self, shard: Shard) -> bool {
        shard.replica == self.me && self.shards_bucket(shard.bucket)
    }

    /// The shard of this replica, if there are others.
    pub(super) fn rank(&self) -> Option<ShardId> {
        let rank = ShardId { replica: self.me as u16, replicas: self.replicas() };
        (self.me < self.workers.len() && self.workers.len() > 1).then_some(rank)
    }

    /// The part of the parameters on this worker, if it is not all.
    pub(super) fn shard_id(&self) -> Option<ShardId> {
        self.is_sharded().then_some(ShardId { replica: self.me as u16, replicas: self.replicas() })
    }

    /// Whether other workers follow, or this worker does.
    pub(super) fn is_followed(&self) -> bool {
        !self.followers.is_empty() || self.me >= self.workers.len()
    }

    /// The number of the replica at a peer.
    pub(super) fn replica(&self, from: Peer) -> Option<usize> {
        self.workers.iter().position(|w| Peer::Worker(*w) == from)
    }

    /// The numbers of the other replicas.
    pub(super) fn others(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.workers.len()).filter(|replica| *replica != self.me)
    }

    /// The workers of the other replicas.
    pub(super) fn other_workers(&self) -> impl Iterator<Item = WorkerId> + '_ {
        self.others().map(|replica| self.workers[replica])
    }

    /// The number of buckets.
    pub(super) fn buckets(&self) -> usize {
        self.slices.len()
    }

    /// The number of slices in a shard. `None` if there is no such shard.
    pub(super) fn slices(&self, shard: Shard) -> Option<usize> {
        self.slices.get(shard.bucket as usize)?.get(shard.replica).copied()
    }

    /// Whether a shard has no slice, or does not exist.
    pub(super) fn is_empty(&self, shard: Shard) -> bool {
        self.slices(shard).is_none_or(|slices| slices == 0)
    }

    /// The shards that are not empty, by bucket and replica.
    pub(super) fn shards(&self) -> impl Iterator<Item = Shard> + '_ {
        let of_bucket = |bucket: usize| {
            (0..self.workers.len()).map(move |replica| Shard { bucket: bucket as u32, replica })
        };
        (0..self.slices.len()).flat_map(of_bucket).filter(|shard| !self.is_empty(*shard))
    }

    /// The shards that the other replicas update and send.
    pub(super) fn updates(&self) -> impl Iterator<Item = Item> + '_ {
        self.shards()
            .filter(|shard| shard.replica != self.me && self.shards_bucket(shard.bucket))
            .map(|Shard { bucket, replica }| Item::Updated { bucket, replica })
    }

    /// The tensors of every bucket and replica.
    pub(super) fn take_shards(
        &self,
        mut take: impl FnMut(Shard) -> Vec<Slot>,
    ) -> Vec<Vec<Vec<Slot>>> {
        let mut of_bucket = |bucket: usize| {
            let shard = |replica| Shard { bucket: bucket as u32, replica };
            (0..self.workers.len()).map(|replica| take(shard(replica))).collect()
        };
        (0..self.slices.len()).map(&mut of_bucket).collect()
    }

    /// Whether this peer sends such an item with this number of tensors.
    pub(super) fn expects(&self, from: Peer, item: Item, tensors: usize) -> bool {
        let Some(sender) = self.replica(from) else { return false };
        let has_slices = |bucket, replica| self.slices(Shard { bucket, replica }) == Some(tensors);
        let is_whole = |bucket: u32| self.sharded.get(bucket as usize) == Some(&false);
        match item {
            Item::Sum { bucket, node, replica } => {
                let possible =
                    node.level <= MAX_MICROBATCHES.ilog2() && node.index < MAX_MICROBATCHES;
                possible && replica == sender && has_slices(bucket, self.me)
            }
            Item::Reduced { bucket, replica } => {
                is_whole(bucket) && replica == sender && has_slices(bucket, sender)
            }
            Item::Updated { bucket, replica } => {
                self.shards_bucket(bucket) && replica == sender && has_slices(bucket, sender)
            }
            Item::Statistics { replica } => replica == sender && self.statistics,
            _ => false,
        }
    }
}
