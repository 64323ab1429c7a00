//! The requests of the user, and the frames that carry them to workers.

use super::command;
use crate::cached::Cached;
use crate::effect::{BossEffect, Destination, Peer};
use crate::ids::{MicrobatchKey, Slot, StageId, WorkerId};
use crate::kept::{Give, Keep, Recall, Recalled, SnapshotId, SnapshotNote};
use crate::message::{Assignment, Command, Head, Mode, PeerAddress, Reduction, Round, RoundLoss, RoundUpdate};
use crate::optimizer::OptimizerSpec;
use crate::plan::Plan;
use crate::replicas::{BucketBytes, MicrobatchAssignment, MicrobatchOrder, UniqueId};
use crate::samples::{DataSpec, Samples};
use crate::schedule::{Action, Order};
use crate::task::LayerProbe;
use crate::watch::Watch;
use layerspec::ValueId;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

/// The default limit of batches that wait for their backward pass.
pub const MOST_WAITING: usize = 8;

/// The initial values of a session.
pub struct Setup {
    /// The stages and their workers.
    pub plan: Plan,
    /// The run's seed.
    pub seed: u64,
    /// The sizes of the buckets in which replicas exchange gradients.
    pub buckets: BucketBytes,
    /// The address at which each worker accepts direct connections, if any.
    pub addresses: Vec<Option<SocketAddr>>,
    /// The most batches that wait for their backward pass at a time; see [`MOST_WAITING`].
    pub most_waiting: usize,
}

impl Setup {
    /// The address at which a worker accepts direct connections.
    pub(super) fn address(&self, worker: WorkerId) -> Option<SocketAddr> {
        self.addresses.get(worker.0 as usize).copied().flatten()
    }
}

/// A request of the user to all workers.
#[derive(Clone, PartialEq, Debug)]
pub enum Request {
    /// Use this plan, for the same number of workers, from the next [`Request::Distribute`] on,
    /// which must come first.
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
    /// Continue with the same stages among these workers.
    ChangeMembership(Box<MembershipChange>),
    /// Use this optimizer, with fresh state.
    SetOptimizer(OptimizerSpec),
    /// Run a round of actions.
    Run(Box<RunRequest>),
    /// Discard a batch that gets no backward pass.
    Discard {
        /// Which batch.
        batch: u64,
    },
    /// Measure these layers on every worker.
    Measure(Vec<LayerProbe>),
    /// Report the last measured figures of all links.
    Links,
    /// Fetch parameters and buffers. Workers copy them, and continue with the next request while
    /// the copies travel.
    SendState {
        /// The stage. `None` is every stage.
        stage: Option<StageId>,
        /// Whether to fetch optimizer state, too.
        optimizer: bool,
    },
    /// Let workers store snapshots for each other. They continue with the next request while the
    /// snapshots travel.
    Keep(Box<Keeping>),
    /// List the snapshots of a run that workers store.
    Copies {
        /// Which run.
        run: u64,
    },
    /// Replace parameters, buffers and optimizer state by a snapshot that workers store.
    Restore {
        /// The snapshot.
        copy: SnapshotId,
        /// Every tensor, once for each stage that receives it.
        tensors: Vec<Recalled>,
    },
    /// Make an NCCL id for a communicator of each stage whose replicas sum gradients.
    MakeIds,
    /// Let the replicas of these stages make their communicators, and replace existing ones. A
    /// failed training step ends them.
    Communicate(Vec<(StageId, UniqueId)>),
    /// Fetch the hashes of the trained parameters of every stage of every worker.
    Digest,
    /// Replace parameters and buffers.
    LoadState {
        /// The stage whose replicas receive it, its [name](crate::StateName), and the tensor.
        tensors: Vec<(StageId, String, Slot)>,
        /// Whether optimizer state is among them. State that is missing then starts fresh.
        optimizer: bool,
    },
    /// End the run on every worker.
    Stop,
}

/// A snapshot that workers store for each other, or the part of it that belongs to one stage.
#[derive(Clone, PartialEq, Debug)]
pub struct Keeping {
    /// The snapshot.
    pub copy: SnapshotId,
    /// The note that is stored with it.
    pub note: SnapshotNote,
    /// The last complete snapshot. Older ones are dropped.
    pub last: Option<SnapshotId>,
    /// The stage. `None` is every stage.
    pub stage: Option<StageId>,
    /// The number of parts that were requested before.
    pub before: u32,
    /// The worker that also stores the parts of each worker. The default is the next worker. A
    /// neighbour with the same state makes the part itself.
    pub neighbours: BTreeMap<WorkerId, WorkerId>,
}

impl Keeping {
    /// The keepers of each part.
    pub(super) fn parts(&self, plan: &Plan) -> BTreeMap<u32, Keepers> {
        let members = plan.stage_placement.members();
        let next = |worker: WorkerId| {
            let after = members.iter().find(|other| **other > worker).or(members.first());
            after.copied().unwrap_or(worker)
        };
        let keepers = |owner| {
            let other = self.neighbours.get(&owner).copied().unwrap_or_else(|| next(owner));
            Keepers { owner, other, sends: !has_same_state(plan, owner, other) }
        };
        (self.before..).zip(speakers(plan, self.stage, true).into_iter().map(keepers)).collect()
    }
}

/// The two workers that store a part of a snapshot.
#[derive(Copy, Clone)]
pub(super) struct Keepers {
    /// The worker whose state it is.
    pub(super) owner: WorkerId,
    /// The neighbour that stores it, too.
    pub(super) other: WorkerId,
    /// Whether the owner sends it, because the neighbour does not have the same state.
    pub(super) sends: bool,
}

impl Keepers {
    /// The copy that a worker makes of this part, if any.
    fn give(self, part: u32, worker: WorkerId) -> Option<Give> {
        let Keepers { owner: of, other, sends } = self;
        let makes = worker == of || (!sends && worker == other);
        makes.then_some(Give { part, of, to: sends.then_some(other) })
    }
}

/// Whether another worker is a replica of exactly the stages that this worker speaks for, so that
/// both have the same state.
pub fn has_same_state(plan: &Plan, speaker: WorkerId, other: WorkerId) -> bool {
    let both = |workers: &[WorkerId]| (workers.first() == Some(&speaker)) == workers.contains(&other);
    // Replicas that shard the optimizer state have different parts of it.
    speaker != other && plan.sharding.is_none() && plan.stage_placement.iter().all(|(_, workers)| both(workers))
}

/// What a worker needs that joined during training.
#[derive(Clone, PartialEq, Debug)]
pub struct Prepare {
    /// Which worker.
    pub worker: WorkerId,
    /// The plan that includes it.
    pub plan: Plan,
    /// The files that layers are built from, as for [`Request::SendFiles`].
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
    pub cached: Option<Cached>,
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
    /// What workers check during the round.
    pub watch: Watch,
    /// The loss, if the last stage computes it.
    pub loss: Option<RoundLoss>,
    /// Whether the model's outputs come back.
    pub outputs: bool,
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
            cached: None,
            actions,
            order: Order::Listed,
            microbatch_assignment: MicrobatchAssignment::default(),
            microbatches: 1,
            reduction,
            update: None,
            watch: Watch::default(),
            loss: None,
            outputs: false,
            samples: None,
            inputs: Vec::new(),
            targets: Vec::new(),
            grads: None,
        }
    }

    /// Whether its batch waits for a backward pass afterwards; nothing where it changes nothing about that.
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
        self.leaves() == Some(false) && !self.actions.iter().flatten().any(|a| matches!(a, Action::Forward { .. }))
    }
}

impl Request {
    /// Every tensor in it, for letting go of a request that is not carried out.
    pub(super) fn into_slots(self) -> Vec<Slot> {
        match self {
            Request::Run(run) => {
                let grads = run.grads.into_iter().flatten().flat_map(|(.., slots)| slots);
                let inputs = run.inputs.into_iter().map(|(.., slot)| slot);
                inputs.chain(run.targets.into_iter().map(|(_, slot)| slot)).chain(grads).collect()
            }
            Request::LoadState { tensors, .. } => tensors.into_iter().map(|(.., slot)| slot).collect(),
            Request::SendFiles(files) => files.into_iter().map(|(_, slot)| slot).collect(),
            Request::Prepare(prepare) => prepare.files.into_iter().map(|(_, slot)| slot).collect(),
            Request::Distribute
            | Request::ChangeMembership(_)
            | Request::SetOptimizer(_)
            | Request::Discard { .. }
            | Request::Use(_)
            | Request::Measure(_)
            | Request::Links
            | Request::Digest
            | Request::MakeIds
            | Request::Communicate(_)
            | Request::OpenData(_)
            | Request::SendState { .. }
            | Request::Keep(_)
            | Request::Copies { .. }
            | Request::Restore { .. }
            | Request::Stop => Vec::new(),
        }
    }

    /// Which workers send which others what they keep, or are to keep.
    pub(super) fn lends(&self, plan: &Plan) -> Vec<(WorkerId, WorkerId)> {
        match self {
            Request::Keep(keeping) => {
                let sent = keeping.parts(plan).into_values().filter(|keepers| keepers.sends);
                sent.map(|keepers| (keepers.owner, keepers.other)).collect()
            }
            Request::Restore { tensors, .. } => {
                let pair = |tensor: &Recalled| Some((tensor.keeper, plan.stage_placement.first(tensor.stage)?));
                tensors.iter().filter_map(pair).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The frames that carry it out.
    pub(super) fn sends(self, id: u64, setup: &Setup) -> Vec<BossEffect> {
        let plan = &setup.plan;
        let workers = plan.stage_placement.members().into_iter();
        let to_all = |body: &dyn Fn(WorkerId) -> Command| {
            let to = workers.clone().map(|w| command(w, id, body(w))).collect();
            BossEffect::Send { to, slots: Vec::new() }
        };
        match self {
            Request::Distribute => {
                vec![to_all(&|w| Command::Assign(Box::new(assignment(plan, setup, w))))]
            }
            Request::SetOptimizer(spec) => vec![to_all(&|_| Command::SetOptimizer(spec))],
            Request::Digest => vec![to_all(&|_| Command::Digest)],
            Request::Keep(keeping) => {
                let parts = keeping.parts(plan);
                let Keeping { copy, note, last, stage, .. } = *keeping;
                let keep = |worker: WorkerId| {
                    let comes = |keepers: &Keepers| keepers.sends && keepers.other == worker && keepers.owner != worker;
                    let of_others = parts.iter().filter(|(_, keepers)| comes(keepers));
                    Keep {
                        copy,
                        note: note.clone(),
                        last,
                        stage,
                        give: parts.iter().find_map(|(part, keepers)| keepers.give(*part, worker)),
                        take: of_others.map(|(part, keepers)| (*part, keepers.owner)).collect(),
                    }
                };
                vec![to_all(&|w| Command::Keep(Box::new(keep(w))))]
            }
            Request::Copies { run } => vec![to_all(&|_| Command::Copies { run })],
            Request::Restore { copy, tensors } => {
                let restore = |worker| {
                    let comes =
                        tensors.iter().filter(|tensor| plan.stage_placement.has(tensor.stage, worker)).count() as u32;
                    let first =
                        tensors.iter().filter(|tensor| plan.stage_placement.first(tensor.stage) == Some(worker));
                    let keepers: BTreeSet<WorkerId> = first.map(|tensor| tensor.keeper).collect();
                    let keepers = keepers.into_iter().collect();
                    let kept = tensors.iter().filter(|tensor| tensor.keeper == worker);
                    let kept = kept.map(|tensor| (tensor.part, tensor.name.clone(), tensor.stage)).collect();
                    Command::Restore { tensors: comes, keepers, recall: Box::new(Recall { copy, tensors: kept }) }
                };
                vec![to_all(&restore)]
            }
            Request::MakeIds => {
                let makers = id_makers(plan).into_keys();
                let to = makers.map(|w| command(w, id, Command::MakeIds)).collect();
                vec![BossEffect::Send { to, slots: Vec::new() }]
            }
            Request::Communicate(ids) => {
                let of = |w| ids.iter().filter(|(stage, _)| plan.stage_placement.has(*stage, w)).cloned().collect();
                vec![to_all(&|w| Command::Communicate(of(w)))]
            }
            Request::Discard { batch } => vec![to_all(&|_| Command::Discard { batch })],
            Request::Measure(probes) => vec![to_all(&|_| Command::Measure(probes.clone()))],
            // Answered without the workers, or seen to by `members`.
            Request::Use(_) | Request::Links | Request::Prepare(_) | Request::ChangeMembership(_) | Request::Stop => {
                Vec::new()
            }
            // Replicas have the same; the first speaks.
            Request::SendState { stage, optimizer } => {
                let body = Command::SendState { stage, optimizer };
                let to = speakers(plan, stage, optimizer).into_iter().map(|w| command(w, id, body.clone())).collect();
                vec![BossEffect::Send { to, slots: Vec::new() }]
            }
            Request::OpenData(spec) => {
                let to = readers(plan).into_iter().map(|w| command(w, id, Command::OpenData(spec.clone()))).collect();
                vec![BossEffect::Send { to, slots: Vec::new() }]
            }
            Request::Run(run) => {
                let readers = readers(plan);
                let mut sends = vec![to_all(&|w| Command::Run(Box::new(round(&run, w, readers.contains(&w)))))];
                sends.extend(tensors(*run, plan));
                sends
            }
            Request::LoadState { tensors, optimizer } => {
                let count = |w| tensors.iter().filter(|(stage, ..)| plan.stage_placement.has(*stage, w)).count() as u32;
                let mut sends = vec![to_all(&|w| Command::LoadState { tensors: count(w), optimizer })];
                // The first replica passes them on.
                sends.extend(tensors.into_iter().map(|(stage, name, slot)| match plan.stage_placement.first(stage) {
                    Some(first) => {
                        let head = Head::Weight { id, name, stage };
                        let to = vec![Destination { peer: Peer::Worker(first), route: None, head }];
                        BossEffect::Send { to, slots: vec![slot] }
                    }
                    None => BossEffect::Drop(vec![slot]),
                }));
                sends
            }
            Request::SendFiles(files) => send_files(id, files, &workers.collect::<Vec<_>>()),
        }
    }
}

/// The frames that bring workers the files that layers are made from.
pub(super) fn send_files(id: u64, files: Vec<(String, Slot)>, workers: &[WorkerId]) -> Vec<BossEffect> {
    let count = files.len() as u32;
    let commands = workers.iter().map(|w| command(*w, id, Command::TakeFiles { files: count })).collect();
    let mut sends = vec![BossEffect::Send { to: commands, slots: Vec::new() }];
    sends.extend(files.into_iter().map(|(name, slot)| {
        let head = Head::File { id, name };
        let to = |w: &WorkerId| Destination { peer: Peer::Worker(*w), route: None, head: head.clone() };
        BossEffect::Send { to: workers.iter().map(to).collect(), slots: vec![slot] }
    }));
    sends
}

/// The workers that hand out parameters: the first replica of each stage, or of this one. Where replicas share out what the
/// optimizer keeps, and that is handed out, too, each has a part of it.
pub fn speakers(plan: &Plan, only: Option<StageId>, optimizer: bool) -> BTreeSet<WorkerId> {
    let wanted = plan.stage_placement.iter().filter(|(stage, _)| only.is_none_or(|only| only == *stage));
    let most = if optimizer && plan.sharding.is_some() { usize::MAX } else { 1 };
    wanted.flat_map(|(_, workers)| workers.iter().take(most)).copied().collect()
}

/// Who makes the ids of which stages' communicators.
pub(super) fn id_makers(plan: &Plan) -> BTreeMap<WorkerId, Vec<StageId>> {
    let mut makers: BTreeMap<WorkerId, Vec<StageId>> = BTreeMap::new();
    for stage in plan.summing() {
        if let Some(first) = plan.stage_placement.first(stage) {
            makers.entry(first).or_default().push(stage);
        }
    }
    makers
}

/// The workers that have a stage which takes samples.
pub(super) fn readers(plan: &Plan) -> BTreeSet<WorkerId> {
    let taking = plan.stages.iter().filter(|spec| spec.takes_samples());
    taking.flat_map(|spec| plan.stage_placement.of(spec.stage)).copied().collect()
}

pub(super) fn assignment(plan: &Plan, setup: &Setup, worker: WorkerId) -> Assignment {
    let Setup { seed, buckets, .. } = *setup;
    // The lower number dials. One that makes no direct connections is not dialled and does not dial.
    let peers = plan.peers_of(worker).into_iter().map(|peer| PeerAddress {
        worker: peer,
        address: setup.address(worker).and(setup.address(peer)),
        dial: worker < peer,
        relayed: false,
    });
    let peers = peers.collect();
    let (stages, stage_placement, sharding) = (plan.stages_of(worker), plan.stage_placement.clone(), plan.sharding);
    Assignment { worker, stages, stage_placement, buckets, sharding, peers, seed }
}

/// What a worker is told of a round, which may have stages that take samples.
pub(super) fn round(run: &RunRequest, worker: WorkerId, reads: bool) -> Round {
    Round {
        batch: run.batch,
        step: run.step,
        mode: run.mode,
        cached: run.cached.clone(),
        actions: run.actions.get(worker.0 as usize).cloned().unwrap_or_default(),
        loss: run.loss.clone(),
        outputs: run.outputs,
        samples: run.samples.clone().filter(|_| reads),
        grads_from_boss: run.grads.is_some(),
        order: run.order.clone(),
        microbatch_assignment: run.microbatch_assignment.clone(),
        microbatches: run.microbatches,
        reduction: run.reduction,
        update: run.update,
        watch: run.watch,
    }
}

/// The frames that bring a round its tensors: inputs to the stages that use them, targets to the
/// stage that computes the loss, gradients to the stages that made the outputs.
fn tensors(run: RunRequest, plan: &Plan) -> Vec<BossEffect> {
    let batch = run.batch;
    let microbatch_order = MicrobatchOrder::new(&run.microbatch_assignment, &plan.stage_placement, run.microbatches);
    let microbatch_assignment = run.microbatch_assignment;
    let send = |index: u32, stages: Vec<StageId>, slots: Vec<Slot>, head: &dyn Fn(StageId) -> Head| {
        let to = stages.into_iter().filter_map(|stage| {
            let peer = Peer::Worker(microbatch_assignment.worker(&plan.stage_placement, stage, index)?);
            Some(Destination { peer, route: None, head: head(stage) })
        });
        let to: Vec<_> = to.collect();
        if to.is_empty() {
            BossEffect::Drop(slots)
        } else {
            BossEffect::Send { to, slots }
        }
    };
    let users = |value: ValueId| {
        let uses = plan.stages.iter().filter(|s| s.inputs.iter().any(|i| i.value == value && i.from.is_none()));
        uses.map(|s| s.stage).collect::<Vec<_>>()
    };
    let maker = |wanted: &dyn Fn(&crate::plan::StageOutput) -> bool| {
        plan.stages.iter().find(|s| s.outputs.iter().any(wanted)).map(|s| s.stage).into_iter().collect::<Vec<_>>()
    };
    let inputs = run.inputs.into_iter().map(|(index, value, slot)| {
        let key = MicrobatchKey { batch, index };
        (index, send(index, users(value), vec![slot], &|to| Head::Value { key, value, to }))
    });
    let targets = run.targets.into_iter().map(|(index, slot)| {
        let key = MicrobatchKey { batch, index };
        (index, send(index, maker(&|o| o.model_output == Some(0)), vec![slot], &|to| Head::Target { key, to }))
    });
    let grads = run.grads.into_iter().flatten().map(|(index, value, slots)| {
        let key = MicrobatchKey { batch, index };
        let head = |to| Head::Gradient { key, value, from: None, to };
        (index, send(index, maker(&|o| o.value == value && o.needs_grad), slots, &head))
    });
    let mut sends: Vec<_> = inputs.chain(targets).chain(grads).collect();
    sends.sort_by_key(|(index, _)| microbatch_order.of(*index));
    sends.into_iter().map(|(_, send)| send).collect()
}
