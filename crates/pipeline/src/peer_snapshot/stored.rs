//! Snapshots as messages name them: requests to store and to send parts, and what a worker stores.

use crate::ids::{StageId, WorkerId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The most snapshots of a run that a worker stores: the last one and the next one.
pub const MAX_SNAPSHOTS: usize = 2;

/// Identifies a snapshot.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct SnapshotId {
    /// The number of the run, drawn when it began.
    pub run: u64,
    /// The training step after which it was taken.
    pub step: u64,
    /// The number of the membership, drawn when it began. A membership that repeats a step may cut
    /// the model differently, and then has other parts.
    pub membership: u64,
}

/// The note of the boss with a snapshot, so that another boss can resume from it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SnapshotNote {
    /// The number of parts of the complete snapshot.
    pub parts: u32,
    /// The rest of the run's state. Workers do not read it.
    pub text: String,
}

/// Asks a worker to copy state, store it, and exchange snapshots with other workers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct StoreSnapshot {
    /// The snapshot.
    pub snapshot: SnapshotId,
    /// The note that is stored with it.
    pub note: SnapshotNote,
    /// The last complete snapshot. All others but the one being made are dropped.
    pub last_complete: Option<SnapshotId>,
    /// The stage. `None` is every stage.
    pub stage: Option<StageId>,
    /// The part that this worker copies, if it does.
    pub make: Option<PartToMake>,
    /// The parts that it stores for others, with their senders.
    pub receive: BTreeMap<u32, WorkerId>,
}

/// A part of a snapshot that a worker makes.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PartToMake {
    /// Its number.
    pub part: u32,
    /// The worker whose state it is: this worker, or the first replica of its stages, which has the
    /// same state.
    pub of: WorkerId,
    /// The neighbour to send it to. `None` if the neighbour makes the part itself.
    pub to: Option<WorkerId>,
}

/// The parts of a snapshot that a worker stores.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PeerSnapshot {
    /// The snapshot.
    pub snapshot: SnapshotId,
    /// The boss's note.
    pub note: SnapshotNote,
    /// The [names](crate::StateName) of the tensors of each part that is here.
    pub parts: BTreeMap<u32, BTreeSet<String>>,
}

/// A tensor of a snapshot, with the worker that stores it and the stage that receives it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredTensor {
    /// The worker that stores it.
    pub holder: WorkerId,
    /// The part that it belongs to.
    pub part: u32,
    /// Its name.
    pub name: String,
    /// The stage whose replicas receive it.
    pub stage: StageId,
}

/// The tensors of a snapshot that a worker sends: part, name, and the stage whose replicas receive
/// it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SendSnapshot {
    /// The snapshot.
    pub snapshot: SnapshotId,
    /// Which tensors.
    pub tensors: Vec<(u32, String, StageId)>,
}
