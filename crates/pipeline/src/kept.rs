//! Copies of a run's state that workers keep for each other.
//!
//! Between two steps each worker copies what nobody before it has of the state, keeps that copy, and sends it to a neighbour,
//! which keeps it, too; one that is a replica of the same stages has the same state, and makes that copy itself. So the state of
//! that step is there as long as of each worker it or its neighbour is, whatever the next membership looks like: copies stay
//! with the worker's process when the run that made them has ended.

use crate::ids::{StageId, WorkerId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A worker keeps no more copies of a run than the last and the next.
pub const MOST_COPIES: usize = 2;

/// Names a copy.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct SnapshotId {
    /// Of which run, by the number that it drew when it began.
    pub run: u64,
    /// After which step.
    pub step: u64,
    /// By which membership, which it drew: one that does a step again may have cut the model otherwise, and has other parts.
    pub membership: u64,
}

/// What a boss says of a copy, so that one that knows nothing of it can go on with it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SnapshotNote {
    /// How many parts make it whole.
    pub parts: u32,
    /// What else goes on, which workers do not look at.
    pub text: String,
}

/// Copy state, keep it, and exchange copies with other workers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Keep {
    /// Which copy it is part of.
    pub copy: SnapshotId,
    /// What is kept with it.
    pub note: SnapshotNote,
    /// The last copy that is whole. All that are neither this nor the one that is being made are let go.
    pub last: Option<SnapshotId>,
    /// Of which stage; nothing for all.
    pub stage: Option<StageId>,
    /// The part that this worker copies, if it does.
    pub give: Option<Give>,
    /// The parts that it keeps for others.
    pub take: BTreeMap<u32, WorkerId>,
}

/// A part of a copy that a worker makes.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Give {
    /// Its number.
    pub part: u32,
    /// Whose state it is: the worker's own, or that of the first replica of its stages, which has the same.
    pub of: WorkerId,
    /// To whom it goes, too; nobody where that one makes it for itself.
    pub to: Option<WorkerId>,
}

/// What a worker keeps of a copy.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PeerSnapshot {
    /// Which copy.
    pub copy: SnapshotId,
    /// What the boss said of it.
    pub note: SnapshotNote,
    /// For each part that is here the [names](crate::StateName) of its tensors.
    pub parts: BTreeMap<u32, BTreeSet<String>>,
}

/// A tensor of a copy, where it is and where it goes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Recalled {
    /// Who keeps it.
    pub keeper: WorkerId,
    /// As part of what.
    pub part: u32,
    /// Its name.
    pub name: String,
    /// The stage whose replicas get it.
    pub stage: StageId,
}

/// What a worker gives out of a copy: tensors by part and name, each with the stage whose replicas get it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Recall {
    /// Of which copy.
    pub copy: SnapshotId,
    /// Which tensors.
    pub tensors: Vec<(u32, String, StageId)>,
}
