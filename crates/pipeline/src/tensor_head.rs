//! The heads of frames with tensors.

use crate::ids::{MicrobatchKey, StageId};
use crate::replicas::Node;
use serde::{Deserialize, Serialize};

/// The most tensors behind one head.
pub const MAX_TENSORS: usize = 4096;

/// The head of a frame with tensors, which follow as raw bytes. Workers send most of them to each
/// other.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum TensorHead {
    /// One tensor: a parameter, a buffer or optimizer state, or a slice of it, as an answer to
    /// [`crate::message::Command::SendState`].
    State {
        /// Which command.
        id: u64,
        /// Its [name](crate::StateName).
        name: String,
    },
    /// One tensor: a variable, sent to a stage that uses it.
    Value {
        /// Which microbatch.
        key: MicrobatchKey,
        /// Which variable.
        value: layerspec::ValueId,
        /// The stage that uses it.
        to: StageId,
    },
    /// One tensor: the target of a microbatch.
    Target {
        /// Which microbatch.
        key: MicrobatchKey,
        /// The stage that computes the loss.
        to: StageId,
    },
    /// Gradients of a variable, sent back to the stage that made it, in summing order.
    Gradient {
        /// Which microbatch.
        key: MicrobatchKey,
        /// Which variable.
        value: layerspec::ValueId,
        /// The stage that used it. `None` is the boss.
        from: Option<StageId>,
        /// The stage that made it.
        to: StageId,
    },
    /// The gradients of tied copies, sent to the stage that owns the parameters.
    TiedGrads {
        /// The batch of the round that updates them.
        batch: u64,
        /// The stage that holds copies.
        from: StageId,
        /// The stage that owns them.
        to: StageId,
    },
    /// The new values of tied parameters, sent by their owner to a stage that holds copies.
    TiedValues {
        /// The batch of the round that updates them.
        batch: u64,
        /// The stage that owns them.
        from: StageId,
        /// The stage that holds copies.
        to: StageId,
    },
    /// Sums of gradients over some of a batch's microbatches, sent to the replica that sums this
    /// part for all. One tensor for each slice of the receiver's [shard](crate::replicas::shard) of
    /// the bucket, of shape `[0]` if there is no gradient. The dtype is float32. If the round
    /// [compresses](crate::message::Reduction::Compressed), it is bfloat16, or bytes: for each
    /// [block](crate::replicas::Compress::BLOCK) its scale and then its numbers. In int4 the
    /// [blocks](crate::replicas::Compress::SMALL_BLOCK) have two numbers in a byte, and the bytes
    /// have shape `[1, n]`, or `[n, 1]` if the count of numbers is odd.
    Sum {
        /// The batch of the round.
        batch: u64,
        /// The stage of both.
        stage: StageId,
        /// Which of the stage's buckets.
        bucket: u32,
        /// Which microbatches. If a replica [adds up
        /// first](crate::message::Reduction::adds_up_first), the first node of the sum that it
        /// sends.
        node: Node,
    },
    /// The sums over all microbatches of the sender's shard of a bucket, sent to the stage's other
    /// replicas in the same form. Not sent for a [sharded](crate::replicas::Bucket::sharded)
    /// bucket.
    Reduced {
        /// The batch of the round.
        batch: u64,
        /// The stage of both.
        stage: StageId,
        /// Which of the stage's buckets.
        bucket: u32,
    },
    /// The values of the sender's shard of a bucket, sent to the stage's other replicas: one
    /// float32 tensor for each slice.
    Updated {
        /// The batch of the round.
        batch: u64,
        /// The stage of both.
        stage: StageId,
        /// Which of the stage's buckets.
        bucket: u32,
        /// The number of the all-gather of the stage's parameters within the round, from 0.
        visit: u32,
    },
    /// The statistics of a stage's batch norms over the sender's microbatches, sent to the stage's
    /// other replicas.
    Statistics {
        /// The batch of the round.
        batch: u64,
        /// The stage of both.
        stage: StageId,
    },
    /// One tensor: a parameter, a buffer or optimizer state, for a replica that
    /// receives it with [`ChangeMembership::take`](crate::message::ChangeMembership::take).
    ReplicaState {
        /// The command, which both workers have received.
        id: u64,
        /// Its name.
        name: String,
        /// The number of tensors in all.
        of: u32,
    },
    /// One tensor, or none for an empty part: part of a snapshot that the
    /// receiver stores.
    SnapshotPart {
        /// The command, which both workers have received.
        id: u64,
        /// The number of the part.
        part: u32,
        /// Its [name](crate::StateName).
        name: String,
        /// The number of tensors in all.
        of: u32,
    },
    /// One tensor: an output of the model.
    Output {
        /// Which microbatch.
        key: MicrobatchKey,
        /// Which variable.
        value: layerspec::ValueId,
    },
    /// One tensor: a parameter, buffer or optimizer state, or a slice of one, part of
    /// [`crate::message::Command::LoadState`] or
    /// [`crate::message::Command::RestoreSnapshot`]. The boss or the worker that stores it sends it
    /// to the first replica of a stage. Replicas pass it on along
    /// [`StagePlacement::takers`](crate::replicas::StagePlacement::takers).
    Weight {
        /// Which command.
        id: u64,
        /// Its [name](crate::StateName).
        name: String,
        /// The stage whose replicas get it.
        stage: StageId,
    },
    /// One tensor: the bytes of a file, part of [`crate::message::Command::TakeFiles`].
    File {
        /// Which command.
        id: u64,
        /// Its SHA-256 in hexadecimal digits.
        name: String,
    },
}

impl TensorHead {
    /// The least and the greatest number of tensors behind this head.
    pub fn tensors(&self) -> (usize, usize) {
        match self {
            TensorHead::State { .. }
            | TensorHead::Value { .. }
            | TensorHead::Target { .. }
            | TensorHead::Output { .. }
            | TensorHead::Weight { .. }
            | TensorHead::File { .. }
            | TensorHead::ReplicaState { .. } => (1, 1),
            TensorHead::SnapshotPart { .. } => (0, 1),
            TensorHead::Gradient { .. }
            | TensorHead::TiedGrads { .. }
            | TensorHead::TiedValues { .. }
            | TensorHead::Sum { .. }
            | TensorHead::Reduced { .. }
            | TensorHead::Updated { .. }
            | TensorHead::Statistics { .. } => (0, MAX_TENSORS),
        }
    }

    /// Whether everything else is sent before it, because no computation waits for it.
    pub fn can_wait(&self) -> bool {
        matches!(self, TensorHead::SnapshotPart { .. })
    }
}
