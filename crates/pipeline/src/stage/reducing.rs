//! How the replicas of a stage come to the sum of their gradients.
//!
//! What a replica's microbatches came to is handed out by the compute thread, bucket by bucket. Each part goes to the
//! replica whose shard it is in, which sums what all have sent, and gives the sum to all. So where each replica has taken a
//! whole branch every byte goes to and fro once, as in a ring, but the sum is taken in the order of the
//! [tree](crate::replicas::Tree), which a ring would not do.
//!
//! Where the replicas share out the optimizer's state, the sum stays where it is taken, and what goes to all is what the
//! optimizer makes of the parameters there.
//!
//! Where they share out the gradients, too, each microbatch's leave as soon as they are there, and are added up where they
//! come together: two at a time, as soon as two neighbours in the tree are there.
//!
//! Where the tree's order is not wanted, or is lost because what travels is compressed, a replica first adds up all that its
//! microbatches came to, and sends that. Whoever sums what is compressed gives the compressed sum to itself, too, so that all
//! have the same.

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

/// A stage of this worker that others have, too.
pub(super) struct ReplicaGroup {
    /// The replicas.
    workers: Vec<WorkerId>,
    /// Which of them this worker is; one more than there are where it follows.
    me: usize,
    /// Workers that follow them.
    followers: Vec<WorkerId>,
    /// For every bucket and replica how many slices its shard has.
    slices: Vec<Vec<usize>>,
    /// For every bucket whether each replica updates its shard alone.
    sharded: Vec<bool>,
    /// Whether gradients leave with each microbatch.
    scatters: bool,
    /// Whether parameters are gathered before they are used.
    gathers_first: bool,
    /// Whether batch norms tell what they saw.
    statistics: bool,
}

impl ReplicaGroup {
    /// The replica groups of a worker's stages; none for a stage that it has alone.
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
            let scatters = sharding.is_some_and(Sharding::scatters) && sharded.contains(&true);
            let gathers_first = sharding.is_some_and(Sharding::gathers_first) && sharded.contains(&true);
            let slices = buckets.iter().map(|b| (0..replicas).map(|r| shard(b, r, replicas).len()).collect());
            let statistics = spec.is_trained() && keeps_statistics(spec);
            let slices = slices.collect();
            let group = ReplicaGroup { me, followers, slices, sharded, scatters, gathers_first, statistics, workers };
            Some((spec.stage, group))
        };
        stages.iter().filter_map(group).collect()
    }

    /// How many replicas there are.
    pub(super) fn replicas(&self) -> u16 {
        self.workers.len() as u16
    }

    /// Whether gradients leave with each microbatch, rather than once with the last.
    pub(super) fn scatters(&self) -> bool {
        self.scatters
    }

    /// Whether each replica updates a part of the parameters alone.
    pub(super) fn is_sharded(&self) -> bool {
        self.sharded.contains(&true)
    }

    /// Which of the replicas this is, where there are others.
    pub(super) fn rank(&self) -> Option<ShardId> {
        let rank = ShardId { replica: self.me as u16, replicas: self.replicas() };
        (self.me < self.workers.len() && self.workers.len() > 1).then_some(rank)
    }

    /// Whether other workers follow.
    pub(super) fn is_followed(&self) -> bool {
        !self.followers.is_empty() || self.me >= self.workers.len()
    }

    /// Whether parameters are gathered before they are used, and not after they were updated.
    pub(super) fn gathers_first(&self) -> bool {
        self.gathers_first
    }

    /// Whether the sum of a replica's shard is used here and nowhere else.
    fn updates_alone(&self, bucket: u32, replica: usize) -> bool {
        replica == self.me && self.sharded.get(bucket as usize) == Some(&true)
    }

    /// Which part that is here, where it is one.
    pub(super) fn shard_id(&self) -> Option<ShardId> {
        self.is_sharded().then_some(ShardId { replica: self.me as u16, replicas: self.replicas() })
    }

    /// What the other replicas update.
    pub(super) fn updates(&self) -> impl Iterator<Item = Item> + '_ {
        let sharded = self.slices.iter().zip(&self.sharded).enumerate().filter(|(_, (_, sharded))| **sharded);
        sharded.flat_map(|(bucket, (slices, _))| {
            let others = slices.iter().enumerate().filter(|(replica, slices)| *replica != self.me && **slices > 0);
            others.map(move |(replica, _)| Item::Updated { bucket: bucket as u32, replica })
        })
    }

    /// The same, as the task takes it.
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

    /// Whether the replicas send such a thing, with so many tensors.
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

/// What a sum was asked for.
pub(super) struct Asked {
    /// By which command.
    id: u64,
    stage: StageId,
    bucket: u32,
    /// Whose shard it is of.
    replica: usize,
    /// Set where it is to be added to others here: as this node.
    node: Option<Node>,
}

impl Asked {
    /// Whether it is of this command's round.
    pub(super) fn is_for(&self, id: u64) -> bool {
        self.id == id
    }
}

/// How far a round has come with the gradients of one stage.
pub(super) struct Reducing {
    /// For every replica the sums that it hands over.
    nodes: Vec<Vec<Node>>,
    /// For every bucket the sums that are to be added up here, each with the replica it is from; none once they are.
    left: Vec<Vec<(Node, usize)>>,
    /// The compute threads sum among themselves, and nothing is added up here.
    collective: bool,
}

/// Sums of a bucket that can be added up now, each with the replica it is from.
struct Ready {
    sums: Vec<(Node, usize)>,
    /// What they come to, where that is not the sum of all.
    node: Option<Node>,
}

impl Reducing {
    pub(super) fn new(stage: StageId, group: &ReplicaGroup, round: &Round, stage_placement: &StagePlacement) -> Self {
        let taken =
            |worker: &WorkerId| round.microbatch_assignment.taken(stage_placement, stage, *worker, round.microbatches);
        // What was added up first is one sum of each other.
        let most = |replica| if replica == group.me || !round.reduction.adds_up_first() { usize::MAX } else { 1 };
        let of_worker = |(replica, worker)| match group.scatters {
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

    /// What of a bucket can be added up now: all of it, or where gradients leave with each microbatch two neighbours in the
    /// tree, whose sum this replica has then.
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
        if !group.scatters {
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

    /// What has to be here before the round's gradients are whole.
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

    /// What batch norms saw elsewhere, where that is all that comes in frames.
    pub(super) fn take_statistics(
        &self,
        group: &ReplicaGroup,
        take: impl FnMut(Item) -> Vec<Slot>,
    ) -> Option<Vec<Vec<Slot>>> {
        self.collective.then(|| self.statistics(group).map(take).collect())
    }

    /// The same, as the task takes it: the shards of every bucket, and what batch norms saw.
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
    /// Whether the plan has this sender give this stage such a thing.
    pub(super) fn expects_of_replica(&self, from: Peer, stage: StageId, item: Item, tensors: usize) -> bool {
        self.groups.get(&stage).is_some_and(|group| group.expects(from, item, tensors))
    }

    /// Whether the round at work gathers the parameters of a stage more than so many times.
    pub(super) fn gathers_again(&self, stage: StageId, times: u32) -> bool {
        let Some(Job::Round(running)) = &self.job else { return false };
        let gathers = running.round.actions.iter().filter(|action| **action == Action::AllGather { stage });
        gathers.count() > times as usize
    }

    /// The item that a frame of a replica is, by its sender.
    pub(super) fn item_of(&self, from: Peer, stage: StageId, item: impl Fn(usize) -> Item) -> Item {
        // A stranger's is refused by `expects`.
        item(self.groups.get(&stage).and_then(|group| group.replica(from)).unwrap_or(usize::MAX))
    }

    /// The compute thread hands something out while it is at work.
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

    /// Has added up what is here of a bucket.
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

    /// Has what is here of a replica's shard summed: of another's, what this one is to send it; of its own all, or what comes
    /// to this node.
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

    /// Says what becomes of what was lost when sums were compressed.
    pub(super) fn residuals(&mut self, what: Residuals) {
        if !self.groups.is_empty() {
            self.effects.push_back(StageEffect::Residuals(what));
        }
    }

    /// What [`StageEffect::Sum`] asked for is summed.
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

    /// Whether a stage's microbatches tell apart what batch norms see.
    pub(super) fn keeps_apart(round: &Round, spec: &StageSpec) -> bool {
        round.mode == Mode::Train && round.reduction.is_apart() && spec.is_trained()
    }
}
