//! Tensors that come to be loaded: files, and weights, which the boss sends to one replica of a stage and replicas pass on.
//!
//! Each tensor is passed on when it arrives, once the command that wants it is here: with that this worker knows of every
//! link that has broken before.

use super::{Job, StageSession};
use crate::effect::{Peer, StageEffect};
use crate::ids::{Slot, StageId, WorkerId};
use crate::message::{Failure, Head};
use std::collections::BTreeSet;

/// For more commands than this at a time nothing is kept.
const MOST_LOADS: usize = 4;
/// No command brings more tensors than this.
const MOST_TENSORS: usize = 1 << 20;

/// What has arrived for a command, which may come later.
#[derive(Default)]
pub(super) struct Arriving {
    /// What came, each once: from whom, the stage, where it is a weight, and the name. What this worker has sent to itself and
    /// not got yet is among them.
    came: BTreeSet<(Peer, Option<StageId>, String)>,
    tensors: Vec<(String, Slot)>,
    /// What goes to others, too, once the command is here.
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
        // Others send what they keep, where the command says so, which may not be here yet.
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

    /// Whether the load at work takes what this worker kept.
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
        // A tensor that goes to others and stays goes to this worker, too.
        let head = Head::Weight { id, name, stage };
        let takers = takers.into_iter().chain([me]);
        let to = takers.map(|worker| self.links.to(worker, head.clone())).collect();
        self.effects.push_back(StageEffect::Send { to, slots });
    }

    /// A file that layers are made from.
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

    /// Counts a tensor for a command, or says why it is one too many.
    pub(super) fn let_in(&mut self, id: u64, tensor: (Peer, Option<StageId>, String)) -> Result<(), String> {
        let most = match &self.job {
            Some(Job::Load { id: at_work, expected, .. }) if *at_work == id => *expected,
            // All have come, and are being loaded.
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
        // One that counted twice would stand for another, which would then be loaded nowhere.
        match self.loads.entry(id).or_default().came.insert(tensor) {
            true => Ok(()),
            false => Err("sent the same tensor to be loaded twice".into()),
        }
    }

    fn take_in(&mut self, id: u64, name: String, slots: Vec<Slot>) {
        // Nothing is there of one that was aborted.
        let Some(arriving) = self.loads.get_mut(&id) else { return self.drop_slots(slots) };
        arriving.tensors.extend(slots.into_iter().map(|slot| (name.clone(), slot)));
    }

    /// Loads what the command at work wants, once all of it is here.
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

    /// Takes out what came for the load at work from workers that are not to send it.
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
