//! Collects the answer to a request: what every command has in common, and the parts that this
//! request waits for.
//!
//! ```text
//! Collector -> run (losses, outputs, health) -> norms
//!     +------> per_worker (one answer from each worker)
//!     +------> state (tensors that pass through)
//! ```

mod clock;
mod norms;
mod per_worker;
mod run;
mod state;

use super::answer::Answer;
use super::commands::id_makers;
use super::request::{Instruction, Measure, Request};
use crate::effect::BossEffect;
use crate::ids::{Slot, StageId, WorkerId};
use crate::message::ToBoss;
use crate::micros::Micros;
use crate::peer_snapshot::{PartHolders, PeerSnapshot, MAX_SNAPSHOTS};
use crate::plan::Plan;
use crate::task::LayerTimes;
use clock::Clock;
use layerspec::ValueId;
use per_worker::PerWorker;
use run::RunParts;
pub(super) use state::state_window;
use state::StateParts;
use std::collections::{BTreeMap, BTreeSet};

/// The workers that have not answered, and the parts of the answer.
pub(super) struct Collector {
    started: Micros,
    unanswered: BTreeSet<WorkerId>,
    /// The announced tensors minus the arrived ones, for each worker.
    missing: BTreeMap<WorkerId, i64>,
    parts: Parts,
}

/// The parts that a request collects, besides the report of each worker that it is done.
enum Parts {
    Nothing,
    /// The backlog of followers, which the session knows.
    Members,
    Run(Box<RunParts>),
    State(StateParts),
    /// Parts of snapshots that are not stored yet: the storing worker and the worker that makes the
    /// part.
    Stored(BTreeMap<(WorkerId, u32), WorkerId>),
    Snapshots(PerWorker<Vec<PeerSnapshot>>),
    /// The times of this number of layers from each worker.
    Measured {
        probes: usize,
        times: PerWorker<Vec<LayerTimes>>,
    },
    Digests(PerWorker<Vec<(StageId, String, [u8; 32])>>),
    /// The NCCL ids of the stages of each worker.
    UniqueIds {
        stages: BTreeMap<WorkerId, Vec<StageId>>,
        ids: PerWorker<Vec<(StageId, crate::replicas::UniqueId)>>,
    },
}

impl Parts {
    fn of(request: &Request, plan: &Plan, workers: &BTreeSet<WorkerId>) -> Self {
        match request {
            Request::Run(run) => Parts::Run(Box::new(RunParts::of(run, plan, workers))),
            Request::SendState(_) => Parts::State(StateParts::of(workers)),
            Request::Instruct(Instruction::StoreSnapshot(request)) => {
                Parts::Stored(part_holders(request.parts(plan)))
            }
            Request::ListSnapshots(_) => Parts::Snapshots(PerWorker::of(workers)),
            Request::Measure(Measure(probes)) => {
                Parts::Measured { probes: probes.len(), times: PerWorker::of(workers) }
            }
            Request::Digest(_) => Parts::Digests(PerWorker::of(workers)),
            Request::MakeIds(_) => {
                Parts::UniqueIds { stages: id_makers(plan), ids: PerWorker::of(workers) }
            }
            Request::ChangeMembership(_) => Parts::Members,
            _ => Parts::Nothing,
        }
    }

    /// Whether a worker has not sent what must precede its report that it is done.
    fn is_owed_by(&self, worker: WorkerId) -> bool {
        match self {
            Parts::Run(run) => run.norms().is_owed_by(worker),
            Parts::Snapshots(lists) => lists.is_owed_by(worker),
            Parts::Measured { times, .. } => times.is_owed_by(worker),
            Parts::Digests(digests) => digests.is_owed_by(worker),
            Parts::UniqueIds { ids, .. } => ids.is_owed_by(worker),
            Parts::State(state) => state.is_owed_by(worker),
            Parts::Nothing | Parts::Members | Parts::Stored(_) => false,
        }
    }
}

impl Collector {
    pub(super) fn new(
        now: Micros,
        unanswered: BTreeSet<WorkerId>,
        request: &Request,
        plan: &Plan,
    ) -> Self {
        let parts = Parts::of(request, plan, &unanswered);
        Collector { started: now, unanswered, missing: BTreeMap::new(), parts }
    }

    /// Whether every worker can update its parameters without further help of others.
    pub(super) fn is_committed(&self) -> bool {
        matches!(&self.parts, Parts::Run(run) if run.norms().is_committed())
    }

    /// Continues without a lost worker.
    pub(super) fn forget(&mut self, worker: WorkerId) {
        self.unanswered.remove(&worker);
        self.missing.remove(&worker);
        if let Parts::Run(run) = &mut self.parts {
            run.forget(worker);
        }
    }

    /// Takes a worker's part of the answer. Returns the norm over all stages once it is known.
    ///
    /// # Errors
    /// The worker violated the protocol.
    pub(super) fn take(
        &mut self,
        now: Micros,
        from: WorkerId,
        message: ToBoss,
    ) -> Result<Option<f64>, String> {
        let is_asked = match (message, &mut self.parts) {
            (ToBoss::Done { losses, sent, received, answered, spans, .. }, _) => {
                let clock = Clock { asked: self.started, received, answered, heard: now };
                self.take_done(from, sent)?;
                match &mut self.parts {
                    Parts::Run(run) => run.take_done(from, losses, spans, &clock),
                    Parts::State(state) => state.announce(from, sent),
                    _ => {}
                }
                true
            }
            (ToBoss::Norms { squares, losses, .. }, Parts::Run(run)) => {
                return run.take_norms(from, squares, losses);
            }
            (ToBoss::Health { layers, .. }, Parts::Run(run)) => {
                if !self.unanswered.contains(&from) {
                    return Err("reported the health of layers unasked".into());
                }
                run.take_health(layers)?;
                true
            }
            (ToBoss::StateHeads { heads, .. }, Parts::State(state)) => {
                if !self.unanswered.contains(&from) {
                    return Err("announced its state unasked, or too late".into());
                }
                state.take_heads(from, heads)?;
                true
            }
            (ToBoss::SnapshotStored { part, .. }, _) => {
                self.take_stored_part(from, part)?;
                true
            }
            (ToBoss::Snapshots { snapshots, .. }, Parts::Snapshots(lists)) => {
                snapshots.len() <= MAX_SNAPSHOTS && lists.take(from, snapshots)
            }
            (ToBoss::Measured { times, .. }, Parts::Measured { probes, times: all }) => {
                *probes == times.len()
                    && all.take(from, times.iter().map(LayerTimes::bounded).collect())
            }
            (ToBoss::Digests { digests, .. }, Parts::Digests(all)) => all.take(from, digests),
            (ToBoss::UniqueIds { ids, .. }, Parts::UniqueIds { stages, ids: all }) => {
                let of: Vec<StageId> = ids.iter().map(|(stage, _)| *stage).collect();
                stages.get(&from) == Some(&of) && all.take(from, ids)
            }
            _ => false,
        };
        match is_asked {
            true => Ok(None),
            false => Err("sent an answer that nobody asked for".into()),
        }
    }

    fn take_done(&mut self, from: WorkerId, sent: u32) -> Result<(), String> {
        if !self.unanswered.remove(&from) {
            return Err("answered twice".into());
        }
        if self.parts.is_owed_by(from) {
            return Err("answered without what it was asked for".into());
        }
        *self.missing.entry(from).or_insert(0) += i64::from(sent);
        self.check_count(from)
    }

    /// Takes an output of the model.
    pub(super) fn take_output(
        &mut self,
        from: WorkerId,
        microbatch: u32,
        value: ValueId,
        slots: &[Slot],
    ) -> Result<(), String> {
        let [slot] = slots else { return Err("sent an output without its tensor".into()) };
        let misses = matches!(&self.parts, Parts::Run(run)
            if run.misses_output(from, microbatch, value));
        if !misses {
            return Err(format!(
                "sent an output of microbatch {microbatch} twice, or one that it does not make"
            ));
        }
        self.arrives(from)?;
        if let Parts::Run(run) = &mut self.parts {
            run.put_output(microbatch, value, *slot);
        }
        Ok(())
    }

    /// Takes a parameter, a buffer or optimizer state, or a slice of it.
    pub(super) fn take_state(
        &mut self,
        from: WorkerId,
        name: String,
        slots: &[Slot],
    ) -> Result<(), String> {
        let [slot] = slots else { return Err("sent a parameter without its tensor".into()) };
        match &mut self.parts {
            Parts::State(state) => state.check_frame(from, &name)?,
            _ => return Err(format!("sent the parameter `{name}` unasked")),
        }
        self.arrives(from)?;
        if let Parts::State(state) = &mut self.parts {
            state.keep(from, name, *slot);
        }
        Ok(())
    }

    /// The effects that hand out state, once every worker has answered.
    pub(super) fn hand_out_state(&mut self, request: u64) -> Vec<BossEffect> {
        match &mut self.parts {
            Parts::State(state) if self.unanswered.is_empty() => state.hand_out(request),
            _ => Vec::new(),
        }
    }

    /// The caller has taken a frame of state. Returns whether another one waits at the worker.
    pub(super) fn state_taken(&mut self, worker: WorkerId) -> bool {
        match &mut self.parts {
            Parts::State(state) => state.take_one(worker),
            _ => false,
        }
    }

    /// The workers at which frames of state wait.
    pub(super) fn state_waits_at(&self) -> Vec<WorkerId> {
        match &self.parts {
            Parts::State(state) => state.waiting_at(),
            _ => Vec::new(),
        }
    }

    /// Notes that a worker stores a part of a snapshot.
    pub(super) fn take_stored_part(&mut self, from: WorkerId, part: u32) -> Result<(), String> {
        match &mut self.parts {
            Parts::Stored(missing) if missing.contains_key(&(from, part)) => {
                missing.remove(&(from, part));
                Ok(())
            }
            _ => Err("stores a part of a snapshot that nobody asked it to store".into()),
        }
    }

    fn arrives(&mut self, from: WorkerId) -> Result<(), String> {
        *self.missing.entry(from).or_insert(0) -= 1;
        self.check_count(from)
    }

    fn check_count(&self, from: WorkerId) -> Result<(), String> {
        let missing = self.missing.get(&from).copied().unwrap_or(0);
        let done = !self.unanswered.contains(&from);
        let too_many = match &self.parts {
            Parts::State(_) => false,
            Parts::Run(run) => missing > run.missing_outputs_of(from),
            _ => missing > 0,
        };
        if done && (missing < 0 || too_many) {
            return Err("sent more tensors than it says, or fewer than it can".into());
        }
        Ok(())
    }

    /// Whether every worker has answered. Tensors may still arrive.
    pub(super) fn is_answered(&self) -> bool {
        self.unanswered.is_empty()
    }

    /// Whether tensors of a worker are still arriving.
    pub(super) fn misses(&self, worker: WorkerId) -> bool {
        let stores = matches!(&self.parts, Parts::Stored(missing)
            if missing.iter().any(|((holder, _), maker)| *holder == worker || *maker == worker));
        stores || self.missing.get(&worker).is_some_and(|missing| *missing != 0)
    }

    /// Whether the answer is about stored snapshots.
    pub(super) fn stores_snapshots(&self) -> bool {
        matches!(self.parts, Parts::Stored(_))
    }

    pub(super) fn is_complete(&self) -> bool {
        let stored = match &self.parts {
            Parts::Stored(missing) => missing.is_empty(),
            _ => true,
        };
        stored && self.unanswered.is_empty() && self.missing.values().all(|missing| *missing == 0)
    }

    /// The answer, with the number of commands that each follower has still to run.
    pub(super) fn into_answer(self, behind: Vec<(WorkerId, usize)>) -> Answer {
        match self.parts {
            Parts::Nothing | Parts::Stored(_) => Answer::Instruct(()),
            Parts::Members => Answer::ChangeMembership(behind),
            Parts::Run(run) => Answer::Run(Box::new(run.into_results(behind))),
            Parts::State(_) => Answer::SendState(()),
            Parts::Snapshots(lists) => {
                let of_worker = |(worker, list): (WorkerId, Vec<PeerSnapshot>)| {
                    list.into_iter().map(move |snapshot| (worker, snapshot))
                };
                Answer::ListSnapshots(lists.into_sorted().into_iter().flat_map(of_worker).collect())
            }
            Parts::Measured { times, .. } => Answer::Measure(times.into_sorted()),
            Parts::Digests(digests) => {
                let of_worker = |(worker, list): (WorkerId, Vec<(StageId, String, [u8; 32])>)| {
                    list.into_iter().map(move |(stage, name, digest)| (worker, stage, name, digest))
                };
                let mut all: Vec<_> =
                    digests.into_sorted().into_iter().flat_map(of_worker).collect();
                all.sort_unstable();
                Answer::Digest(all)
            }
            Parts::UniqueIds { ids, .. } => {
                let mut ids: Vec<_> =
                    ids.into_sorted().into_iter().flat_map(|(_, ids)| ids).collect();
                ids.sort_by_key(|(stage, _)| *stage);
                Answer::MakeIds(ids)
            }
        }
    }

    /// The number of arrived tensors that were not handed out.
    pub(super) fn held(&self) -> usize {
        match &self.parts {
            Parts::Run(run) => run.held(),
            Parts::State(state) => state.held(),
            _ => 0,
        }
    }

    /// Removes every arrived tensor, to free an answer that is not given.
    pub(super) fn take_slots(&mut self) -> Vec<Slot> {
        match std::mem::replace(&mut self.parts, Parts::Nothing) {
            Parts::Run(run) => run.into_slots(),
            Parts::State(state) => state.into_slots(),
            _ => Vec::new(),
        }
    }
}

/// The storing worker of each part, and the worker that makes it.
fn part_holders(parts: BTreeMap<u32, PartHolders>) -> BTreeMap<(WorkerId, u32), WorkerId> {
    let both = |(part, PartHolders { owner, other, sends })| {
        [((owner, part), owner), ((other, part), if sends { owner } else { other })]
    };
    parts.into_iter().flat_map(both).collect()
}
