//! Requests for snapshots that workers store for each other.

use crate::ids::{StageId, WorkerId};
use crate::message::Command;
use crate::peer_snapshot::{
    holders_of_parts, PartHolders, PartNumbers, SendSnapshot, SnapshotId, SnapshotNote,
    StoreSnapshot, StoredTensor,
};
use crate::plan::Plan;
use std::collections::{BTreeMap, BTreeSet};

/// A snapshot that workers store for each other, or the part of it that belongs to one stage.
#[derive(Clone, PartialEq, Debug)]
pub struct SnapshotRequest {
    /// The snapshot.
    pub snapshot: SnapshotId,
    /// The rest of the run's state, which is stored with it.
    pub text: String,
    /// The last complete snapshot. Older ones are dropped.
    pub last_complete: Option<SnapshotId>,
    /// The stage. `None` is every stage.
    pub stage: Option<StageId>,
    /// The worker that also stores the parts of each worker. The default is the next worker. A
    /// neighbour with the same state makes the part itself.
    pub neighbours: BTreeMap<WorkerId, WorkerId>,
}

impl SnapshotRequest {
    /// The holders of each part.
    pub(super) fn parts(&self, plan: &Plan) -> BTreeMap<u32, PartHolders> {
        holders_of_parts(plan, self.stage, &self.neighbours)
    }
}

/// The commands that let workers store a snapshot for each other.
pub(super) fn store_snapshot(
    request: SnapshotRequest,
    plan: &Plan,
) -> impl Fn(WorkerId) -> Command {
    let parts = request.parts(plan);
    let SnapshotRequest { snapshot, text, last_complete, stage, .. } = request;
    let note = SnapshotNote { parts: PartNumbers::of(plan, stage).total, text };
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
