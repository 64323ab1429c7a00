//! The requests of the user, and the frames that carry them to workers.

use super::snapshot_request::SnapshotRequest;
use crate::determinism::Determinism;
use crate::ids::{Slot, StageId, WorkerId};
use crate::initialization::Initialization;
use crate::kv_cache_step::KvCacheStep;
use crate::message::{Mode, Reduction, RoundLoss, RoundUpdate};
use crate::optimizer::OptimizerSpec;
use crate::peer_snapshot::{SnapshotId, StoredTensor};
use crate::plan::Plan;
use crate::replicas::{BucketBytes, MicrobatchAssignment, UniqueId};
use crate::round_outputs::RoundOutputs;
use crate::samples::{DataSpec, Samples};
use crate::schedule::{Action, Order};
use crate::task::{LayerProbe, LoadContent};
use crate::watch::Watch;
use crate::StateForm;
use layerspec::ValueId;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// The default limit of batches that wait for their backward pass.
pub const MAX_PENDING_BATCHES: usize = 8;

/// The initial values of a session.
pub struct Setup {
    /// The stages and their workers.
    pub plan: Plan,
    /// The run's seed.
    pub seed: u64,
    /// Whether GPUs use deterministic kernels only.
    pub determinism: Determinism,
    /// When the initial values of parameters are drawn.
    pub initialization: Initialization,
    /// The sizes of the buckets in which replicas exchange gradients.
    pub buckets: BucketBytes,
    /// The address at which each worker accepts direct connections, if any.
    pub addresses: Vec<Option<SocketAddr>>,
    /// The most batches that wait for their backward pass at a time; see [`MAX_PENDING_BATCHES`].
    pub max_pending_batches: usize,
}

impl Setup {
    /// The values for a plan where nothing else is set. No worker accepts direct connections.
    pub fn new(plan: Plan) -> Self {
        Setup {
            plan,
            seed: 0,
            determinism: Determinism::default(),
            initialization: Initialization::default(),
            buckets: BucketBytes::default(),
            addresses: Vec::new(),
            max_pending_batches: MAX_PENDING_BATCHES,
        }
    }

    /// The address at which a worker accepts direct connections.
    pub(super) fn address(&self, worker: WorkerId) -> Option<SocketAddr> {
        self.addresses.get(worker.0 as usize).copied().flatten()
    }
}

/// A request of the user to all workers. Its answer is the [`Answer`](super::Answer) with the
/// same name. [`IntoRequest`](super::IntoRequest) gives each its own type.
#[derive(Clone, PartialEq, Debug)]
pub enum Request {
    /// Do something that has no result.
    Instruct(Instruction),
    /// Run a round of actions.
    Run(Box<RunRequest>),
    /// Continue with the same stages among these workers.
    ChangeMembership(Box<MembershipChange>),
    /// Measure layers.
    Measure(Measure),
    /// Report the figures of links.
    ReportLinks(ReportLinks),
    /// Fetch state.
    SendState(SendState),
    /// List stored snapshots.
    ListSnapshots(ListSnapshots),
    /// Make NCCL ids.
    MakeIds(MakeIds),
    /// Fetch hashes of parameters.
    Digest(Digest),
}

/// A request that only succeeds or fails.
#[derive(Clone, PartialEq, Debug)]
pub enum Instruction {
    /// Use this plan, for the same number of workers, from the next [`Instruction::Distribute`]
    /// on, which must come first.
    Use(Box<Plan>),
    /// Send every worker the files that layers are built from: the SHA-256 and the bytes of each.
    SendFiles(Vec<(String, Slot)>),
    /// Send every worker its stages.
    Distribute,
    /// Let the workers whose stages read samples open this data set among their own files.
    OpenData(Box<DataSpec>),
    /// Prepare a worker that joined during training: its stages, with parameters that will be
    /// replaced, and its links. Runs beside other requests.
    Prepare(Box<Prepare>),
    /// Use this optimizer, with fresh state.
    SetOptimizer(OptimizerSpec),
    /// Discard a batch that gets no backward pass.
    Discard {
        /// Which batch.
        batch: u64,
    },
    /// Let workers store snapshots for each other. They continue with the next request while the
    /// snapshots travel.
    StoreSnapshot(Box<SnapshotRequest>),
    /// Replace parameters, buffers and optimizer state by a snapshot that workers store.
    RestoreSnapshot {
        /// The snapshot.
        snapshot: SnapshotId,
        /// Every tensor, once for each stage that receives it.
        tensors: Vec<StoredTensor>,
    },
    /// Let the replicas of these stages make their communicators, and replace existing ones. A
    /// failed training step ends them.
    Communicate(Vec<(StageId, UniqueId)>),
    /// Replace parameters, buffers and optimizer state.
    LoadState {
        /// The stage whose replicas receive it, its [name](crate::StateName), and the tensor.
        tensors: Vec<(StageId, String, Slot)>,
        /// What they are.
        content: LoadContent,
        /// Whether more of the same load follows. Until its last part has come, the model is not
        /// whole, and is neither trained nor read.
        more: bool,
    },
    /// End the run on every worker.
    Stop,
}

/// Measures these layers on every worker.
#[derive(Clone, PartialEq, Debug)]
pub struct Measure(pub Vec<LayerProbe>);

/// Reports the last measured figures of all links.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct ReportLinks;

/// Fetches parameters and buffers. Workers copy them, and continue with the next request while the
/// copies travel, each as a [`BossEffect::State`](crate::effect::BossEffect::State). The answer
/// comes after the last one.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct SendState {
    /// The stage. `None` is every stage.
    pub stage: Option<StageId>,
    /// Whether to fetch optimizer state, too.
    pub optimizer: bool,
    /// In which form.
    pub form: StateForm,
}

/// Lists the snapshots of a run that workers store.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct ListSnapshots {
    /// Which run.
    pub run: u64,
}

/// Makes an NCCL id for a communicator of each stage whose replicas sum gradients.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct MakeIds;

/// Fetches the hashes of the trained parameters of every stage of every worker.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Digest;

/// The preparation of a worker that joined during training.
#[derive(Clone, PartialEq, Debug)]
pub struct Prepare {
    /// Which worker.
    pub worker: WorkerId,
    /// The plan that includes it.
    pub plan: Plan,
    /// The files that layers are built from, as for [`Instruction::SendFiles`].
    pub files: Vec<(String, Slot)>,
    /// The optimizer.
    pub optimizer: OptimizerSpec,
    /// The data sets that workers read from their own files.
    pub data: Vec<DataSpec>,
}

/// The new placement of the stages.
#[derive(Clone, PartialEq, Debug)]
pub struct MembershipChange {
    /// The same stages as before, with their workers.
    pub plan: Plan,
    /// The followers, each with the worker of the same stages that provides its state.
    pub followers: BTreeMap<WorkerId, WorkerId>,
}

/// A round of actions and the tensors it starts from.
#[derive(Clone, PartialEq, Debug)]
pub struct RunRequest {
    /// The batch it works on.
    pub batch: u64,
    /// The training step, which random draws depend on.
    pub step: u64,
    /// Training or evaluation.
    pub mode: Mode,
    /// How forward passes continue a sequence with cached keys and values, in evaluation.
    pub kv_cache: Option<KvCacheStep>,
    /// The actions of each worker.
    pub actions: Vec<Vec<Action>>,
    /// Their order.
    pub order: Order,
    /// Which replica takes which microbatch.
    pub microbatch_assignment: MicrobatchAssignment,
    /// The number of microbatches of the batch.
    pub microbatches: u32,
    /// The order in which gradients are summed.
    pub reduction: Reduction,
    /// How parameters change, if an action of the round changes them.
    pub update: Option<RoundUpdate>,
    /// The checks of workers during the round.
    pub watch: Watch,
    /// The loss, if the last stage computes it.
    pub loss: Option<RoundLoss>,
    /// The model's outputs that come back.
    pub outputs: RoundOutputs,
    /// The inputs and targets that workers read from their own files. The next two fields are then
    /// empty.
    pub samples: Option<Samples>,
    /// The model's inputs, by microbatch.
    pub inputs: Vec<(u32, ValueId, Slot)>,
    /// The targets, by microbatch.
    pub targets: Vec<(u32, Slot)>,
    /// Gradients of the model's outputs, if the boss sends them.
    pub grads: Option<Vec<(u32, ValueId, Vec<Slot>)>>,
}

impl RunRequest {
    /// A round in evaluation mode that has these actions and no tensors.
    pub fn of(batch: u64, actions: Vec<Vec<Action>>, reduction: Reduction) -> Self {
        RunRequest {
            batch,
            step: 0,
            mode: Mode::Eval,
            kv_cache: None,
            actions,
            order: Order::Listed,
            microbatch_assignment: MicrobatchAssignment::default(),
            microbatches: 1,
            reduction,
            update: None,
            watch: Watch::default(),
            loss: None,
            outputs: RoundOutputs::None,
            samples: None,
            inputs: Vec::new(),
            targets: Vec::new(),
            grads: None,
        }
    }

    /// Whether its batch waits for a backward pass afterwards. `None` if it leaves that unchanged.
    pub(super) fn leaves(&self) -> Option<bool> {
        let has = |wanted: fn(&Action) -> bool| self.actions.iter().flatten().any(wanted);
        let forward = has(|a| matches!(a, Action::Forward { .. }));
        let backward = has(|a| matches!(a, Action::Backward { .. } | Action::BackwardInput { .. }));
        match (self.mode, forward, backward) {
            (Mode::Train, true, false) => Some(true),
            (Mode::Train, _, true) => Some(false),
            _ => None,
        }
    }

    pub(super) fn is_backward_only(&self) -> bool {
        self.leaves() == Some(false)
            && !self.actions.iter().flatten().any(|a| matches!(a, Action::Forward { .. }))
    }
}

impl Request {
    /// Every tensor in it, to free a request that is not carried out.
    pub fn into_slots(self) -> Vec<Slot> {
        match self {
            Request::Run(run) => {
                let grads = run.grads.into_iter().flatten().flat_map(|(.., slots)| slots);
                let inputs = run.inputs.into_iter().map(|(.., slot)| slot);
                inputs.chain(run.targets.into_iter().map(|(_, slot)| slot)).chain(grads).collect()
            }
            Request::Instruct(instruction) => instruction.into_slots(),
            _ => Vec::new(),
        }
    }

    /// The number of tensors in it.
    pub(super) fn slot_count(&self) -> usize {
        match self {
            Request::Run(run) => {
                let grads = run.grads.iter().flatten().map(|(.., slots)| slots.len());
                run.inputs.len() + run.targets.len() + grads.sum::<usize>()
            }
            Request::Instruct(instruction) => instruction.slot_count(),
            _ => 0,
        }
    }

    /// The pairs of workers of which one sends the other parts of snapshots.
    pub(super) fn snapshot_routes(&self, plan: &Plan) -> Vec<(WorkerId, WorkerId)> {
        match self {
            Request::Instruct(Instruction::StoreSnapshot(request)) => {
                let sent = request.parts(plan).into_values().filter(|holders| holders.sends);
                sent.map(|holders| (holders.owner, holders.other)).collect()
            }
            Request::Instruct(Instruction::RestoreSnapshot { tensors, .. }) => {
                let pair = |tensor: &StoredTensor| {
                    Some((tensor.holder, plan.stage_placement.first(tensor.stage)?))
                };
                tensors.iter().filter_map(pair).collect()
            }
            _ => Vec::new(),
        }
    }
}

impl Instruction {
    fn slot_count(&self) -> usize {
        match self {
            Instruction::LoadState { tensors, .. } => tensors.len(),
            Instruction::SendFiles(files) => files.len(),
            Instruction::Prepare(prepare) => prepare.files.len(),
            Instruction::Use(_)
            | Instruction::Distribute
            | Instruction::OpenData(_)
            | Instruction::SetOptimizer(_)
            | Instruction::Discard { .. }
            | Instruction::StoreSnapshot(_)
            | Instruction::RestoreSnapshot { .. }
            | Instruction::Communicate(_)
            | Instruction::Stop => 0,
        }
    }

    fn into_slots(self) -> Vec<Slot> {
        match self {
            Instruction::LoadState { tensors, .. } => {
                tensors.into_iter().map(|(.., slot)| slot).collect()
            }
            Instruction::SendFiles(files) => files.into_iter().map(|(_, slot)| slot).collect(),
            Instruction::Prepare(prepare) => {
                prepare.files.into_iter().map(|(_, slot)| slot).collect()
            }
            Instruction::Use(_)
            | Instruction::Distribute
            | Instruction::OpenData(_)
            | Instruction::SetOptimizer(_)
            | Instruction::Discard { .. }
            | Instruction::StoreSnapshot(_)
            | Instruction::RestoreSnapshot { .. }
            | Instruction::Communicate(_)
            | Instruction::Stop => Vec::new(),
        }
    }
}
