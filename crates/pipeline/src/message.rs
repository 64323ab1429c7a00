//! The messages between boss and workers.

use crate::ids::{StageId, WorkerId};
use crate::kv_cache_step::KvCacheStep;
use crate::loss::LossSpec;
use crate::micros::Micros;
use crate::norm::Square;
use crate::optimizer::OptimizerSpec;
use crate::peer_snapshot::{PeerSnapshot, SendSnapshot, StoreSnapshot};
use crate::replicas::{MicrobatchAssignment, UniqueId};
use crate::round_outputs::RoundOutputs;
use crate::samples::{DataSpec, Samples};
use crate::schedule::{Action, Order};
use crate::task::{LayerProbe, LayerTimes, LoadContent};
use crate::tensor_meta::TensorMeta;
use crate::watch::{LayerHealth, Watch};
use crate::StateForm;
use serde::{Deserialize, Serialize};

pub use crate::assignment::{Assignment, ChangeMembership, PeerAddress};
pub use crate::failure::{Failure, FailureKind};
pub use crate::mode::Mode;
pub use crate::replicas::Reduction;
pub use crate::tensor_head::{TensorHead, MAX_TENSORS};

/// The version of the protocol, sent first on every connection. Peers of different versions
/// disconnect.
pub const PROTOCOL_VERSION: u32 = 32;

/// The most microbatches of a batch.
pub const MAX_MICROBATCHES: u32 = 1 << 16;
/// The most actions whose times a worker reports.
pub const MAX_SPANS: usize = 16_384;

/// A message of the boss to a worker.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum ToWorker {
    /// A command, answered by [`ToBoss::Done`] or [`ToBoss::Failed`].
    Command {
        /// The number that answers name.
        id: u64,
        /// The command.
        body: Command,
    },
    /// Relay frames for this peer through the boss, because the pair cannot
    /// connect.
    UseRelay {
        /// The peer.
        peer: WorkerId,
    },
    /// Cancels a command. The worker discards what the command left.
    Abort {
        /// Which command.
        id: u64,
        /// The batch it worked on, if any.
        batch: Option<u64>,
        /// Whether the worker discards all gradients too.
        gradients: bool,
    },
    /// The norm of all gradients of the command's round, over all stages.
    TotalNorm {
        /// Which command.
        id: u64,
        /// The norm, before gradients are shortened.
        norm: f64,
    },
    /// As many frames of state as this were taken, so the worker may send as many more.
    MoreState {
        /// The [`Command::SendState`] that they answer.
        id: u64,
        /// The number of frames.
        frames: u32,
    },
    /// How the run stands, for the worker's user.
    Progress(Progress),
    /// The run is over.
    Stop,
}

/// A message of a worker to the boss.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum ToBoss {
    /// The command is complete.
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
    /// The sums of squares of each parameter's gradient, or of this worker's part of it. Sent once
    /// for a command whose actions compute norms. Answered by [`ToWorker::TotalNorm`].
    Norms {
        /// Which command.
        id: u64,
        /// The sums.
        squares: Vec<Square>,
        /// The weighted loss of each microbatch so far. [`ToBoss::Done`] does not repeat them.
        losses: Vec<(u32, f32)>,
    },
    /// Before the answer to [`Command::Digest`]: a SHA-256 of each trained
    /// parameter of each of its stages. Replicas of a stage have the same.
    Digests {
        /// Which command.
        id: u64,
        /// By stage and name.
        digests: Vec<(StageId, String, [u8; 32])>,
    },
    /// This worker stores a part of a snapshot, as [`Command::StoreSnapshot`] asked.
    SnapshotStored {
        /// Which command.
        id: u64,
        /// Which part.
        part: u32,
    },
    /// Before the answer to [`Command::ListSnapshots`]: the snapshots of the run that it
    /// stores.
    Snapshots {
        /// Which command.
        id: u64,
        /// The snapshots.
        snapshots: Vec<PeerSnapshot>,
    },
    /// Before the answer to [`Command::SendState`]: what its frames are, or are slices of.
    StateHeads {
        /// Which command.
        id: u64,
        /// The name, dtype and shape of each whole tensor, shard or hash; at most
        /// [`MAX_STATE_HEADS`](crate::MAX_STATE_HEADS).
        heads: Vec<(String, TensorMeta)>,
    },
    /// Before the answer to [`Command::MakeIds`].
    UniqueIds {
        /// Which command.
        id: u64,
        /// For each stage whose first replica it is.
        ids: Vec<(StageId, UniqueId)>,
    },
    /// The health of layers in an optimizer step, if the round
    /// [asks](Watch::health) for it.
    Health {
        /// Which command.
        id: u64,
        /// The layers of one stage that are updated here.
        layers: Vec<LayerHealth>,
    },
    /// Before the answer to [`Command::Measure`]: how long layers take on this
    /// worker.
    Measured {
        /// Which command.
        id: u64,
        /// For each probe.
        times: Vec<LayerTimes>,
    },
    /// Before the answer to [`Command::Measure`]: the measured figures of one of
    /// its links.
    LinkReport {
        /// The other end. `None` is the boss.
        peer: Option<WorkerId>,
        /// The figures.
        report: LinkReport,
    },
    /// The command failed.
    Failed {
        /// Which command.
        id: u64,
        /// The error and its place.
        failure: Failure,
    },
    /// The cancelled command is cleaned up.
    Aborted {
        /// Which command.
        id: u64,
        /// Whether this worker had already updated parameters when the cancellation came.
        stepped: bool,
    },
    /// The connection to a peer broke or cannot be made.
    LinkFailed {
        /// The other end.
        peer: WorkerId,
        /// Why.
        reason: String,
        /// Whether the connection was up before, so that tensors may be lost.
        was_up: bool,
    },
    /// This worker was told to leave. The boss closes its connection between two requests: in a
    /// pool, once another worker has its stages.
    Leaving,
}

impl ToBoss {
    /// The number of the command that it answers or belongs to, if any.
    pub fn command(&self) -> Option<u64> {
        match self {
            ToBoss::Done { id, .. }
            | ToBoss::Norms { id, .. }
            | ToBoss::Digests { id, .. }
            | ToBoss::SnapshotStored { id, .. }
            | ToBoss::Snapshots { id, .. }
            | ToBoss::StateHeads { id, .. }
            | ToBoss::UniqueIds { id, .. }
            | ToBoss::Health { id, .. }
            | ToBoss::Measured { id, .. }
            | ToBoss::Failed { id, .. }
            | ToBoss::Aborted { id, .. } => Some(*id),
            ToBoss::LinkReport { .. } | ToBoss::LinkFailed { .. } | ToBoss::Leaving => None,
        }
    }
}

/// A message between two workers, of which none exists: workers send each other tensors only.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum NoMessage {}

impl From<NoMessage> for ToWorker {
    fn from(none: NoMessage) -> Self {
        match none {}
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
    /// Measure layers, and report with [`ToBoss::Measured`].
    Measure(Vec<LayerProbe>),
    /// Send parameters and buffers as [`TensorHead::State`], of this stage or of all, after
    /// [`ToBoss::StateHeads`].
    SendState {
        /// The stage. `None` is every stage.
        stage: Option<StageId>,
        /// Whether to send optimizer state, too.
        optimizer: bool,
        /// In which form.
        form: StateForm,
        /// The most frames that may be on their way or untaken. Each [`ToWorker::MoreState`]
        /// says that some were taken.
        window: u32,
    },
    /// Hash the trained parameters of each stage, and report with [`ToBoss::Digests`].
    Digest,
    /// Make NCCL ids for communicators among the replicas of stages, and report with
    /// [`ToBoss::UniqueIds`].
    MakeIds,
    /// Make the communicators among the replicas of these stages. All replicas do so together.
    Communicate(Vec<(StageId, UniqueId)>),
    /// Load parameters, buffers and optimizer state, which arrive as [`TensorHead::Weight`], and
    /// pass them on.
    LoadState {
        /// The number of them that arrive.
        tensors: u32,
        /// What they are.
        content: LoadContent,
    },
    /// Copy state, store it, and exchange snapshots with other workers. [`ToBoss::SnapshotStored`]
    /// reports each stored part.
    StoreSnapshot(Box<StoreSnapshot>),
    /// List the stored snapshots of a run with [`ToBoss::Snapshots`].
    ListSnapshots {
        /// Which run.
        run: u64,
    },
    /// Load parameters, buffers and optimizer state, which arrive as [`TensorHead::Weight`] from
    /// the workers that store a snapshot. Pass them on, and send what this worker stores.
    RestoreSnapshot {
        /// The number of them that arrive.
        tensors: u32,
        /// The workers that send them, if this worker is the first to receive them.
        senders: Vec<WorkerId>,
        /// The tensors that this worker sends.
        send: Box<SendSnapshot>,
    },
    /// Open a data set among this worker's own files, and check that its content is the expected
    /// one.
    OpenData(Box<DataSpec>),
    /// Receive the files that layers are built from, which arrive as [`TensorHead::File`].
    TakeFiles {
        /// The number of them that arrive.
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
    pub kv_cache: Option<KvCacheStep>,
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
    /// The model's outputs to send to the boss.
    pub outputs: RoundOutputs,
    /// Gradients of the model's outputs come from the boss.
    pub grads_from_boss: bool,
    /// How parameters change, if an action of the round changes them.
    pub update: Option<RoundUpdate>,
    /// The checks of the worker during the round.
    pub watch: Watch,
}

impl Round {
    /// Whether it completes a training step: it trains on a loss, or updates parameters.
    pub(crate) fn is_step(&self) -> bool {
        self.mode == Mode::Train && (self.loss.is_some() || self.update.is_some())
    }
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
    /// Whether the boss gets the likeliest class of each target in place of the output that the
    /// loss is about, unless another stage needs that.
    pub likeliest: bool,
}
