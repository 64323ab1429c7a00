//! Tensors to load: files and weights. The boss sends weights to one replica of a stage, and
//! replicas pass them on.
//!
//! Each tensor is passed on when it arrives, if its command has arrived. With the command this
//! worker knows every link that broke before.

use super::{Job, StageSession};
use crate::effect::{Peer, StageEffect};
use crate::ids::{Slot, StageId, WorkerId};
use crate::message::{Failure, Head};
use std::collections::BTreeSet;

/// The most commands for which tensors may arrive early.
const MOST_LOADS: usize = 4;
/// The most tensors of a command.
const MOST_TENSORS: usize = 1 << 20;

/// The arrivals for a command, which may arrive later.
#[derive(Default)]
pub(super) struct Arriving {
    /// The arrived tensors, each once: the sender, the stage of a weight, and the name. Tensors
    /// that this worker sends to itself are among them before they arrive.
    came: BTreeSet<(Peer, Option<StageId>, String)>,
    tensors: Vec<(String, Slot)>,
    /// The tensors to pass on, once the command has arrived.
    held: Vec<Held>,
}

/// A tensor that waits for its command.
struct Held {
    from: Peer,
    stage: StageId,
    name: String,
    slots: Vec<Slot>,
}

impl Arriving {
    pub(super) fn into_tensors(self) -> Vec<(String, Slot)> {
        let held = self.held.into_iter();
        let held = held.flat_map(|Held { name, slots, .. }| slots.into_iter().map(move |s| (name.clone(), s)));
        self.tensors.into_iter().chain(held).collect()
    }
}

impl StageSession {
    /// A parameter or buffer of a stage.
    pub(super) fn weight(&mut self, from: Peer, id: u64, (name, stage): (String, StageId), slots: Vec<Slot>) {
        if id <= self.answered {
            return self.drop_slots(slots);
        }
        let Some(me) = self.worker.filter(|me| self.stage_placement.has(stage, *me)) else {
            return self.refuse(from, slots, format!("sent weights of {stage}, which is not here"));
        };
        if from == Peer::Worker(me) {
            self.take_in(id, name, slots);
            return self.start_load();
        }
        let giver = self.giver(stage, me);
        // Workers that store a snapshot send it, if the command, which may arrive later, names
        // them.
        let is_here = matches!(&self.job, Some(Job::Load { id: at_work, .. }) if *at_work == id);
        if from != giver && (giver != Peer::Boss || (is_here && !self.is_keeper(from))) {
            return self.refuse(from, slots, format!("sent weights of {stage}, which {giver} sends"));
        }
        if let Err(reason) = self.let_in(id, (from, Some(stage), name.clone())) {
            return self.refuse(from, slots, reason);
        }
        let waits = !self.stage_placement.takers(stage, me).is_empty() || from != giver;
        match self.loads.get_mut(&id).filter(|_| !is_here && waits) {
            Some(arriving) => arriving.held.push(Held { from, stage, name, slots }),
            None => {
                self.pass_on(id, stage, name, slots);
                self.start_load();
            }
        }
    }

    /// Whether the current load takes tensors that this worker stored.
    fn is_keeper(&self, peer: Peer) -> bool {
        let Some(Job::Load { keepers, .. }) = &self.job else { return false };
        keepers.iter().any(|keeper| Peer::Worker(*keeper) == peer)
    }

    fn giver(&self, stage: StageId, me: WorkerId) -> Peer {
        self.stage_placement.giver(stage, me).map_or(Peer::Boss, Peer::Worker)
    }

    fn pass_on(&mut self, id: u64, stage: StageId, name: String, slots: Vec<Slot>) {
        let Some(me) = self.worker else { return self.drop_slots(slots) };
        let takers = self.stage_placement.takers(stage, me);
        if takers.is_empty() {
            return self.take_in(id, name, slots);
        }
        // A tensor that is passed on and also stays is sent to this worker, too.
        let head = Head::Weight { id, name, stage };
        let takers = takers.into_iter().chain([me]);
        let to = takers.map(|worker| self.links.to(worker, head.clone())).collect();
        self.effects.push_back(StageEffect::Send { to, slots });
    }

    /// A file that layers are built from.
    pub(super) fn file(&mut self, id: u64, name: String, slots: Vec<Slot>) {
        if id <= self.answered {
            return self.drop_slots(slots);
        }
        match self.let_in(id, (Peer::Boss, None, name.clone())) {
            Ok(()) => {
                self.take_in(id, name, slots);
                self.start_load();
            }
            Err(reason) => self.refuse(Peer::Boss, slots, reason),
        }
    }

    /// Counts a tensor for a command, or returns why it is one too many.
    pub(super) fn let_in(&mut self, id: u64, tensor: (Peer, Option<StageId>, String)) -> Result<(), String> {
        let most = match &self.job {
            Some(Job::Load { id: at_work, expected, .. }) if *at_work == id => *expected,
            // All have arrived and are being loaded.
            Some(job) if job.id() == Some(id) => 0,
            _ => MOST_TENSORS,
        };
        let came = self.loads.get(&id).map_or(0, |arriving| arriving.came.len());
        if came >= most {
            return Err("sent more tensors to load than were to come".into());
        }
        if !self.loads.contains_key(&id) && self.loads.len() >= MOST_LOADS {
            return Err(format!("sent tensors to load while those of {MOST_LOADS} other commands wait"));
        }
        // A tensor that counted twice would replace another one, which would then be missing.
        match self.loads.entry(id).or_default().came.insert(tensor) {
            true => Ok(()),
            false => Err("sent the same tensor to be loaded twice".into()),
        }
    }

    fn take_in(&mut self, id: u64, name: String, slots: Vec<Slot>) {
        // An aborted command has no arrivals.
        let Some(arriving) = self.loads.get_mut(&id) else { return self.drop_slots(slots) };
        arriving.tensors.extend(slots.into_iter().map(|slot| (name.clone(), slot)));
    }

    /// Starts the load of the current command, once all tensors have arrived.
    pub(super) fn start_load(&mut self) {
        let Some(Job::Load { id, expected, what, .. }) = self.job else { return };
        for Held { from, stage, slots, .. } in self.strange(id) {
            self.refuse(from, slots, format!("sent weights of {stage}, which nobody asked it for"));
        }
        let came = self.loads.get(&id).map_or(0, |arriving| arriving.came.len());
        if came > expected {
            let failure = Failure::new(format!("{came} tensors came to be loaded; there are {expected}"));
            return self.fail(id, failure);
        }
        let held = self.loads.get_mut(&id).map(|arriving| std::mem::take(&mut arriving.held)).unwrap_or_default();
        for Held { stage, name, slots, .. } in held {
            self.pass_on(id, stage, name, slots);
        }
        let here = self.loads.get(&id).map_or(0, |arriving| arriving.tensors.len());
        if here == expected {
            let tensors = self.loads.remove(&id).map(Arriving::into_tensors).unwrap_or_default();
            self.single(id, what(tensors));
        }
    }

    /// Removes the arrivals for the current load from workers that must not send them.
    fn strange(&mut self, id: u64) -> Vec<Held> {
        let Some(mut arriving) = self.loads.remove(&id) else { return Vec::new() };
        let sends = |held: &Held| self.worker.is_some_and(|me| held.from == self.giver(held.stage, me));
        let held = std::mem::take(&mut arriving.held).into_iter();
        let (held, strange): (Vec<_>, Vec<_>) = held.partition(|held| sends(held) || self.is_keeper(held.from));
        for Held { from, stage, name, .. } in &strange {
            arriving.came.remove(&(*from, Some(*stage), name.clone()));
        }
        arriving.held = held;
        self.loads.insert(id, arriving);
        strange
    }
}
