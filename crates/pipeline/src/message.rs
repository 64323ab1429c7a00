//! Everything boss and workers say to each other.

use crate::cached::Cached;
use crate::ids::{MicrobatchKey, StageId, WorkerId};
use crate::kept::{Keep, PeerSnapshot, Recall};
use crate::loss::LossSpec;
use crate::micros::Micros;
use crate::norm::Square;
use crate::optimizer::OptimizerSpec;
use crate::replicas::{MicrobatchAssignment, Node, UniqueId};
use crate::samples::{DataSpec, Samples};
use crate::schedule::{Action, Order};
use crate::task::{LayerProbe, LayerTimes};
use crate::watch::{LayerHealth, Watch};
use serde::{Deserialize, Serialize};

pub use crate::assignment::{Assignment, ChangeMembership, PeerAddress};
pub use crate::failure::Failure;
pub use crate::mode::Mode;
pub use crate::replicas::Reduction;

/// The version of the protocol, sent first on every connection. Peers of different versions
/// disconnect.
pub const PROTOCOL_VERSION: u32 = 16;

/// The most tensors behind one head.
pub const MAX_TENSORS: usize = 4096;
/// The most microbatches of a batch.
pub const MAX_MICROBATCHES: u32 = 1 << 16;
/// The most actions whose times a worker reports.
pub const MAX_SPANS: usize = 16_384;

/// The head of a frame. The tensors of a kind that carries some follow as raw bytes.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Head {
    /// Boss to worker: a command, answered by [`Head::Done`] or [`Head::Failed`].
    Command {
        /// The number that answers name.
        id: u64,
        /// The command.
        body: Command,
    },
    /// Boss to worker: relay frames for this peer through the boss, because the pair cannot
    /// connect.
    UseRelay {
        /// The peer.
        peer: WorkerId,
    },
    /// Boss to worker: cancels a command. The worker discards what the command left.
    Abort {
        /// Which command.
        id: u64,
        /// The batch it worked on, if any.
        batch: Option<u64>,
        /// Whether the worker discards all gradients too.
        gradients: bool,
    },
    /// Boss to worker: the norm of all gradients of the command's round, over all stages.
    TotalNorm {
        /// Which command.
        id: u64,
        /// The norm, before gradients are shortened.
        norm: f64,
    },
    /// Boss to worker: how the run stands, for the worker's user.
    Progress(Progress),
    /// Boss to worker: the run is over.
    Stop,

    /// Worker to boss: the command is complete.
    Done {
        /// Which command.
        id: u64,
        /// The weighted loss of each microbatch, from the stage that computes it.
        losses: Vec<(u32, f32)>,
        /// The number of frames with tensors that the worker sent to the boss for this command.
        /// They may arrive later.
        sent: u32,
        /// When the command arrived, on the worker's clock.
        received: Micros,
        /// When this was sent, on the worker's clock.
        answered: Micros,
        /// When each action ran; at most [`MAX_SPANS`].
        spans: Vec<Span>,
    },
    /// Worker to boss: the sums of squares of each parameter's gradient, or of this worker's part
    /// of it. Sent once for a command whose actions compute norms. Answered by [`Head::TotalNorm`].
    Norms {
        /// Which command.
        id: u64,
        /// The sums.
        squares: Vec<Square>,
        /// The weighted loss of each microbatch so far. [`Head::Done`] does not repeat them.
        losses: Vec<(u32, f32)>,
    },
    /// Worker to boss, before the answer to [`Command::Digest`]: a SHA-256 of each trained parameter of each of its
    /// stages. Replicas of a stage have the same.
    Digests {
        /// Which command.
        id: u64,
        /// By stage and name.
        digests: Vec<(StageId, String, [u8; 32])>,
    },
    /// Worker to boss: this worker stores a part of a snapshot, as [`Command::Keep`] asked.
    Kept {
        /// Which command.
        id: u64,
        /// Which part.
        part: u32,
    },
    /// Worker to boss, before the answer to [`Command::Copies`]: the snapshots of the run that it
    /// stores.
    Copies {
        /// Which command.
        id: u64,
        /// By copy.
        copies: Vec<PeerSnapshot>,
    },
    /// Worker to boss, before the answer to [`Command::MakeIds`].
    UniqueIds {
        /// Which command.
        id: u64,
        /// For each stage whose first replica it is.
        ids: Vec<(StageId, UniqueId)>,
    },
    /// Worker to boss: the health of layers in an optimizer step, if the round
    /// [asks](Watch::health) for it.
    Health {
        /// Which command.
        id: u64,
        /// The layers of one stage that are updated here.
        layers: Vec<LayerHealth>,
    },
    /// Worker to boss, before the answer to [`Command::Measure`]: how long layers take on this
    /// worker.
    Measured {
        /// Which command.
        id: u64,
        /// For each probe.
        times: Vec<LayerTimes>,
    },
    /// Worker to boss, before the answer to [`Command::Measure`]: the measured figures of one of
    /// its links.
    LinkReport {
        /// The other end. `None` is the boss.
        peer: Option<WorkerId>,
        /// The figures.
        report: LinkReport,
    },
    /// Worker to boss: the command failed.
    Failed {
        /// Which command.
        id: u64,
        /// What went wrong and where.
        failure: Failure,
    },
    /// Worker to boss: the cancelled command is cleaned up.
    Aborted {
        /// Which command.
        id: u64,
        /// Whether this worker had already updated parameters when the cancellation came.
        stepped: bool,
    },
    /// Worker to boss: the connection to a peer broke or cannot be made.
    LinkFailed {
        /// The other end.
        peer: WorkerId,
        /// Why.
        reason: String,
        /// Whether the connection was up before, so that tensors may be lost.
        was_up: bool,
    },
    /// Worker to boss, one tensor: a parameter, a buffer or optimizer state, as an answer to
    /// [`Command::SendState`].
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
        /// The stage that borrows.
        to: StageId,
    },
    /// Sums of gradients over some of a batch's microbatches, sent to the replica that sums this
    /// part for all. One tensor for each slice of the receiver's [shard](crate::replicas::shard) of
    /// the bucket, of shape `[0]` if there is no gradient. The dtype is float32. If the round
    /// [compresses](Reduction::Compressed), it is bfloat16, or bytes: for each
    /// [block](crate::replicas::Compress::BLOCK) its scale and then its numbers. In int4 the
    /// [blocks](crate::replicas::Compress::SMALL_BLOCK) have two numbers in a byte, and the bytes have shape `[1,
    /// n]`, or `[n, 1]` if the count of numbers is odd.
    Sum {
        /// The batch of the round.
        batch: u64,
        /// The stage of both.
        stage: StageId,
        /// Which of the stage's buckets.
        bucket: u32,
        /// Which microbatches. If a replica [adds up first](Reduction::adds_up_first), the first
        /// node of the sum that it sends.
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
    /// Worker to worker, one tensor: a parameter, a buffer or optimizer state, for a replica that
    /// receives it with [`ChangeMembership::take`].
    ReplicaState {
        /// The command, which both workers have received.
        id: u64,
        /// Its name.
        name: String,
        /// The number of tensors in all.
        of: u32,
    },
    /// Worker to worker, one tensor, or none for an empty part: part of a snapshot that the
    /// receiver stores.
    Keeping {
        /// The command, which both have got.
        id: u64,
        /// Of which part.
        part: u32,
        /// Its [name](crate::StateName).
        name: String,
        /// How many come in all.
        of: u32,
    },
    /// Worker to boss, one tensor: an output of the model.
    Output {
        /// Which microbatch.
        key: MicrobatchKey,
        /// Which variable.
        value: layerspec::ValueId,
    },
    /// One tensor: a parameter or buffer, part of [`Command::LoadState`] or [`Command::Restore`].
    /// The boss or the worker that stores it sends it to the first replica of a stage. Replicas
    /// pass it on along [`StagePlacement::takers`](crate::replicas::StagePlacement::takers).
    Weight {
        /// Which command.
        id: u64,
        /// Its name, as in PyTorch's `state_dict`.
        name: String,
        /// The stage whose replicas get it.
        stage: StageId,
    },
    /// Boss to worker, one tensor: the bytes of a file, part of [`Command::TakeFiles`].
    File {
        /// Which command.
        id: u64,
        /// Its SHA-256 in hexadecimal digits.
        name: String,
    },
}

impl Head {
    /// The least and the greatest number of tensors behind this head.
    pub fn tensors(&self) -> (usize, usize) {
        match self {
            Head::State { .. }
            | Head::Value { .. }
            | Head::Target { .. }
            | Head::Output { .. }
            | Head::Weight { .. }
            | Head::File { .. }
            | Head::ReplicaState { .. } => (1, 1),
            Head::Keeping { .. } => (0, 1),
            Head::Gradient { .. }
            | Head::TiedGrads { .. }
            | Head::TiedValues { .. }
            | Head::Sum { .. }
            | Head::Reduced { .. }
            | Head::Updated { .. }
            | Head::Statistics { .. } => (0, MAX_TENSORS),
            _ => (0, 0),
        }
    }

    /// Whether everything else is sent before it, because no computation waits for it.
    pub fn can_wait(&self) -> bool {
        matches!(self, Head::Keeping { .. })
    }

    /// Whether it has a stream of its own, so that a large tensor delays nothing. All other heads
    /// share one ordered stream.
    pub fn is_data(&self) -> bool {
        self.tensors().1 > 0
    }
}

/// A command of the boss to a worker.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Command {
    /// Build stages and connect to the workers that they exchange tensors with.
    Assign(Box<Assignment>),
    /// Continue with the same stages among other workers.
    ChangeMembership(Box<ChangeMembership>),
    /// Use this optimizer, with fresh state.
    SetOptimizer(OptimizerSpec),
    /// Run actions.
    Run(Box<Round>),
    /// Discard what is stored of a batch for its backward pass.
    Discard {
        /// Which batch.
        batch: u64,
    },
    /// Measure layers, and report with [`Head::Measured`].
    Measure(Vec<LayerProbe>),
    /// Send parameters and buffers as [`Head::State`], of this stage or of all.
    SendState {
        /// The stage. `None` is every stage.
        stage: Option<StageId>,
        /// Whether to send optimizer state, too.
        optimizer: bool,
    },
    /// Hash the trained parameters of each stage, and report with [`Head::Digests`].
    Digest,
    /// Make NCCL ids for communicators among the replicas of stages, and report with
    /// [`Head::UniqueIds`].
    MakeIds,
    /// Make the communicators among the replicas of these stages. All replicas do so together.
    Communicate(Vec<(StageId, UniqueId)>),
    /// Load parameters and buffers, which arrive as [`Head::Weight`], and pass them on.
    LoadState {
        /// The number of them that arrive.
        tensors: u32,
        /// Whether optimizer state is among them. State that is missing then starts fresh.
        optimizer: bool,
    },
    /// Copy state, store it, and exchange snapshots with other workers. [`Head::Kept`] reports each
    /// stored part.
    Keep(Box<Keep>),
    /// List the stored snapshots of a run with [`Head::Copies`].
    Copies {
        /// Which run.
        run: u64,
    },
    /// Load parameters, buffers and optimizer state, which arrive as [`Head::Weight`] from the
    /// workers that store a snapshot. Pass them on, and send what this worker stores.
    Restore {
        /// How many come.
        tensors: u32,
        /// The workers that send them, if this worker is the first to receive them.
        keepers: Vec<WorkerId>,
        /// The tensors that this worker sends.
        recall: Box<Recall>,
    },
    /// Open a data set among this worker's own files, and check that its content is the expected
    /// one.
    OpenData(Box<DataSpec>),
    /// Receive the files that layers are built from, which arrive as [`Head::File`].
    TakeFiles {
        /// How many come.
        files: u32,
    },
}

/// When an action ran, on its worker's clock.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Span {
    /// What.
    pub action: Action,
    /// From when.
    pub start: Micros,
    /// Until when.
    pub end: Micros,
}

/// The progress of a run, as the boss reports it to a worker.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Progress {
    /// Steps of the run so far.
    pub step: u64,
    /// The loss of the last one.
    pub loss: f32,
    /// The steps in which this worker took part.
    pub steps: u64,
    /// The samples that it processed.
    pub samples: u64,
    /// Its part of the last batch, from 0 to 1.
    pub share: f64,
    /// The rate of its slowest link to another worker, in bytes per second, if measured.
    pub bytes_per_second: Option<u64>,
}

/// The measured figures of a link.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LinkReport {
    /// A round trip.
    pub rtt: Micros,
    /// The rate of large tensors, in bytes per second.
    pub bytes_per_second: u64,
    /// The largest packet that passes.
    pub packet_bytes: u32,
    /// Whether tensors go through memory that both ends share.
    pub shared_memory: bool,
    /// Whether both ends are on one machine.
    pub same_machine: bool,
}

/// A round trip is not longer than an hour.
const LONGEST_TRIP: Micros = Micros(3_600_000_000);

impl LinkReport {
    /// Bounds the figures, which come from another machine and enter calculations.
    pub(crate) fn bounded(self) -> Self {
        LinkReport { rtt: self.rtt.min(LONGEST_TRIP), ..self }
    }
}

/// One round of actions over the microbatches of a batch.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Round {
    /// The batch it works on.
    pub batch: u64,
    /// The training step, which random draws depend on.
    pub step: u64,
    /// Training or evaluation.
    pub mode: Mode,
    /// How forward passes continue a sequence with cached keys and values, in evaluation.
    pub cached: Option<Cached>,
    /// The actions of this worker.
    pub actions: Vec<Action>,
    /// Their order.
    pub order: Order,
    /// Which replica takes which microbatch.
    pub microbatch_assignment: MicrobatchAssignment,
    /// The number of microbatches of the batch.
    pub microbatches: u32,
    /// The inputs and targets that this worker reads from its own files. `None` if the boss sends
    /// them.
    pub samples: Option<Samples>,
    /// The order in which gradients are summed.
    pub reduction: Reduction,
    /// The loss, if the last stage computes it.
    pub loss: Option<RoundLoss>,
    /// Send the model's outputs to the boss.
    pub outputs: bool,
    /// Gradients of the model's outputs come from the boss.
    pub grads_from_boss: bool,
    /// How parameters change, if an action of the round changes them.
    pub update: Option<RoundUpdate>,
    /// What the worker checks during the round.
    pub watch: Watch,
}

/// How a round's gradients change parameters.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct RoundUpdate {
    /// The learning rate of this step.
    pub lr: f64,
    /// The factor of every gradient before it is used.
    pub scale: f64,
    /// Gradients are clipped to this norm over all stages (`torch.nn.utils.clip_grad_norm_`). The
    /// round then has an [`Action::GradNorm`] for every stage.
    pub max_norm: Option<f64>,
    /// If the norm is not finite, parameters and optimizer state stay unchanged. Requires
    /// `max_norm`.
    pub skip_infinite: bool,
}

impl RoundUpdate {
    /// The clipping factor for gradients of this norm over all stages, as in PyTorch: 1 below the
    /// limit.
    pub fn clip(&self, norm: f64) -> f64 {
        let limit = self.max_norm.filter(|most| most.is_finite());
        let clip = limit.map_or(1.0, |most| most / (norm + 1e-6));
        // A norm that is no number stays one, so that it shows.
        if clip > 1.0 {
            1.0
        } else {
            clip
        }
    }
}

/// The loss of a round.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct RoundLoss {
    /// The function.
    pub spec: LossSpec,
    /// The share of each microbatch in the batch: of the samples, or of the targets' weight.
    pub weights: Vec<f64>,
}
