//! The commands and tensors that carry out a request.

use super::collector::state_window;
use super::request::{Instruction, ListSnapshots, Measure, Request, SendState, Setup};
use super::round_frames::{round, tensors};
use super::snapshot_request::{restore_snapshot, store_snapshot};
use crate::effect::{BossEffect, Destination, Message, Peer};
use crate::ids::{Slot, StageId, WorkerId};
use crate::message::{Assignment, Command, PeerAddress, TensorHead, ToWorker};
use crate::peer_snapshot::state_senders;
use crate::plan::Plan;
use std::collections::{BTreeMap, BTreeSet};

/// A command for one worker.
pub(super) fn command(to: WorkerId, id: u64, body: Command) -> Message {
    Message { to, body: ToWorker::Command { id, body } }
}

/// The commands of a request, and the frames with its tensors.
pub(super) fn commands(request: Request, id: u64, setup: &Setup) -> Vec<BossEffect> {
    let plan = &setup.plan;
    let workers = plan.stage_placement.members().into_iter();
    let to_all = |body: &dyn Fn(WorkerId) -> Command| {
        let to = workers.clone().map(|w| command(w, id, body(w))).collect();
        BossEffect::Tell(to)
    };
    match request {
        Request::Instruct(Instruction::Distribute) => {
            vec![to_all(&|w| Command::Assign(Box::new(assignment(plan, setup, w))))]
        }
        Request::Instruct(Instruction::SetOptimizer(spec)) => {
            vec![to_all(&|_| Command::SetOptimizer(spec))]
        }
        Request::Digest(_) => vec![to_all(&|_| Command::Digest)],
        Request::Instruct(Instruction::StoreSnapshot(request)) => {
            let store = store_snapshot(*request, plan);
            vec![to_all(&store)]
        }
        Request::ListSnapshots(ListSnapshots { run }) => {
            vec![to_all(&|_| Command::ListSnapshots { run })]
        }
        Request::Instruct(Instruction::RestoreSnapshot { snapshot, tensors }) => {
            let restore = restore_snapshot(snapshot, &tensors, plan);
            vec![to_all(&restore)]
        }
        Request::MakeIds(_) => to_some(id, id_makers(plan).into_keys(), &Command::MakeIds),
        Request::Instruct(Instruction::Communicate(ids)) => {
            let of = |w| {
                ids.iter()
                    .filter(|(stage, _)| plan.stage_placement.has(*stage, w))
                    .cloned()
                    .collect()
            };
            vec![to_all(&|w| Command::Communicate(of(w)))]
        }
        Request::Instruct(Instruction::Discard { batch }) => {
            vec![to_all(&|_| Command::Discard { batch })]
        }
        Request::Measure(Measure(probes)) => vec![to_all(&|_| Command::Measure(probes.clone()))],
        // Answered without the workers, or handled by `members`.
        Request::Instruct(Instruction::Use(_))
        | Request::ReportLinks(_)
        | Request::Instruct(Instruction::Prepare(_))
        | Request::ChangeMembership(_)
        | Request::Instruct(Instruction::Stop) => Vec::new(),
        // Replicas have the same state. The first one sends it.
        Request::SendState(SendState { stage, optimizer, form }) => {
            let senders = state_senders(plan, stage, optimizer);
            let window = state_window(senders.len());
            let command = Command::SendState { stage, optimizer, form, window };
            to_some(id, senders.into_iter(), &command)
        }
        Request::Instruct(Instruction::OpenData(spec)) => {
            to_some(id, readers(plan).into_iter(), &Command::OpenData(spec))
        }
        Request::Run(run) => {
            let readers = readers(plan);
            let mut sends =
                vec![to_all(&|w| Command::Run(Box::new(round(&run, w, readers.contains(&w)))))];
            sends.extend(tensors(*run, plan));
            sends
        }
        Request::Instruct(Instruction::LoadState { tensors, content, more: _ }) => {
            let has = |stage, worker| plan.stage_placement.has(stage, worker);
            let count = |w| tensors.iter().filter(|(stage, ..)| has(*stage, w)).count() as u32;
            let mut sends = vec![to_all(&|w| Command::LoadState { tensors: count(w), content })];
            let weights = tensors.into_iter();
            sends.extend(weights.map(|(stage, name, slot)| {
                weight(plan, TensorHead::Weight { id, name, stage }, stage, slot)
            }));
            sends
        }
        Request::Instruct(Instruction::SendFiles(files)) => {
            send_files(id, files, &workers.collect::<Vec<_>>())
        }
    }
}

/// The same command for some workers.
fn to_some(id: u64, workers: impl Iterator<Item = WorkerId>, body: &Command) -> Vec<BossEffect> {
    vec![BossEffect::Tell(workers.map(|w| command(w, id, body.clone())).collect())]
}

/// The frame with a weight for the first replica of a stage, which passes it on.
fn weight(plan: &Plan, head: TensorHead, stage: StageId, slot: Slot) -> BossEffect {
    match plan.stage_placement.first(stage) {
        Some(first) => {
            let to = vec![Destination { peer: Peer::Worker(first), route: None, head }];
            BossEffect::Send { to, slots: vec![slot] }
        }
        None => BossEffect::Drop(vec![slot]),
    }
}

/// The frames with the files that layers are built from.
pub(super) fn send_files(
    id: u64,
    files: Vec<(String, Slot)>,
    workers: &[WorkerId],
) -> Vec<BossEffect> {
    let count = files.len() as u32;
    let commands =
        workers.iter().map(|w| command(*w, id, Command::TakeFiles { files: count })).collect();
    let mut sends = vec![BossEffect::Tell(commands)];
    sends.extend(files.into_iter().map(|(name, slot)| {
        let head = TensorHead::File { id, name };
        let to =
            |w: &WorkerId| Destination { peer: Peer::Worker(*w), route: None, head: head.clone() };
        BossEffect::Send { to: workers.iter().map(to).collect(), slots: vec![slot] }
    }));
    sends
}

/// The workers that make ids of communicators, with the stages of these.
pub(super) fn id_makers(plan: &Plan) -> BTreeMap<WorkerId, Vec<StageId>> {
    let mut makers: BTreeMap<WorkerId, Vec<StageId>> = BTreeMap::new();
    for stage in plan.summing() {
        if let Some(first) = plan.stage_placement.first(stage) {
            makers.entry(first).or_default().push(stage);
        }
    }
    makers
}

/// The workers with a stage that reads samples.
pub(super) fn readers(plan: &Plan) -> BTreeSet<WorkerId> {
    let taking = plan.stages.iter().filter(|spec| spec.takes_samples());
    taking.flat_map(|spec| plan.stage_placement.of(spec.stage)).copied().collect()
}

pub(super) fn assignment(plan: &Plan, setup: &Setup, worker: WorkerId) -> Assignment {
    let Setup { seed, determinism, initialization, buckets, .. } = *setup;
    // The worker with the lower number dials. A worker without direct connections neither dials nor
    // is dialled.
    let peers = plan.peers_of(worker).into_iter().map(|peer| PeerAddress {
        worker: peer,
        address: setup.address(worker).and(setup.address(peer)),
        dial: worker < peer,
        relayed: false,
    });
    let peers = peers.collect();
    let (stages, stage_placement, sharding) =
        (plan.stages_of(worker), plan.stage_placement.clone(), plan.sharding);
    Assignment {
        worker,
        stages,
        stage_placement,
        buckets,
        sharding,
        peers,
        seed,
        determinism,
        initialization,
    }
}
