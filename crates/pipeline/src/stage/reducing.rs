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

use super::inbox::Item;
use super::{Job, StageSession};
use crate::effect::{Destination, Micros, Part, Peer, Residuals, StageEffect, Summing};
use crate::ids::{MicrobatchKey, Slot, StageId, Ticket, WorkerId};
use crate::message::{Failure, Head, Mode, Reduction, Round, MAX_MICROBATCHES};
use crate::plan::StageSpec;
use crate::replicas::{buckets, keeps_statistics, nodes, shard, BucketBytes, Node, ShardId, Sharding, StagePlacement};
use crate::schedule::Action;
use crate::task::HandedOut;
use std::collections::BTreeMap;

/// A stage of this worker that other workers hold, too.
pub(super) struct ReplicaGroup {
    /// The replicas.
    workers: Vec<WorkerId>,
    /// The number of this worker among them. A follower has the number after the last.
    me: usize,
    /// Workers that follow them.
    followers: Vec<WorkerId>,
    /// The number of slices in the shard of every bucket and replica.
    slices: Vec<Vec<usize>>,
    /// Whether each replica updates its shard of the bucket alone, for every bucket.
    sharded: Vec<bool>,
    /// Whether gradients leave with each microbatch.
    shards_gradients: bool,
    /// Whether parameters are gathered before they are used.
    shards_parameters: bool,
    /// Whether replicas exchange the statistics of batch norms.
    statistics: bool,
}

impl ReplicaGroup {
    /// The replica groups of a worker's stages. A stage without replicas has none.
    pub(super) fn of(
        stages: &[StageSpec],
        stage_placement: &StagePlacement,
        followers: &[(StageId, WorkerId)],
        me: WorkerId,
        (bytes, sharding): (BucketBytes, Option<Sharding>),
    ) -> BTreeMap<StageId, ReplicaGroup> {
        let group = |spec: &StageSpec| {
            let workers = stage_placement.of(spec.stage).to_vec();
            let followers: Vec<WorkerId> =
                followers.iter().filter(|(stage, _)| *stage == spec.stage).map(|(_, worker)| *worker).collect();
            if workers.len() + followers.len() < 2 {
                return None;
            }
            let me = workers.iter().position(|w| *w == me).unwrap_or(workers.len());
            let replicas = workers.len() as u16;
            let sharding = sharding.filter(|_| replicas > 1);
            let buckets = buckets(spec, bytes, sharding);
            let sharded: Vec<bool> = buckets.iter().map(|bucket| bucket.sharded).collect();
            let shards_gradients = sharding.is_some_and(Sharding::shards_gradients) && sharded.contains(&true);
            let shards_parameters = sharding.is_some_and(Sharding::shards_parameters) && sharded.contains(&true);
            let slices = buckets.iter().map(|b| (0..replicas).map(|r| shard(b, r, replicas).len()).collect());
            let statistics = spec.is_trained() && keeps_statistics(spec);
            let slices = slices.collect();
            let group = ReplicaGroup {
                me,
                followers,
                slices,
                sharded,
                shards_gradients,
                shards_parameters,
                statistics,
                workers,
            };
            Some((spec.stage, group))
        };
        stages.iter().filter_map(group).collect()
    }

    /// The number of replicas.
    pub(super) fn replicas(&self) -> u16 {
        self.workers.len() as u16
    }

    /// Whether gradients leave with each microbatch, instead of once with the last.
    pub(super) fn shards_gradients(&self) -> bool {
        self.shards_gradients
    }

    /// Whether each replica updates a part of the parameters alone.
    pub(super) fn is_sharded(&self) -> bool {
        self.sharded.contains(&true)
    }

    /// The shard of this replica, if there are others.
    pub(super) fn rank(&self) -> Option<ShardId> {
        let rank = ShardId { replica: self.me as u16, replicas: self.replicas() };
        (self.me < self.workers.len() && self.workers.len() > 1).then_some(rank)
    }

    /// Whether other workers follow.
    pub(super) fn is_followed(&self) -> bool {
        !self.followers.is_empty() || self.me >= self.workers.len()
    }

    /// Whether parameters are gathered before use, instead of after the update.
    pub(super) fn shards_parameters(&self) -> bool {
        self.shards_parameters
    }

    /// Whether only this worker uses the sum of a replica's shard.
    fn updates_alone(&self, bucket: u32, replica: usize) -> bool {
        replica == self.me && self.sharded.get(bucket as usize) == Some(&true)
    }

    /// The part of the parameters on this worker, if it is not all.
    pub(super) fn shard_id(&self) -> Option<ShardId> {
        self.is_sharded().then_some(ShardId { replica: self.me as u16, replicas: self.replicas() })
    }

    /// The parts that the other replicas update.
    pub(super) fn updates(&self) -> impl Iterator<Item = Item> + '_ {
        let sharded = self.slices.iter().zip(&self.sharded).enumerate().filter(|(_, (_, sharded))| **sharded);
        sharded.flat_map(|(bucket, (slices, _))| {
            let others = slices.iter().enumerate().filter(|(replica, slices)| *replica != self.me && **slices > 0);
            others.map(move |(replica, _)| Item::Updated { bucket: bucket as u32, replica })
        })
    }

    /// The same, in the form of the task.
    pub(super) fn take_updates(&self, take: impl FnMut(Item) -> Vec<Slot>) -> Vec<Vec<Vec<Slot>>> {
        self.take_shards(|bucket, replica| Item::Updated { bucket, replica }, take)
    }

    fn take_shards(
        &self,
        item: impl Fn(u32, usize) -> Item,
        mut take: impl FnMut(Item) -> Vec<Slot>,
    ) -> Vec<Vec<Vec<Slot>>> {
        let mut shards = |bucket: usize| {
            let slices = |replica| take(item(bucket as u32, replica));
            (0..self.workers.len()).map(slices).collect()
        };
        (0..self.slices.len()).map(&mut shards).collect()
    }

    fn replica(&self, from: Peer) -> Option<usize> {
        self.workers.iter().position(|w| Peer::Worker(*w) == from)
    }

    fn others(&self) -> impl Iterator<Item = (usize, WorkerId)> + '_ {
        self.workers.iter().copied().enumerate().filter(|(replica, _)| *replica != self.me)
    }

    /// Whether replicas send such an item, with this number of tensors.
    fn expects(&self, from: Peer, item: Item, tensors: usize) -> bool {
        let slices =
            |bucket: u32, replica: usize| self.slices.get(bucket as usize).and_then(|s| s.get(replica)).copied();
        let Some(sender) = self.replica(from) else { return false };
        match item {
            Item::Sum { bucket, node, replica } => {
                let possible = node.level <= MAX_MICROBATCHES.ilog2() && node.index < MAX_MICROBATCHES;
                possible && replica == sender && slices(bucket, self.me) == Some(tensors)
            }
            Item::Reduced { bucket, replica } => {
                let is_whole = self.sharded.get(bucket as usize) == Some(&false);
                is_whole && replica == sender && slices(bucket, sender) == Some(tensors)
            }
            Item::Updated { bucket, replica } => {
                let is_sharded = self.sharded.get(bucket as usize) == Some(&true);
                is_sharded && replica == sender && slices(bucket, sender) == Some(tensors)
            }
            Item::Statistics { replica } => replica == sender && self.statistics,
            _ => false,
        }
    }
}

/// The purpose of a sum.
pub(super) struct Asked {
    /// The command.
    id: u64,
    stage: StageId,
    bucket: u32,
    /// The replica whose shard it is.
    replica: usize,
    /// Set if the sum is added to others here, as this node.
    node: Option<Node>,
}

impl Asked {
    /// Whether it belongs to the round of this command.
    pub(super) fn is_for(&self, id: u64) -> bool {
        self.id == id
    }
}

/// The progress of a round with the gradients of one stage.
pub(super) struct Reducing {
    /// The sums that every replica hands over.
    nodes: Vec<Vec<Node>>,
    /// The sums to add up here, for every bucket, each with its sender. Empty once they are added.
    left: Vec<Vec<(Node, usize)>>,
    /// Whether the compute threads sum by a collective operation, so that nothing is added up here.
    collective: bool,
}

/// Sums of a bucket that can be added now, each with its sender.
struct Ready {
    sums: Vec<(Node, usize)>,
    /// The node of their sum, if it is not the root.
    node: Option<Node>,
}

impl Reducing {
    pub(super) fn new(stage: StageId, group: &ReplicaGroup, round: &Round, stage_placement: &StagePlacement) -> Self {
        let taken =
            |worker: &WorkerId| round.microbatch_assignment.taken(stage_placement, stage, *worker, round.microbatches);
        // With sums per replica, each other replica sends one.
        let most = |replica| if replica == group.me || !round.reduction.adds_up_first() { usize::MAX } else { 1 };
        let of_worker = |(replica, worker)| match group.shards_gradients {
            true => taken(worker).flat_map(|microbatch| nodes(round.microbatches, [microbatch])).collect(),
            false => nodes(round.microbatches, taken(worker)).into_iter().take(most(replica)).collect(),
        };
        let nodes: Vec<Vec<Node>> = group.workers.iter().enumerate().map(of_worker).collect();
        let of_replica = |(replica, nodes): (usize, &Vec<Node>)| nodes.iter().map(|node| (*node, replica)).collect();
        let all: Vec<(Node, usize)> = nodes.iter().enumerate().flat_map::<Vec<_>, _>(of_replica).collect();
        let collective = round.reduction.is_collective();
        let of_bucket = |slices: &Vec<usize>| match collective || slices.get(group.me).is_none_or(|slices| *slices == 0)
        {
            true => Vec::new(),
            false => all.clone(),
        };
        let left = group.slices.iter().map(of_bucket).collect();
        Reducing { nodes, left, collective }
    }

    /// The sums of a bucket that can be added now: all of them, or, if gradients leave with each
    /// microbatch, two neighbours in the tree.
    fn ready(
        &mut self,
        bucket: usize,
        (group, microbatches): (&ReplicaGroup, u32),
        is_here: impl Fn((Node, usize)) -> bool,
    ) -> Option<Ready> {
        let left = self.left.get_mut(bucket).filter(|left| !left.is_empty())?;
        if left.iter().all(|of| is_here(*of)) {
            return Some(Ready { sums: std::mem::take(left), node: None });
        }
        if !group.shards_gradients {
            return None;
        }
        let here: Vec<(Node, usize)> = left.iter().copied().filter(|of| is_here(*of)).collect();
        let neighbour = |of: Node| here.iter().find(|(other, _)| of.is_left_of(*other, microbatches));
        let (first, second) = here.iter().find_map(|of| Some((*of, *neighbour(of.0)?)))?;
        left.retain(|of| *of != first && *of != second);
        let node = first.0.with(microbatches);
        left.push((node, group.me));
        Some(Ready { sums: vec![first, second], node: Some(node) })
    }

    /// The items that must arrive before the round's gradients are complete.
    pub(super) fn needs(&self, group: &ReplicaGroup) -> Vec<Item> {
        let reduced = group.slices.iter().enumerate().filter(|_| !self.collective).flat_map(|(bucket, slices)| {
            let here = move |replica: usize| !group.sharded[bucket] || replica == group.me;
            let owners = slices.iter().enumerate().filter(move |(replica, slices)| **slices > 0 && here(*replica));
            owners.map(move |(replica, _)| Item::Reduced { bucket: bucket as u32, replica })
        });
        reduced.chain(self.statistics(group)).collect()
    }

    fn statistics<'a>(&'a self, group: &'a ReplicaGroup) -> impl Iterator<Item = Item> + 'a {
        let at_work = group.others().filter(|(replica, _)| group.statistics && !self.nodes[*replica].is_empty());
        at_work.map(|(replica, _)| Item::Statistics { replica })
    }

    /// The statistics of batch norms of other replicas, if only these arrive in frames.
    pub(super) fn take_statistics(
        &self,
        group: &ReplicaGroup,
        take: impl FnMut(Item) -> Vec<Slot>,
    ) -> Option<Vec<Vec<Slot>>> {
        self.collective.then(|| self.statistics(group).map(take).collect())
    }

    /// The same, in the form of the task: the shards of every bucket, and the statistics of batch
    /// norms.
    pub(super) fn take(
        &self,
        group: &ReplicaGroup,
        mut take: impl FnMut(Item) -> Vec<Slot>,
    ) -> (Vec<Vec<Vec<Slot>>>, Vec<Vec<Slot>>) {
        let buckets = group.take_shards(|bucket, replica| Item::Reduced { bucket, replica }, &mut take);
        (buckets, self.statistics(group).map(take).collect())
    }
}

impl StageSession {
    /// Whether the plan lets this sender send such an item to this stage.
    pub(super) fn expects_of_replica(&self, from: Peer, stage: StageId, item: Item, tensors: usize) -> bool {
        self.groups.get(&stage).is_some_and(|group| group.expects(from, item, tensors))
    }

    /// Whether the current round gathers the parameters of a stage more than `times` times.
    pub(super) fn gathers_again(&self, stage: StageId, times: u32) -> bool {
        let Some(Job::Round(running)) = &self.job else { return false };
        let gathers = running.round.actions.iter().filter(|action| **action == Action::AllGather { stage });
        gathers.count() > times as usize
    }

    /// The item that a replica's frame carries.
    pub(super) fn item_of(&self, from: Peer, stage: StageId, item: impl Fn(usize) -> Item) -> Item {
        // `expects` refuses other senders.
        item(self.groups.get(&stage).and_then(|group| group.replica(from)).unwrap_or(usize::MAX))
    }

    /// The compute thread hands out a result during a task.
    pub fn on_handed_out(&mut self, now: Micros, handed: HandedOut<Slot>) {
        self.now = now;
        let (id, batch, reduction) = match &self.job {
            Some(Job::Round(running)) if !running.failed => (running.id, running.round.batch, running.round.reduction),
            _ => return self.drop_slots(handed.into_tensors()),
        };
        let key = MicrobatchKey { batch, index: 0 };
        match handed {
            HandedOut::Sums { stage, bucket, shards } => {
                let Some(group) = self.groups.get(&stage).filter(|group| group.workers.len() == shards.len()) else {
                    let slots = shards.into_iter().flatten().flat_map(|(_, slots)| slots).collect();
                    return self.drop_slots(slots);
                };
                let (me, workers) = (group.me, group.workers.clone());
                let slices = group.slices.get(bucket as usize).cloned().unwrap_or_default();
                for (replica, sums) in shards.into_iter().enumerate() {
                    let is_empty = slices.get(replica).is_none_or(|slices| *slices == 0);
                    let is_one = sums.len() < 2 && reduction.compress().is_none();
                    if reduction.adds_up_first() && replica != me && !is_empty && !is_one {
                        self.ask_for_sum((stage, bucket), replica, None, sums);
                        continue;
                    }
                    for (node, slots) in sums {
                        if is_empty {
                            self.drop_slots(slots);
                        } else if replica == me {
                            self.put_own(key, stage, Item::Sum { bucket, node, replica }, slots);
                        } else {
                            let to = self.links.to(workers[replica], Head::Sum { batch, stage, bucket, node });
                            self.effects.push_back(StageEffect::Send { to: vec![to], slots });
                        }
                    }
                }
                self.sum_up(stage, bucket);
            }
            HandedOut::Updated { stage, bucket, slices } => {
                let is_sharded = |group: &&ReplicaGroup| group.sharded.get(bucket as usize) == Some(&true);
                let Some(group) = self.groups.get(&stage).filter(is_sharded).filter(|_| !slices.is_empty()) else {
                    return self.drop_slots(slices);
                };
                let Some(Job::Round(running)) = &self.job else { return self.drop_slots(slices) };
                let visit = running.shared(stage);
                let head = Head::Updated { batch, stage, bucket, visit };
                let to = group.others().map(|(_, worker)| self.links.to(worker, head.clone())).collect();
                self.effects.push_back(StageEffect::Send { to, slots: slices });
            }
            HandedOut::Statistics { stage, tensors } => {
                let Some(group) = self.groups.get(&stage).filter(|group| group.statistics) else {
                    return self.drop_slots(tensors);
                };
                let others = group.others().map(|(_, worker)| worker).chain(group.followers.iter().copied());
                let to = others.map(|worker| self.links.to(worker, Head::Statistics { batch, stage })).collect();
                self.effects.push_back(StageEffect::Send { to, slots: tensors });
            }
            HandedOut::Health(layers) => self.tell_boss(Head::Health { id, layers }),
        }
        self.advance();
    }

    fn put_own(&mut self, key: MicrobatchKey, stage: StageId, item: Item, slots: Vec<Slot>) {
        if let Err((slots, reason)) = self.inbox.put(key, stage, item, slots) {
            self.drop_slots(slots);
            // It would be waited for.
            if let Some((reason, id)) = reason.zip(self.job.as_ref().and_then(Job::id)) {
                self.fail(
                    id,
                    Failure { stage: Some(stage), ..Failure::new(format!("own sums of gradients: {reason}")) },
                );
            }
        }
    }

    /// Requests the sums of a bucket that are possible now.
    pub(super) fn sum_up(&mut self, stage: StageId, bucket: u32) {
        let Some(Job::Round(running)) = &mut self.job else { return };
        let Some(reducing) = running.reducing.get_mut(&stage).filter(|_| !running.failed) else { return };
        let Some(group) = self.groups.get(&stage) else { return };
        let key = MicrobatchKey { batch: running.round.batch, index: 0 };
        let (me, microbatches) = (group.me, running.round.microbatches);
        let item = |(node, replica)| Item::Sum { bucket, node, replica };
        let mut ready = Vec::new();
        loop {
            let is_here = |of| self.inbox.has(key, stage, item(of));
            let found = reducing.ready(bucket as usize, (group, microbatches), is_here);
            let Some(Ready { sums, node }) = found else { break };
            let sums = sums.into_iter().map(|of| (of.0, self.inbox.take(key, stage, item(of)))).collect();
            ready.push((node, sums));
        }
        ready.into_iter().for_each(|(node, sums)| self.ask_for_sum((stage, bucket), me, node, sums));
    }

    /// Requests a sum of a replica's shard. For another replica's shard, the sum that this one
    /// sends to it. For its own shard, the sum of all, or of this node.
    fn ask_for_sum(
        &mut self,
        (stage, bucket): (StageId, u32),
        replica: usize,
        node: Option<Node>,
        sums: Vec<(Node, Vec<Slot>)>,
    ) {
        let Some(Job::Round(running)) = &self.job else { return };
        let stays = self.groups.get(&stage).is_some_and(|group| group.updates_alone(bucket, replica));
        let summing = match running.round.reduction {
            Reduction::Fast => Summing::InTurn,
            Reduction::Compressed(_) if stays => Summing::InTurn,
            Reduction::Compressed(form) => Summing::Compressed(form, Part { stage, bucket, replica: replica as u16 }),
            _ if node.is_some() => Summing::Tree(sums.len() as u32),
            _ => Summing::Tree(running.round.microbatches),
        };
        // Neighbours are a tree of their own.
        let sums = match node {
            Some(_) => (0..).zip(sums).map(|(place, (_, slots))| (Node::leaf(place), slots)).collect(),
            None => sums,
        };
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.sums.insert(ticket, Asked { id: running.id, stage, bucket, replica, node });
        self.effects.push_back(StageEffect::Sum { ticket, summing, sums });
    }

    /// Settles the residuals of compression.
    pub(super) fn residuals(&mut self, what: Residuals) {
        if !self.groups.is_empty() {
            self.effects.push_back(StageEffect::Residuals(what));
        }
    }

    /// The result of a [`StageEffect::Sum`] arrived.
    pub fn on_summed(&mut self, now: Micros, ticket: Ticket, result: Result<Vec<Slot>, Failure>) {
        self.now = now;
        let Some(Asked { id, stage, bucket, replica, node }) = self.sums.remove(&ticket) else { return };
        match result {
            Ok(slots) if !self.is_active(id) => self.drop_slots(slots),
            Err(_) if !self.is_active(id) => {}
            Err(failure) => self.fail(id, Failure { stage: Some(stage), ..failure }),
            Ok(slots) => {
                let Some(Job::Round(running)) = &self.job else { return self.drop_slots(slots) };
                let batch = running.round.batch;
                let Some(group) = self.groups.get(&stage) else { return self.drop_slots(slots) };
                if let Some(node) = node {
                    self.put_own(MicrobatchKey { batch, index: 0 }, stage, Item::Sum { bucket, node, replica }, slots);
                    self.sum_up(stage, bucket);
                    return self.advance();
                }
                if replica != group.me {
                    let node = running.reducing.get(&stage).and_then(|reducing| reducing.nodes.get(group.me)?.first());
                    let to =
                        group.workers.get(replica).zip(node).map(|(worker, node)| {
                            self.links.to(*worker, Head::Sum { batch, stage, bucket, node: *node })
                        });
                    match to {
                        Some(to) => self.effects.push_back(StageEffect::Send { to: vec![to], slots }),
                        None => self.drop_slots(slots),
                    }
                    return self.advance();
                }
                if group.updates_alone(bucket, replica) {
                    let key = MicrobatchKey { batch, index: 0 };
                    self.put_own(key, stage, Item::Reduced { bucket, replica }, slots);
                    return self.advance();
                }
                let head = Head::Reduced { batch, stage, bucket };
                let followers = self.groups.get(&stage).map_or(&[][..], |group| &group.followers);
                let workers = self.stage_placement.of(stage).iter().chain(followers);
                let to = workers.map(|worker| match Some(*worker) == self.worker {
                    // The driver gives it back to this session.
                    true => Destination { peer: Peer::Worker(*worker), route: None, head: head.clone() },
                    false => self.links.to(*worker, head.clone()),
                });
                let to = to.collect();
                self.effects.push_back(StageEffect::Send { to, slots });
                self.advance();
            }
        }
    }

    /// Whether the statistics of batch norms are kept apart for each microbatch of a stage.
    pub(super) fn keeps_apart(round: &Round, spec: &StageSpec) -> bool {
        round.mode == Mode::Train && round.reduction.is_apart() && spec.is_trained()
    }
}
