//! Snapshots of its own and of others' state that this worker stores; see [`crate::kept`].
//!
//! A part is stored once it is complete and the boss has announced it. Parts copied here take the
//! same route.

use super::{Job, Purpose, StageSession};
use crate::effect::{Peer, StageEffect};
use crate::ids::{Slot, StageId, WorkerId};
use crate::kept::{Give, Keep, PeerSnapshot, Recall, SnapshotId};
use crate::message::{Failure, Head};
use crate::task::Task;
use std::collections::{BTreeMap, BTreeSet};

/// The most commands for which parts may arrive early, and the most early parts for each.
const MOST_EARLY: usize = 64;
/// The most tensors of a part.
const MOST_TENSORS: u32 = 1 << 20;

/// The arrivals for a command.
#[derive(Default)]
pub(super) struct Keeping {
    /// The command, once it has arrived.
    command: Option<Keep>,
    /// By number and sender, so that a part from a wrong sender blocks no other.
    parts: BTreeMap<(u32, Peer), Part>,
}

struct Part {
    of: u32,
    names: BTreeSet<String>,
    tensors: Vec<(String, Slot)>,
}

impl Keeping {
    fn into_slots(self) -> Vec<Slot> {
        self.parts.into_values().flat_map(|part| part.tensors).map(|(_, slot)| slot).collect()
    }
}

impl Part {
    fn is_whole(&self) -> bool {
        self.tensors.len() == self.of as usize
    }
}

impl StageSession {
    /// Copies this worker's part, and stores arriving parts.
    pub(super) fn keep_copy(&mut self, id: u64, keep: Keep) {
        if keep.give.is_some_and(|give| !self.has_state_of(give.of, keep.stage)) {
            return self.refuse(Peer::Boss, Vec::new(), "asked for a copy of what this worker does not have".into());
        }
        let copy = keep.copy;
        if self.copying.is_none_or(|(making, _)| making != copy) {
            self.void_keeping(id);
            self.copying = Some((copy, id));
            self.keeps_for = Some(copy.run);
            let wanted: Vec<SnapshotId> = keep.last.into_iter().chain([copy]).collect();
            self.kept.retain(|kept| wanted.contains(&kept.copy));
            self.effects.push_back(StageEffect::RetainSnapshots(wanted));
        }
        let (stage, give) = (keep.stage, keep.give);
        self.keeping.entry(id).or_default().command = Some(keep);
        if let Some(give) = give {
            let snapshot = self.snapshot(Some(give.of), stage, true);
            self.job = Some(Job::Keep { id });
            self.compute(Purpose::Command(id), snapshot);
        } else {
            self.done(id, Vec::new(), 0, Vec::new());
        }
        self.keep_parts(id);
    }

    /// Whether this worker holds all stages that another one speaks for.
    fn has_state_of(&self, of: WorkerId, stage: Option<StageId>) -> bool {
        let mut wanted = self.stages.iter().map(|spec| spec.stage).filter(|id| stage.is_none_or(|only| only == *id));
        self.worker == Some(of)
            || (self.sharding.is_none() && wanted.all(|id| self.stage_placement.first(id) == Some(of)))
    }

    /// The copy is made. It goes to the storing workers, this one among them.
    pub(super) fn copied(&mut self, id: u64, tensors: Vec<(String, Slot)>) {
        let keep = self.keeping.get(&id).and_then(|keeping| keeping.command.as_ref());
        let (Some(Give { part, to: neighbour, .. }), Some(me)) = (keep.and_then(|keep| keep.give), self.worker) else {
            let slots = tensors.into_iter().map(|(_, slot)| slot).collect();
            self.drop_slots(slots);
            return self.fail(id, Failure::new("state was copied that nobody asked for; please report it"));
        };
        let of = u32::try_from(tensors.len()).unwrap_or(u32::MAX);
        let mut send = |name: String, slots: Vec<Slot>| {
            let head = Head::Keeping { id, part, name, of };
            let mut to = vec![self.links.to(me, head.clone())];
            to.extend(neighbour.filter(|other| *other != me).map(|other| self.links.reach(other, head)));
            self.effects.push_back(StageEffect::Send { to, slots });
        };
        if tensors.is_empty() {
            send(String::new(), Vec::new());
        }
        for (name, slot) in tensors {
            send(name, vec![slot]);
        }
        self.done(id, Vec::new(), 0, Vec::new());
    }

    /// A tensor of a part.
    pub(super) fn keeping(&mut self, from: Peer, id: u64, (part, name, of): (u32, String, u32), slots: Vec<Slot>) {
        let is_void = self.copying.is_some_and(|(_, first)| id < first) || self.unkept.contains(&id);
        if is_void {
            return self.drop_slots(slots);
        }
        let is_known = self.keeping.contains_key(&id);
        if !is_known && id <= self.answered {
            return self.drop_slots(slots);
        }
        let waits = |keeping: &Keeping| keeping.command.is_none();
        let early = self.keeping.values().filter(|keeping| waits(keeping)).count();
        let parts = self.keeping.get(&id).filter(|keeping| waits(keeping)).map_or(0, |keeping| keeping.parts.len());
        if (!is_known && early >= MOST_EARLY) || parts > MOST_EARLY || of > MOST_TENSORS {
            return self.refuse(from, slots, "sent copies that nobody asked for".into());
        }
        let parts = &mut self.keeping.entry(id).or_default().parts;
        let arriving =
            parts.entry((part, from)).or_insert_with(|| Part { of, names: BTreeSet::new(), tensors: Vec::new() });
        let more = arriving.tensors.len() + slots.len();
        // A tensor that counted twice would replace another one, which would then be stored
        // nowhere.
        let is_new = of == 0 || arriving.names.insert(name.clone());
        if arriving.of != of || more > of as usize || (of > 0 && slots.len() != 1) || !is_new {
            return self.refuse(from, slots, "sent more of a copy than it said, or the same twice".into());
        }
        arriving.tensors.extend(slots.into_iter().map(|slot| (name.clone(), slot)));
        self.keep_parts(id);
    }

    /// Stores the complete parts that the boss has announced.
    fn keep_parts(&mut self, id: u64) {
        let Some(Keeping { command: Some(keep), parts }) = self.keeping.get_mut(&id) else { return };
        let me = self.worker;
        let comes = |keep: &Keep, part: u32, from: Peer| match from {
            Peer::Worker(worker) if Some(worker) == me => keep.give.is_some_and(|give| give.part == part),
            Peer::Worker(worker) => keep.take.get(&part) == Some(&worker),
            Peer::Boss => false,
        };
        let all = std::mem::take(parts).into_iter();
        let (coming, stray): (Vec<_>, Vec<_>) = all.partition(|((part, from), _)| comes(keep, *part, *from));
        let (whole, rest): (Vec<_>, Vec<_>) = coming.into_iter().partition(|(_, part)| part.is_whole());
        parts.extend(rest);
        if stray.is_empty() && whole.is_empty() {
            return; // as after nearly every tensor
        }
        for ((part, from), _) in &whole {
            // A second copy would be one too many.
            match Some(*from) == me.map(Peer::Worker) {
                true => keep.give = None,
                false => drop(keep.take.remove(part)),
            }
        }
        let keep = keep.clone();
        for ((_, from), Part { tensors, .. }) in stray {
            let slots = tensors.into_iter().map(|(_, slot)| slot).collect();
            self.refuse(from, slots, "sent a part of a copy that another sends, or nobody".into());
        }
        for ((part, _), Part { tensors, .. }) in whole {
            self.note_kept(&keep, part, &tensors);
            self.effects.push_back(StageEffect::StoreSnapshot {
                copy: keep.copy,
                note: keep.note.clone(),
                part,
                tensors,
            });
            self.tell_boss(Head::Kept { id, part });
        }
    }

    fn note_kept(&mut self, keep: &Keep, part: u32, tensors: &[(String, Slot)]) {
        let names = tensors.iter().map(|(name, _)| name.clone()).collect();
        match self.kept.iter_mut().find(|kept| kept.copy == keep.copy) {
            Some(kept) => drop(kept.parts.insert(part, names)),
            None => {
                let (copy, note) = (keep.copy, keep.note.clone());
                self.kept.push(PeerSnapshot { copy, note, parts: BTreeMap::from([(part, names)]) });
            }
        }
    }

    /// Cancels a command that copies state, or drops its arrivals. Returns whether that is
    /// complete.
    pub(super) fn cancel_keeping(&mut self, id: u64) -> bool {
        let Some(keeping) = self.keeping.remove(&id) else { return false };
        self.drop_slots(keeping.into_slots());
        self.unkept.insert(id);
        // Otherwise the compute thread has worked on it, and may have failed.
        id <= self.answered
    }

    /// Drops arrivals for commands before this one.
    pub(super) fn void_keeping(&mut self, id: u64) {
        let later = self.keeping.split_off(&id);
        let void = std::mem::replace(&mut self.keeping, later);
        self.drop_slots(void.into_values().flat_map(Keeping::into_slots).collect());
        self.unkept = self.unkept.split_off(&id);
        if let Some((_, first)) = &mut self.copying {
            *first = id;
        }
    }

    /// A run that trains does not need snapshots of other runs.
    pub(super) fn forget_other_runs(&mut self) {
        if self.kept.iter().any(|kept| Some(kept.copy.run) != self.keeps_for) {
            self.kept.retain(|kept| Some(kept.copy.run) == self.keeps_for);
            self.effects.push_back(StageEffect::RetainSnapshots(self.kept.iter().map(|kept| kept.copy).collect()));
        }
    }

    pub(super) fn tell_copies(&mut self, id: u64, run: u64) {
        self.keeps_for = Some(run);
        let copies = self.kept.iter().filter(|kept| kept.copy.run == run).cloned().collect();
        self.tell_boss(Head::Copies { id, copies });
        self.done(id, Vec::new(), 0, Vec::new());
    }

    /// Loads a stored state, and sends the parts that are here.
    pub(super) fn restore(&mut self, id: u64, (expected, keepers): (u32, Vec<WorkerId>), recall: Recall) {
        let what = |tensors| Task::Load { tensors, optimizer: true };
        self.job = Some(Job::Load { id, expected: expected as usize, what, keepers });
        let Recall { copy, tensors } = recall;
        for (part, name, stage) in tensors {
            if let Err(problem) = self.give_kept(id, copy, (part, name), stage) {
                return self.fail(id, Failure::new(problem));
            }
        }
        self.start_load();
    }

    fn give_kept(
        &mut self,
        id: u64,
        copy: SnapshotId,
        (part, name): (u32, String),
        stage: StageId,
    ) -> Result<(), String> {
        let kept = self.kept.iter().find(|kept| kept.copy == copy).and_then(|kept| kept.parts.get(&part));
        if !kept.is_some_and(|names| names.contains(&name)) {
            return Err(format!("`{name}` of step {} is not kept here", copy.step));
        }
        let (Some(first), Some(me)) = (self.stage_placement.first(stage), self.worker) else {
            return Err(format!("nobody has {stage}"));
        };
        let head = Head::Weight { id, name: name.clone(), stage };
        let to = match first == me {
            // Like a tensor that arrived, it goes to other replicas, too.
            true => {
                self.let_in(id, (Peer::Worker(me), Some(stage), name.clone()))?;
                self.stage_placement
                    .takers(stage, me)
                    .into_iter()
                    .chain([me])
                    .map(|to| self.links.to(to, head.clone()))
                    .collect()
            }
            false => vec![self.links.reach(first, head)],
        };
        self.effects.push_back(StageEffect::SendSnapshot { to, copy, part, name });
        Ok(())
    }
}
