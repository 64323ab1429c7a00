//! Requests for snapshots that workers store for each other.

use crate::ids::{StageId, WorkerId};
use crate::message::Command;
use crate::peer_snapshot::{
    PartToMake, SendSnapshot, SnapshotId, SnapshotNote, StoreSnapshot, StoredTensor,
};
use crate::plan::Plan;
use std::collections::{BTreeMap, BTreeSet};

/// A snapshot that workers store for each other, or the part of it that belongs to one stage.
#[derive(Clone, PartialEq, Debug)]
pub struct SnapshotRequest {
    /// The snapshot.
    pub snapshot: SnapshotId,
    /// The note that is stored with it.
    pub note: SnapshotNote,
    /// The last complete snapshot. Older ones are dropped.
    pub last_complete: Option<SnapshotId>,
    /// The stage. `None` is every stage.
    pub stage: Option<StageId>,
    /// The number of parts that were requested before.
    pub before: u32,
    /// The worker that also stores the parts of each worker. The default is the next worker. A
    /// neighbour with the same state makes the part itself.
    pub neighbours: BTreeMap<WorkerId, WorkerId>,
}

impl SnapshotRequest {
    /// The holders of each part.
    pub(super) fn parts(&self, plan: &Plan) -> BTreeMap<u32, PartHolders> {
        let members = plan.stage_placement.members();
        let next = |worker: WorkerId| {
            let after = members.iter().find(|other| **other > worker).or(members.first());
            after.copied().unwrap_or(worker)
        };
        let holders = |owner| {
            let other = self.neighbours.get(&owner).copied().unwrap_or_else(|| next(owner));
            PartHolders { owner, other, sends: !has_same_state(plan, owner, other) }
        };
        (self.before..)
            .zip(state_senders(plan, self.stage, true).into_iter().map(holders))
            .collect()
    }
}

/// The two workers that store a part of a snapshot.
#[derive(Copy, Clone)]
pub(super) struct PartHolders {
    /// The worker whose state it is.
    pub(super) owner: WorkerId,
    /// The neighbour that stores it, too.
    pub(super) other: WorkerId,
    /// Whether the owner sends it, because the neighbour does not have the same state.
    pub(super) sends: bool,
}

impl PartHolders {
    /// The copy that a worker makes of this part, if any.
    fn make(self, part: u32, worker: WorkerId) -> Option<PartToMake> {
        let PartHolders { owner: of, other, sends } = self;
        let makes = worker == of || (!sends && worker == other);
        makes.then_some(PartToMake { part, of, to: sends.then_some(other) })
    }
}

/// Whether another worker is a replica of exactly the stages that this worker reports for, so that
/// both have the same state.
pub fn has_same_state(plan: &Plan, speaker: WorkerId, other: WorkerId) -> bool {
    let both =
        |workers: &[WorkerId]| (workers.first() == Some(&speaker)) == workers.contains(&other);
    // Replicas that shard the optimizer state have different parts of it.
    speaker != other
        && plan.sharding.is_none()
        && plan.stage_placement.iter().all(|(_, workers)| both(workers))
}

/// The commands that let workers store a snapshot for each other.
pub(super) fn store_snapshot(
    request: SnapshotRequest,
    plan: &Plan,
) -> impl Fn(WorkerId) -> Command {
    let parts = request.parts(plan);
    let SnapshotRequest { snapshot, note, last_complete, stage, .. } = request;
    move |worker| {
        let comes = |holders: &PartHolders| {
            holders.sends && holders.other == worker && holders.owner != worker
        };
        let of_others = parts.iter().filter(|(_, holders)| comes(holders));
        Command::StoreSnapshot(Box::new(StoreSnapshot {
            snapshot,
            note: note.clone(),
            last_complete,
            stage,
            make: parts.iter().find_map(|(part, holders)| holders.make(*part, worker)),
            receive: of_others.map(|(part, holders)| (*part, holders.owner)).collect(),
        }))
    }
}

/// The commands that let workers load a snapshot, and send each other the stored parts of it.
pub(super) fn restore_snapshot<'a>(
    snapshot: SnapshotId,
    tensors: &'a [StoredTensor],
    plan: &'a Plan,
) -> impl Fn(WorkerId) -> Command + 'a {
    move |worker| {
        let arrives = |tensor: &&StoredTensor| plan.stage_placement.has(tensor.stage, worker);
        let is_first =
            |tensor: &&StoredTensor| plan.stage_placement.first(tensor.stage) == Some(worker);
        let senders: BTreeSet<WorkerId> =
            tensors.iter().filter(is_first).map(|tensor| tensor.holder).collect();
        let stored = tensors.iter().filter(|tensor| tensor.holder == worker);
        let stored = stored.map(|tensor| (tensor.part, tensor.name.clone(), tensor.stage));
        Command::RestoreSnapshot {
            tensors: tensors.iter().filter(arrives).count() as u32,
            senders: senders.into_iter().collect(),
            send: Box::new(SendSnapshot { snapshot, tensors: stored.collect() }),
        }
    }
}

/// The workers that send parameters: the first replica of each stage, or of this stage. If replicas
/// shard the optimizer state and that is sent, too, every replica sends its shard.
pub fn state_senders(plan: &Plan, only: Option<StageId>, optimizer: bool) -> BTreeSet<WorkerId> {
    let wanted =
        plan.stage_placement.iter().filter(|(stage, _)| only.is_none_or(|only| only == *stage));
    let most = if optimizer && plan.sharding.is_some() { usize::MAX } else { 1 };
    wanted.flat_map(|(_, workers)| workers.iter().take(most)).copied().collect()
}
