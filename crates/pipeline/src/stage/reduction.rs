//! The sum of gradients over the replicas of a stage.
//!
//! The compute thread hands out the gradients of a replica's microbatches bucket by bucket. Each
//! part goes to the replica whose shard it is in. That replica sums the parts of all replicas and
//! sends the sum to all. If each replica computed a whole branch of the tree, every byte travels
//! once in each direction, as in a ring all-reduce. Unlike in a ring, the sum follows the order of
//! the [tree](crate::replicas::Tree).
//!
//! If the replicas shard the optimizer state, the sum stays with the replica that computed it. That
//! replica updates its part of the parameters and sends the new values to all.
//!
//! If they shard gradients, too, the gradients of each microbatch leave at once. The receiver adds
//! them two at a time, as soon as two neighbours in the tree have arrived.
//!
//! If the order of the tree is not required, or compression loses it, a replica first sums the
//! gradients of all its microbatches and sends that sum. The replica that sums compressed gradients
//! uses the compressed sum itself, so that all replicas have the same.

use super::context::RoundContext;
use super::inbox::Item;
use super::membership::Membership;
use super::outbox::Outbox;
use super::replica_group::{ReplicaGroup, Shard};
use super::stage_reduction::{Addends, PartialSum, StageReduction};
use crate::effect::{Part, Summing};
use crate::ids::{MicrobatchKey, Slot, StageId, Ticket};
use crate::message::{Failure, Reduction, Round, TensorHead};
use crate::replicas::Node;
use crate::schedule::Action;
use std::collections::BTreeMap;

/// The sums of a round's gradients, for each stage that has replicas.
pub(super) struct RoundReduction {
    batch: u64,
    microbatches: u32,
    order: Reduction,
    stages: BTreeMap<StageId, StageReduction>,
    /// Sums that are computed beside the compute thread.
    pending: BTreeMap<Ticket, PendingSum>,
}

/// One bucket of the gradients of a stage.
#[derive(Copy, Clone)]
pub(super) struct StageBucket {
    pub(super) stage: StageId,
    pub(super) bucket: u32,
}

/// The purpose of a sum.
struct PendingSum {
    of: StageBucket,
    /// The replica whose shard it is.
    replica: usize,
    /// The node of the result, if it is added to others here.
    node: Option<Node>,
}

/// Gradients of one node of the tree, one tensor for each slice.
pub(super) type NodeSum = (Node, Vec<Slot>);

impl RoundReduction {
    pub(super) fn new(round: &Round, membership: &Membership) -> Self {
        let begun = |action: &Action| match *action {
            Action::Reduce { stage } => {
                let group = membership.groups.get(&stage)?;
                Some((stage, StageReduction::new(stage, group, round, &membership.placement)))
            }
            _ => None,
        };
        RoundReduction {
            batch: round.batch,
            microbatches: round.microbatches,
            order: round.reduction,
            stages: round.actions.iter().filter_map(begun).collect(),
            pending: BTreeMap::new(),
        }
    }

    /// The progress of a stage whose gradients are summed over replicas in this round.
    pub(super) fn stage(&self, stage: StageId) -> Option<&StageReduction> {
        self.stages.get(&stage)
    }

    /// Whether no requested sum is missing.
    pub(super) fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }

    /// Whether this round requested a sum.
    pub(super) fn requested(&self, ticket: Ticket) -> bool {
        self.pending.contains_key(&ticket)
    }

    fn key(&self) -> MicrobatchKey {
        MicrobatchKey { batch: self.batch, index: 0 }
    }

    /// The compute thread handed out the sums of a bucket over this replica's microbatches, for the
    /// shard of each replica. Fails if there are more or fewer.
    pub(super) fn on_sums(
        &mut self,
        of: StageBucket,
        shards: Vec<Vec<NodeSum>>,
        context: &mut RoundContext<'_>,
    ) -> Result<(), Failure> {
        let StageBucket { stage, bucket } = of;
        let membership = context.membership;
        let group = membership.groups.get(&stage).filter(|g| g.workers.len() == shards.len());
        let Some(group) = group else {
            let parts = shards.len();
            let slots = shards.into_iter().flatten().flat_map(|(_, slots)| slots).collect();
            context.outbox.drop_slots(slots);
            // The replicas would wait for them forever.
            let problem = format!(
                "gradients of bucket {bucket} in {parts} parts, which is not one for each replica; \
                 please report it"
            );
            return Err(Failure { stage: Some(stage), ..Failure::new(problem) });
        };
        let mut result = Ok(());
        for (replica, sums) in shards.into_iter().enumerate() {
            let is_empty = group.is_empty(Shard { bucket, replica });
            let is_one = sums.len() < 2 && self.order.compress().is_none();
            if self.order.adds_up_first() && replica != group.me && !is_empty && !is_one {
                let sum = PendingSum { of, replica, node: None };
                self.request(sum, sums, group, context.outbox);
                continue;
            }
            for (node, slots) in sums {
                if is_empty {
                    context.outbox.drop_slots(slots);
                } else if replica == group.me {
                    let item = Item::Sum { bucket, node, replica };
                    result = result.and(self.put_own(stage, item, slots, context));
                } else {
                    let head = TensorHead::Sum { batch: self.batch, stage, bucket, node };
                    let to = context.links.to(group.workers[replica], head);
                    context.outbox.send(vec![to], slots);
                }
            }
        }
        result.map(|()| self.add(of, context))
    }

    /// Puts a sum of this worker into its own inbox.
    fn put_own(
        &self,
        stage: StageId,
        item: Item,
        slots: Vec<Slot>,
        context: &mut RoundContext<'_>,
    ) -> Result<(), Failure> {
        let Err((slots, reason)) = context.inbox.put(self.key(), stage, item, slots) else {
            return Ok(());
        };
        context.outbox.drop_slots(slots);
        // The round would wait for it forever.
        reason.map_or(Ok(()), |reason| {
            let failure = Failure::new(format!("own sums of gradients: {reason}"));
            Err(Failure { stage: Some(stage), ..failure })
        })
    }

    /// Requests the sums of a bucket that are possible now.
    pub(super) fn add(&mut self, of: StageBucket, context: &mut RoundContext<'_>) {
        let StageBucket { stage, bucket } = of;
        let Some(group) = context.membership.groups.get(&stage) else { return };
        let key = self.key();
        let item = |PartialSum { node, replica }| Item::Sum { bucket, node, replica };
        let mut possible = Vec::new();
        if let Some(progress) = self.stages.get_mut(&stage) {
            loop {
                let is_here = |sum| context.inbox.has(key, stage, item(sum));
                let addends = progress.addends(bucket, group, self.microbatches, is_here);
                let Some(Addends { sums, node }) = addends else { break };
                let mut take =
                    |sum: PartialSum| (sum.node, context.inbox.take(key, stage, item(sum)));
                possible.push((node, sums.into_iter().map(&mut take).collect()));
            }
        }
        for (node, sums) in possible {
            let sum = PendingSum { of, replica: group.me, node };
            self.request(sum, sums, group, context.outbox);
        }
    }

    /// Requests a sum. Of another replica's shard, it is the sum that this worker sends to that
    /// replica. Of its own shard, it is the sum over all replicas, or of one node.
    fn request(
        &mut self,
        sum: PendingSum,
        sums: Vec<NodeSum>,
        group: &ReplicaGroup,
        outbox: &mut Outbox,
    ) {
        let StageBucket { stage, bucket } = sum.of;
        let stays = group.updates_alone(Shard { bucket, replica: sum.replica });
        let summing = match self.order {
            Reduction::Fast => Summing::InTurn,
            Reduction::Compressed(_) if stays => Summing::InTurn,
            Reduction::Compressed(form) => {
                Summing::Compressed(form, Part { stage, bucket, replica: sum.replica as u16 })
            }
            _ if sum.node.is_some() => Summing::Tree(sums.len() as u32),
            _ => Summing::Tree(self.microbatches),
        };
        // Two neighbours are a tree of their own.
        let sums = match sum.node {
            Some(_) => (0..).zip(sums).map(|(at, (_, slots))| (Node::leaf(at), slots)).collect(),
            None => sums,
        };
        self.pending.insert(outbox.sum(summing, sums), sum);
    }

    /// A requested sum is computed, or could not be.
    pub(super) fn on_summed(
        &mut self,
        ticket: Ticket,
        result: Result<Vec<Slot>, Failure>,
        context: &mut RoundContext<'_>,
    ) -> Result<(), Failure> {
        let Some(PendingSum { of, replica, node }) = self.pending.remove(&ticket) else {
            context.outbox.drop_slots(result.unwrap_or_default());
            return Ok(());
        };
        let StageBucket { stage, bucket } = of;
        let slots = result.map_err(|failure| Failure { stage: Some(stage), ..failure })?;
        let Some(group) = context.membership.groups.get(&stage) else {
            context.outbox.drop_slots(slots);
            return Ok(());
        };
        if let Some(node) = node {
            self.put_own(stage, Item::Sum { bucket, node, replica }, slots, context)?;
            self.add(of, context);
        } else if replica != group.me {
            let node = self.stages.get(&stage).and_then(|progress| progress.first_node(group.me));
            match group.workers.get(replica).zip(node) {
                Some((worker, node)) => {
                    let head = TensorHead::Sum { batch: self.batch, stage, bucket, node };
                    context.outbox.send(vec![context.links.to(*worker, head)], slots);
                }
                None => context.outbox.drop_slots(slots),
            }
        } else if group.updates_alone(Shard { bucket, replica }) {
            self.put_own(stage, Item::Reduced { bucket, replica }, slots, context)?;
        } else {
            // The driver gives the copy for this worker back to the session.
            let head = TensorHead::Reduced { batch: self.batch, stage, bucket };
            let workers = group.workers.iter().chain(&group.followers);
            let to = workers.map(|worker| context.links.to(*worker, head.clone())).collect();
            context.outbox.send(to, slots);
        }
        Ok(())
    }
}
