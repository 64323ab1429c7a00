//! Everything boss and workers say to each other.

use crate::cached::Cached;
use crate::ids::{MicrobatchKey, StageId, WorkerId};
use crate::kept::{Keep, PeerSnapshot, Recall};
use crate::loss::LossSpec;
use crate::micros::Micros;
use crate::norm::Square;
use crate::optimizer::OptimizerSpec;
use crate::replicas::{Compress, MicrobatchAssignment, Node, UniqueId};
use crate::samples::{DataSpec, Samples};
use crate::schedule::{Action, Order};
use crate::task::{LayerProbe, LayerTimes};
use crate::watch::{LayerHealth, Watch};
use serde::{Deserialize, Serialize};

pub use crate::assignment::{Assignment, ChangeMembership, PeerAddress};
pub use crate::failure::Failure;
pub use crate::mode::Mode;

/// Said first on every connection; peers of different versions do not talk.
pub const PROTOCOL_VERSION: u32 = 16;

/// More tensors than this behind one head are refused.
pub const MAX_TENSORS: usize = 4096;
/// A batch of more microbatches than this is refused.
pub const MAX_MICROBATCHES: u32 = 1 << 16;
/// A worker tells of no more actions than this when each ran.
pub const MAX_SPANS: usize = 16_384;

/// The head of a frame. Tensors, where a kind carries some, follow it as raw bytes.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Head {
    /// Boss to worker: do this and answer with [`Head::Done`] or [`Head::Failed`].
    Command {
        /// Answers name it.
        id: u64,
        /// What to do.
        body: Command,
    },
    /// Boss to worker: this pair cannot connect, send by way of the boss.
    UseRelay {
        /// The other of the pair.
        peer: WorkerId,
    },
    /// Boss to worker: the command with this number is void; forget what it left.
    Abort {
        /// Which command.
        id: u64,
        /// The batch it worked on, if any.
        batch: Option<u64>,
        /// It was training: forget all gradients too.
        gradients: bool,
    },
    /// Boss to worker: the norm of all gradients of the command's round, over all stages.
    TotalNorm {
        /// Which command.
        id: u64,
        /// The norm, before gradients are shortened.
        norm: f64,
    },
    /// Boss to worker: how the run stands, for whoever looks at the worker.
    Progress(Progress),
    /// Boss to worker: the run is over.
    Stop,

    /// Worker to boss: the command is carried out.
    Done {
        /// Which command.
        id: u64,
        /// The weighted loss of each microbatch, from the stage that computes it.
        losses: Vec<(u32, f32)>,
        /// How many frames with tensors it sent to the boss for this command; they may arrive later.
        sent: u32,
        /// When the command arrived, on the worker's clock.
        received: Micros,
        /// When this was sent, on the worker's clock.
        answered: Micros,
        /// When each action ran; at most [`MAX_SPANS`].
        spans: Vec<Span>,
    },
    /// Worker to boss: the sums of squares of each parameter's gradient, or of the part that this worker has. Sent once for
    /// a command whose actions give norms, answered by [`Head::TotalNorm`].
    Norms {
        /// Which command.
        id: u64,
        /// The sums.
        squares: Vec<Square>,
        /// The weighted loss of each microbatch so far, which [`Head::Done`] then leaves out.
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
    /// Worker to boss: a part of a copy is kept here, which [`Command::Keep`] said.
    Kept {
        /// Which command.
        id: u64,
        /// Which part.
        part: u32,
    },
    /// Worker to boss, before the answer to [`Command::Copies`]: what it keeps of the run's copies.
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
    /// Worker to boss: how layers fared in an optimizer step of a round that [asks](Watch::health) for it.
    Health {
        /// Which command.
        id: u64,
        /// The layers of one stage that are updated here.
        layers: Vec<LayerHealth>,
    },
    /// Worker to boss: what layers take here, before the answer to [`Command::Measure`].
    Measured {
        /// Which command.
        id: u64,
        /// For each probe.
        times: Vec<LayerTimes>,
    },
    /// Worker to boss, before the answer to [`Command::Measure`]: what one of its links is like.
    LinkReport {
        /// The other end; nobody for the boss.
        peer: Option<WorkerId>,
        /// What it is like.
        report: LinkReport,
    },
    /// Worker to boss: the command cannot be carried out.
    Failed {
        /// Which command.
        id: u64,
        /// What went wrong and where.
        failure: Failure,
    },
    /// Worker to boss: what the aborted command left is gone.
    Aborted {
        /// Which command.
        id: u64,
        /// The abort came too late: parameters of this worker were already updated.
        stepped: bool,
    },
    /// Worker to boss: no connection to that worker can be made, or it broke.
    LinkFailed {
        /// The other end.
        peer: WorkerId,
        /// Why.
        reason: String,
        /// It had been up, so tensors may be lost.
        was_up: bool,
    },
    /// Worker to boss, one tensor: a parameter, a buffer or what the optimizer keeps, answer to [`Command::SendState`].
    State {
        /// Which command.
        id: u64,
        /// Its [name](crate::StateName).
        name: String,
    },

    /// One tensor: a variable on its way to a stage that uses it.
    Value {
        /// Which microbatch.
        key: MicrobatchKey,
        /// Which variable.
        value: layerspec::ValueId,
        /// The stage that uses it.
        to: StageId,
    },
    /// One tensor: what the model's output should have been.
    Target {
        /// Which microbatch.
        key: MicrobatchKey,
        /// The stage that computes the loss.
        to: StageId,
    },
    /// Gradients of a variable on their way back to the stage that made it, in summing order.
    Gradient {
        /// Which microbatch.
        key: MicrobatchKey,
        /// Which variable.
        value: layerspec::ValueId,
        /// The stage that used it, or nobody for the boss.
        from: Option<StageId>,
        /// The stage that made it.
        to: StageId,
    },
    /// The gradients of parameters that a stage borrows, on their way to their owner.
    TiedGrads {
        /// The batch of the round that updates them.
        batch: u64,
        /// The stage that borrows.
        from: StageId,
        /// The stage that owns them.
        to: StageId,
    },
    /// The new values of parameters that a stage lends, on their way to one that borrows them.
    TiedValues {
        /// The batch of the round that updates them.
        batch: u64,
        /// The stage that owns them.
        from: StageId,
        /// The stage that borrows.
        to: StageId,
    },
    /// Sums of gradients over some of a batch's microbatches, on their way to the replica of the stage that sums this
    /// part of them for all: one tensor for each slice of its [shard](crate::replicas::shard) of the bucket, of shape
    /// `[0]` where no gradient came. float32; or where the round [compresses](Reduction::Compressed) what travels,
    /// bfloat16, or bytes: for each [block](Compress::BLOCK) its scale and then its numbers. In int4, whose
    /// [blocks](Compress::SMALL_BLOCK) have two numbers to a byte, the bytes have shape `[1, n]`, or `[n, 1]` where the number
    /// of numbers is odd.
    Sum {
        /// The batch of the round.
        batch: u64,
        /// The stage of both.
        stage: StageId,
        /// Which of the stage's buckets.
        bucket: u32,
        /// Which microbatches; where a replica [adds up first](Reduction::adds_up_first), the first of several such sums,
        /// which are then sent as one.
        node: Node,
    },
    /// The sums over all microbatches of the sender's shard of a bucket, on their way to the stage's other replicas, in
    /// the same form; not of a bucket that is [sharded](crate::replicas::Bucket::sharded).
    Reduced {
        /// The batch of the round.
        batch: u64,
        /// The stage of both.
        stage: StageId,
        /// Which of the stage's buckets.
        bucket: u32,
    },
    /// The values of the sender's shard of a bucket, on their way to the stage's other replicas: one float32 tensor for each
    /// slice.
    Updated {
        /// The batch of the round.
        batch: u64,
        /// The stage of both.
        stage: StageId,
        /// Which of the stage's buckets.
        bucket: u32,
        /// For which of the times at which the round gathers the stage's parameters, from 0.
        visit: u32,
    },
    /// What the batch norms of a stage saw of the sender's microbatches, on its way to the stage's other replicas.
    Statistics {
        /// The batch of the round.
        batch: u64,
        /// The stage of both.
        stage: StageId,
    },
    /// Worker to worker, one tensor: a parameter, a buffer, or what the optimizer keeps for one, for a replica that takes it
    /// with [`ChangeMembership::take`].
    ReplicaState {
        /// The command, which both have got.
        id: u64,
        /// Its name.
        name: String,
        /// How many come in all.
        of: u32,
    },
    /// Worker to worker, one tensor, or none of a part that has none: part of a copy, which the receiver keeps.
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
    /// One tensor: a parameter or buffer, part of [`Command::LoadState`] or [`Command::Restore`], from the boss or who keeps it
    /// to the first replica of a stage, and from replica to replica as [`StagePlacement::takers`](crate::replicas::StagePlacement::takers) says.
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
    /// How many tensors may follow this head, at least and at most.
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

    /// Whether nobody waits for it, so that all else goes first.
    pub fn can_wait(&self) -> bool {
        matches!(self, Head::Keeping { .. })
    }

    /// Whether it goes on a stream of its own, so that a large tensor holds nothing up; the rest
    /// shares one ordered stream.
    pub fn is_data(&self) -> bool {
        self.tensors().1 > 0
    }
}

/// What a boss asks of a worker.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Command {
    /// Make stages and connect to those they exchange tensors with.
    Assign(Box<Assignment>),
    /// Go on with the same stages among other workers.
    ChangeMembership(Box<ChangeMembership>),
    /// Use this optimizer, with fresh state.
    SetOptimizer(OptimizerSpec),
    /// Carry out actions.
    Run(Box<Round>),
    /// Forget what is kept of a batch for backward.
    Discard {
        /// Which batch.
        batch: u64,
    },
    /// Find out what layers take, and say so with [`Head::Measured`].
    Measure(Vec<LayerProbe>),
    /// Send parameters and buffers as [`Head::State`], of this stage or of all.
    SendState {
        /// Of which; nothing for all.
        stage: Option<StageId>,
        /// And what the optimizer keeps for them.
        optimizer: bool,
    },
    /// Say what the trained parameters of each stage come to, with [`Head::Digests`].
    Digest,
    /// Make ids for communicators among the replicas of stages, and say them with [`Head::UniqueIds`].
    MakeIds,
    /// Make the communicators among the replicas of these stages, which all do.
    Communicate(Vec<(StageId, UniqueId)>),
    /// Take parameters and buffers, which come as [`Head::Weight`], and pass them on.
    LoadState {
        /// How many come.
        tensors: u32,
        /// What the optimizer keeps is among them; what is not begins anew.
        optimizer: bool,
    },
    /// Copy state, keep it, and exchange copies with other workers; each part that is kept is told with [`Head::Kept`].
    Keep(Box<Keep>),
    /// Say with [`Head::Copies`] what is kept of a run's copies.
    Copies {
        /// Which run.
        run: u64,
    },
    /// Take parameters, buffers and what the optimizer keeps, which come as [`Head::Weight`] from who keeps a copy, pass them
    /// on, and give out what is kept here.
    Restore {
        /// How many come.
        tensors: u32,
        /// From whom they come, where this worker is the first to have them.
        keepers: Vec<WorkerId>,
        /// What this worker gives out.
        recall: Box<Recall>,
    },
    /// Open a data set among this worker's own files, and see that it is the one that is meant.
    OpenData(Box<DataSpec>),
    /// Take the files that layers are made from, which come as [`Head::File`].
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

/// How a run stands, as one of its workers is told now and then.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Progress {
    /// Steps of the run so far.
    pub step: u64,
    /// The loss of the last one.
    pub loss: f32,
    /// In how many steps this worker took part.
    pub steps: u64,
    /// How many samples it took.
    pub samples: u64,
    /// Its part of the last batch, from 0 to 1.
    pub share: f64,
    /// How fast its slowest link to another worker is, in bytes a second, where it was measured.
    pub bytes_per_second: Option<u64>,
}

/// What a link is like.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LinkReport {
    /// A round trip.
    pub rtt: Micros,
    /// How fast it carries large tensors.
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
    /// The same within what can be: it comes from another machine, and is calculated with.
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
    /// How forward passes go on with those before, in evaluation.
    pub cached: Option<Cached>,
    /// What this worker does.
    pub actions: Vec<Action>,
    /// In which order.
    pub order: Order,
    /// Which replica takes which microbatch.
    pub microbatch_assignment: MicrobatchAssignment,
    /// How many microbatches the batch has.
    pub microbatches: u32,
    /// What this worker reads of inputs and targets by itself; nothing where they come from the boss.
    pub samples: Option<Samples>,
    /// In which order gradients are summed.
    pub reduction: Reduction,
    /// The loss, where the last stage computes it.
    pub loss: Option<RoundLoss>,
    /// Send the model's outputs to the boss.
    pub outputs: bool,
    /// Gradients of the model's outputs come from the boss.
    pub grads_from_boss: bool,
    /// How parameters change, where an action of the round changes them.
    pub update: Option<RoundUpdate>,
    /// What the worker looks out for.
    pub watch: Watch,
}

/// How the gradients of a batch's microbatches are summed.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Reduction {
    /// One after the other. It takes the least memory, and replicas cannot share it.
    #[default]
    Sequential,
    /// Along a [tree](crate::replicas::Tree), whose branches replicas can take.
    Tree,
    /// Along the tree by each replica, and then replica by replica, so that each sends one sum whatever it took. The result
    /// depends on who took which microbatch.
    Fast,
    /// The same, what travels in fewer bits.
    Compressed(Compress),
    /// Along the tree by each replica, and then by a collective operation among the devices ([`Command::Communicate`]): no
    /// gradient travels in frames.
    Collective,
}

impl Reduction {
    /// Whether every microbatch's gradients are made apart and summed at the end.
    pub fn is_apart(self) -> bool {
        self != Reduction::Sequential
    }

    /// In what form gradients travel, where that is not float32.
    pub fn compress(self) -> Option<Compress> {
        match self {
            Reduction::Compressed(compress) => Some(compress),
            Reduction::Sequential | Reduction::Tree | Reduction::Fast | Reduction::Collective => None,
        }
    }

    /// Whether a replica adds up all that its microbatches came to before it sends.
    pub fn adds_up_first(self) -> bool {
        matches!(self, Reduction::Fast | Reduction::Compressed(_) | Reduction::Collective)
    }

    /// Whether the sums over replicas are taken by a collective operation of the compute threads.
    pub fn is_collective(self) -> bool {
        self == Reduction::Collective
    }
}

/// How a round's gradients change parameters.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct RoundUpdate {
    /// The learning rate of this step.
    pub lr: f64,
    /// What every gradient is multiplied by before it is used.
    pub scale: f64,
    /// The gradients are shortened to this norm over all stages (`torch.nn.utils.clip_grad_norm_`), by
    /// [`Action::GradNorm`], which the round then has for every stage.
    pub max_norm: Option<f64>,
    /// Where the norm is no finite number, parameters and optimizer stay as they are. It goes with `max_norm`.
    pub skip_infinite: bool,
}

impl RoundUpdate {
    /// By what gradients of this norm, over all stages, are shortened, as PyTorch has it: not at all below the limit.
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
    /// For each microbatch its share of the batch: of its samples, or of the weight of its targets.
    pub weights: Vec<f64>,
}
