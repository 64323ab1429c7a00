//! The progress of a round with the gradients of one stage that has replicas.

use super::inbox::Item;
use super::replica_group::{ReplicaGroup, Shard};
use crate::ids::{Slot, StageId};
use crate::message::Round;
use crate::replicas::{nodes, Node, StagePlacement};

/// The sums of gradients that replicas exchange, and those that this worker has still to add.
pub(super) struct StageReduction {
    /// The sums that every replica sends.
    nodes: Vec<Vec<Node>>,
    /// The sums to add here, for every bucket. Empty once they are added.
    left: Vec<Vec<PartialSum>>,
    /// Whether the compute threads sum by a collective operation, so that nothing is added here.
    collective: bool,
}

/// A sum over some of the microbatches.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(super) struct PartialSum {
    pub(super) node: Node,
    /// The replica that sends it.
    pub(super) replica: usize,
}

/// Sums of a bucket that can be added now.
pub(super) struct Addends {
    pub(super) sums: Vec<PartialSum>,
    /// The node of the result, if it is not the root.
    pub(super) node: Option<Node>,
}

impl StageReduction {
    pub(super) fn new(
        stage: StageId,
        group: &ReplicaGroup,
        round: &Round,
        placement: &StagePlacement,
    ) -> Self {
        let nodes_of = |(replica, worker)| {
            let taken =
                round.microbatch_assignment.taken(placement, stage, worker, round.microbatches);
            if group.shards_gradients() {
                let leaf = |microbatch| nodes(round.microbatches, [microbatch]);
                return taken.flat_map(leaf).collect();
            }
            // With sums per replica, each other replica sends one.
            let is_one = replica != group.me && round.reduction.adds_up_first();
            let most = if is_one { 1 } else { usize::MAX };
            nodes(round.microbatches, taken).into_iter().take(most).collect()
        };
        let nodes: Vec<Vec<Node>> =
            group.workers.iter().copied().enumerate().map(nodes_of).collect();
        let sums_of = |(replica, nodes): (usize, &Vec<Node>)| -> Vec<PartialSum> {
            nodes.iter().map(|node| PartialSum { node: *node, replica }).collect()
        };
        let all: Vec<PartialSum> = nodes.iter().enumerate().flat_map(sums_of).collect();
        let collective = round.reduction.is_collective();
        let left = (0..group.buckets() as u32).map(|bucket| {
            let adds_nothing = collective || group.is_empty(Shard { bucket, replica: group.me });
            if adds_nothing {
                Vec::new()
            } else {
                all.clone()
            }
        });
        StageReduction { left: left.collect(), nodes, collective }
    }

    /// The first node of the sums that a replica sends.
    pub(super) fn first_node(&self, replica: usize) -> Option<Node> {
        self.nodes.get(replica)?.first().copied()
    }

    /// The sums of a bucket that can be added now: all of them, or, if gradients leave with each
    /// microbatch, two neighbours in the tree.
    pub(super) fn addends(
        &mut self,
        bucket: u32,
        group: &ReplicaGroup,
        microbatches: u32,
        is_here: impl Fn(PartialSum) -> bool,
    ) -> Option<Addends> {
        let left = self.left.get_mut(bucket as usize).filter(|left| !left.is_empty())?;
        if left.iter().all(|sum| is_here(*sum)) {
            return Some(Addends { sums: std::mem::take(left), node: None });
        }
        if !group.shards_gradients() {
            return None;
        }
        let here: Vec<PartialSum> = left.iter().copied().filter(|sum| is_here(*sum)).collect();
        let right_of = |sum: &PartialSum| {
            here.iter().find(|other| sum.node.is_left_of(other.node, microbatches))
        };
        let (first, second) = here.iter().find_map(|sum| Some((*sum, *right_of(sum)?)))?;
        left.retain(|sum| *sum != first && *sum != second);
        let node = first.node.with(microbatches);
        left.push(PartialSum { node, replica: group.me });
        Some(Addends { sums: vec![first, second], node: Some(node) })
    }

    /// The items that must arrive before the round's gradients are complete.
    pub(super) fn needs(&self, group: &ReplicaGroup) -> Vec<Item> {
        let is_used =
            |shard: &Shard| !group.shards_bucket(shard.bucket) || shard.replica == group.me;
        let shards = group.shards().filter(|_| !self.collective).filter(is_used);
        let reduced = shards.map(|Shard { bucket, replica }| Item::Reduced { bucket, replica });
        reduced.chain(self.statistics(group)).collect()
    }

    fn statistics<'a>(&'a self, group: &'a ReplicaGroup) -> impl Iterator<Item = Item> + 'a {
        let sends = |replica: &usize| group.statistics && !self.nodes[*replica].is_empty();
        group.others().filter(sends).map(|replica| Item::Statistics { replica })
    }

    /// Whether the compute threads sum by a collective operation.
    pub(super) fn is_collective(&self) -> bool {
        self.collective
    }

    /// The statistics of batch norms of other replicas, in the form of the task.
    pub(super) fn take_statistics(
        &self,
        group: &ReplicaGroup,
        take: impl FnMut(Item) -> Vec<Slot>,
    ) -> Vec<Vec<Slot>> {
        self.statistics(group).map(take).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{membership, round};
    use super::*;
    use crate::message::Reduction;
    use crate::replicas::{MicrobatchAssignment, Sharding};

    const STAGE: StageId = StageId(0);

    /// The first of two replicas, which takes two of four microbatches.
    fn began(sharding: Option<Sharding>, reduction: Reduction) -> (ReplicaGroup, StageReduction) {
        let mut membership = membership(&[2, 1], 0, sharding);
        let mut round = round(Vec::new());
        round.reduction = reduction;
        round.microbatch_assignment = MicrobatchAssignment::even(&membership.placement, 4);
        let group = membership.groups.remove(&STAGE).expect("a stage with replicas");
        let progress = StageReduction::new(STAGE, &group, &round, &membership.placement);
        (group, progress)
    }

    #[test]
    fn all_sums_of_a_bucket_are_added_at_once() {
        let (group, mut progress) = began(None, Reduction::Tree);
        assert!(progress.addends(0, &group, 4, |sum| sum.replica == 0).is_none());
        let addends = progress.addends(0, &group, 4, |_| true).expect("all are here");
        let replicas: Vec<usize> = addends.sums.iter().map(|sum| sum.replica).collect();
        assert_eq!((replicas, addends.node), (vec![0, 1], None), "a branch of each replica");
        assert!(progress.addends(0, &group, 4, |_| true).is_none(), "they are added");
    }

    #[test]
    fn two_neighbours_are_added_early_if_gradients_are_sharded() {
        let (group, mut progress) = began(Some(Sharding::Gradients), Reduction::Tree);
        let is_first_half = |sum: PartialSum| sum.node.level == 0 && sum.node.index < 2;
        let addends = progress.addends(0, &group, 4, is_first_half).expect("two neighbours");
        let leaves: Vec<Node> = addends.sums.iter().map(|sum| sum.node).collect();
        assert_eq!(leaves, [Node::leaf(0), Node::leaf(1)]);
        assert_eq!(addends.node, Some(Node::leaf(0).with(4)));
        assert!(progress.addends(0, &group, 4, is_first_half).is_none());
        let addends = progress.addends(0, &group, 4, |_| true).expect("the rest");
        assert_eq!((addends.sums.len(), addends.node), (3, None));
    }

    #[test]
    fn a_collective_operation_leaves_nothing_to_add() {
        let (group, mut progress) = began(None, Reduction::Collective);
        assert!(progress.addends(0, &group, 4, |_| true).is_none());
        assert!(progress.needs(&group).is_empty());
    }
}
