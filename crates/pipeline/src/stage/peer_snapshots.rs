//! Snapshots of this worker's and of other workers' state that this worker stores; see
//! [`crate::peer_snapshot`].
//!
//! A part is stored once it is complete and the boss has announced it. Parts that this worker makes
//! take the same route: it sends them to itself.

use super::context::Context;
use super::named_tensors::{NamedTensors, MAX_STATE_TENSORS};
use super::outbox::Outbox;
use crate::effect::{Peer, StageEffect};
use crate::ids::{Slot, WorkerId};
use crate::message::{Failure, TensorHead, ToBoss};
use crate::peer_snapshot::{PartToMake, PeerSnapshot, SnapshotId, StoreSnapshot};
use std::collections::{BTreeMap, BTreeSet};

/// The most commands for which parts may arrive early, and the most early parts for each.
const MAX_EARLY: usize = 64;

/// The stored snapshots, and the parts that are arriving.
#[derive(Default)]
pub(super) struct PeerSnapshots {
    stored: Vec<PeerSnapshot>,
    /// The run whose snapshots this worker stores.
    run: Option<u64>,
    /// The snapshot in progress.
    current: Option<Current>,
    /// Arriving parts, by command. They may arrive before their command.
    arrivals: BTreeMap<u64, Arrivals>,
    /// Commands that were cancelled.
    cancelled: BTreeSet<u64>,
}

struct Current {
    snapshot: SnapshotId,
    /// Its first command. Parts for earlier commands are void.
    first_command: u64,
}

/// The arrivals for a command.
#[derive(Default)]
struct Arrivals {
    /// The command, once it has arrived.
    command: Option<StoreSnapshot>,
    /// By number and sender, so that a part from a wrong sender blocks no other.
    parts: BTreeMap<PartFrom, NamedTensors>,
}

#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct PartFrom {
    part: u32,
    from: Peer,
}

/// One tensor of a part, or the empty frame of an empty part.
pub(super) struct PartTensor {
    /// The command.
    pub(super) id: u64,
    pub(super) part: u32,
    pub(super) name: String,
    /// The number of tensors of the part.
    pub(super) of: u32,
    pub(super) slots: Vec<Slot>,
}

impl PeerSnapshots {
    /// The snapshots that this worker's process stores since earlier runs.
    pub(super) fn new(stored: Vec<PeerSnapshot>) -> Self {
        PeerSnapshots { stored, ..Self::default() }
    }

    /// The boss announces parts of a snapshot.
    pub(super) fn begin(&mut self, id: u64, command: StoreSnapshot, outbox: &mut Outbox) {
        let snapshot = command.snapshot;
        if self.current.as_ref().is_none_or(|current| current.snapshot != snapshot) {
            self.void_before(id, outbox);
            self.current = Some(Current { snapshot, first_command: id });
            self.run = Some(snapshot.run);
            let wanted: Vec<SnapshotId> =
                command.last_complete.into_iter().chain([snapshot]).collect();
            self.stored.retain(|stored| wanted.contains(&stored.snapshot));
            outbox.push(StageEffect::RetainSnapshots(wanted));
        }
        self.arrivals.entry(id).or_default().command = Some(command);
    }

    /// The part that this worker makes is copied. It goes to the workers that store it, this one
    /// among them.
    pub(super) fn send_part(
        &self,
        id: u64,
        tensors: Vec<(String, Slot)>,
        context: &mut Context<'_>,
    ) -> Result<(), Failure> {
        let command = self.arrivals.get(&id).and_then(|arrivals| arrivals.command.as_ref());
        let make = command.and_then(|command| command.make);
        let Some((PartToMake { part, to: neighbour, .. }, me)) =
            make.zip(context.membership.worker)
        else {
            context.outbox.drop_slots(tensors.into_iter().map(|(_, slot)| slot).collect());
            return Err(Failure::new("state was copied that nobody asked for; please report it"));
        };
        let of = u32::try_from(tensors.len()).unwrap_or(u32::MAX);
        let mut send = |name: String, slots: Vec<Slot>| {
            let head = TensorHead::SnapshotPart { id, part, name, of };
            let other = neighbour.filter(|other| *other != me);
            let mut to = vec![context.links.to(me, head.clone())];
            to.extend(other.map(|other| context.links.reach(other, head)));
            context.outbox.send(to, slots);
        };
        if tensors.is_empty() {
            send(String::new(), Vec::new());
        }
        for (name, slot) in tensors {
            send(name, vec![slot]);
        }
        Ok(())
    }

    /// A tensor of a part arrived. `answered` is the newest answered command.
    pub(super) fn on_tensor(
        &mut self,
        from: Peer,
        tensor: PartTensor,
        answered: u64,
        outbox: &mut Outbox,
    ) {
        let PartTensor { id, part, name, of, slots } = tensor;
        let is_void = self.current.as_ref().is_some_and(|current| id < current.first_command)
            || self.cancelled.contains(&id);
        let is_known = self.arrivals.contains_key(&id);
        if is_void || (!is_known && id <= answered) {
            return outbox.drop_slots(slots);
        }
        let is_early = |arrivals: &&Arrivals| arrivals.command.is_none();
        let early = self.arrivals.values().filter(is_early).count();
        let parts = self.arrivals.get(&id).filter(is_early).map_or(0, |early| early.parts.len());
        let too_many = (!is_known && early >= MAX_EARLY) || parts > MAX_EARLY;
        if too_many || of > MAX_STATE_TENSORS {
            return outbox.refuse(from, slots, "sent snapshots that nobody asked for");
        }
        let parts = &mut self.arrivals.entry(id).or_default().parts;
        let arriving =
            parts.entry(PartFrom { part, from }).or_insert_with(|| NamedTensors::new(of));
        if let Err(slots) = arriving.insert(&name, of, slots) {
            let reason = "sent more of a snapshot than it said, or the same twice";
            outbox.refuse(from, slots, reason);
        }
    }

    /// Stores the complete parts that the boss has announced with a command. Refuses parts from
    /// workers that must not send them.
    pub(super) fn store_complete(&mut self, id: u64, me: Option<WorkerId>, outbox: &mut Outbox) {
        let Some(Arrivals { command: Some(command), parts }) = self.arrivals.get_mut(&id) else {
            return;
        };
        let sends = |command: &StoreSnapshot, PartFrom { part, from }: &PartFrom| match from {
            Peer::Worker(worker) if Some(*worker) == me => {
                command.make.is_some_and(|make| make.part == *part)
            }
            Peer::Worker(worker) => command.receive.get(part) == Some(worker),
            Peer::Boss => false,
        };
        let mut complete = Vec::new();
        for (of, part) in std::mem::take(parts) {
            if !sends(command, &of) {
                let reason = "sent a part of a snapshot that another sends, or nobody";
                outbox.refuse(of.from, part.into_slots(), reason);
            } else if part.is_complete() {
                complete.push((of, part));
            } else {
                parts.insert(of, part);
            }
        }
        for (PartFrom { part, from }, tensors) in complete {
            // Another copy would be refused.
            match Some(from) == me.map(Peer::Worker) {
                true => command.make = None,
                false => drop(command.receive.remove(&part)),
            }
            let tensors = tensors.into_tensors();
            let names = tensors.iter().map(|(name, _)| name.clone()).collect();
            let (snapshot, note) = (command.snapshot, command.note.clone());
            match self.stored.iter_mut().find(|stored| stored.snapshot == snapshot) {
                Some(stored) => drop(stored.parts.insert(part, names)),
                None => {
                    let (note, parts) = (note.clone(), BTreeMap::from([(part, names)]));
                    self.stored.push(PeerSnapshot { snapshot, note, parts });
                }
            }
            outbox.push(StageEffect::StoreSnapshot { snapshot, note, part, tensors });
            outbox.tell_boss(ToBoss::SnapshotStored { id, part });
        }
    }

    /// The number of tensors of parts that are arriving.
    pub(super) fn held(&self) -> usize {
        let parts = self.arrivals.values().flat_map(|arrivals| arrivals.parts.values());
        parts.map(NamedTensors::held).sum()
    }

    /// Cancels a command and frees its arrivals. Returns whether that is all: the compute thread
    /// has work for a command that was not answered.
    pub(super) fn cancel(&mut self, id: u64, answered: u64, outbox: &mut Outbox) -> bool {
        let Some(arrivals) = self.arrivals.remove(&id) else { return false };
        outbox.drop_slots(slots([arrivals]));
        self.cancelled.insert(id);
        id <= answered
    }

    /// Frees the arrivals for commands before this one.
    pub(super) fn void_before(&mut self, id: u64, outbox: &mut Outbox) {
        let later = self.arrivals.split_off(&id);
        let void = std::mem::replace(&mut self.arrivals, later);
        outbox.drop_slots(slots(void.into_values()));
        self.cancelled = self.cancelled.split_off(&id);
        if let Some(current) = &mut self.current {
            current.first_command = id;
        }
    }

    /// Drops the snapshots of other runs, because this run trains.
    pub(super) fn retain_run(&mut self, outbox: &mut Outbox) {
        let is_other = |stored: &PeerSnapshot| Some(stored.snapshot.run) != self.run;
        if self.stored.iter().any(is_other) {
            self.stored.retain(|stored| Some(stored.snapshot.run) == self.run);
            let retained = self.stored.iter().map(|stored| stored.snapshot).collect();
            outbox.push(StageEffect::RetainSnapshots(retained));
        }
    }

    /// The stored snapshots of a run, which is now the run of this worker.
    pub(super) fn list(&mut self, run: u64) -> Vec<PeerSnapshot> {
        self.run = Some(run);
        self.stored.iter().filter(|stored| stored.snapshot.run == run).cloned().collect()
    }

    /// Whether a tensor is stored here.
    pub(super) fn has(&self, snapshot: SnapshotId, part: u32, name: &str) -> bool {
        let stored = self.stored.iter().find(|stored| stored.snapshot == snapshot);
        let names = stored.and_then(|stored| stored.parts.get(&part));
        names.is_some_and(|names| names.contains(name))
    }
}

fn slots(arrivals: impl IntoIterator<Item = Arrivals>) -> Vec<Slot> {
    let parts = arrivals.into_iter().flat_map(|arrivals| arrivals.parts.into_values());
    parts.flat_map(NamedTensors::into_slots).collect()
}

#[cfg(test)]
mod tests {
    use super::super::testing::text;
    use super::*;
    use crate::peer_snapshot::SnapshotNote;

    const ME: WorkerId = WorkerId(1);
    const OTHER: Peer = Peer::Worker(WorkerId(0));

    /// Stores part 0 of the snapshot of a step for worker 0.
    fn command(step: u64) -> StoreSnapshot {
        StoreSnapshot {
            snapshot: SnapshotId { run: 1, step, membership: 1 },
            note: SnapshotNote { parts: 1, text: String::new() },
            last_complete: None,
            stage: None,
            make: None,
            receive: BTreeMap::from([(0, WorkerId(0))]),
        }
    }

    fn begin(snapshots: &mut PeerSnapshots, id: u64) -> String {
        let mut outbox = Outbox::default();
        snapshots.begin(id, command(id), &mut outbox);
        snapshots.store_complete(id, Some(ME), &mut outbox);
        text(&mut outbox)
    }

    fn arrive(snapshots: &mut PeerSnapshots, id: u64, from: Peer, name: &str, slot: u64) -> String {
        let (name, slots) = (name.to_string(), vec![Slot(slot)]);
        let mut outbox = Outbox::default();
        let tensor = PartTensor { id, part: 0, name, of: 2, slots };
        snapshots.on_tensor(from, tensor, 0, &mut outbox);
        snapshots.store_complete(id, Some(ME), &mut outbox);
        text(&mut outbox)
    }

    #[test]
    fn a_part_is_stored_once_it_is_complete_and_announced() {
        let mut snapshots = PeerSnapshots::default();
        assert_eq!(arrive(&mut snapshots, 3, OTHER, "a", 1), "");
        assert_eq!(begin(&mut snapshots, 3), "retain 1 snapshots\n");
        let stored = "store 2 tensors of part 0\ntell the boss SnapshotStored\n";
        assert_eq!(arrive(&mut snapshots, 3, OTHER, "b", 2), stored);
        assert!(snapshots.has(command(3).snapshot, 0, "b"));
        let refused =
            "hang up on worker 0: sent a part of a snapshot that another sends, or nobody\n";
        assert_eq!(arrive(&mut snapshots, 3, OTHER, "a", 3), format!("drop [3]\n{refused}"));
    }

    #[test]
    fn parts_of_an_older_snapshot_are_void() {
        let mut snapshots = PeerSnapshots::default();
        begin(&mut snapshots, 3);
        assert_eq!(arrive(&mut snapshots, 3, OTHER, "a", 1), "");
        assert_eq!(begin(&mut snapshots, 4), "drop [1]\nretain 1 snapshots\n");
        assert_eq!(arrive(&mut snapshots, 3, OTHER, "b", 2), "drop [2]\n");
    }

    #[test]
    fn parts_of_a_cancelled_command_are_void() {
        let (mut snapshots, mut outbox) = (PeerSnapshots::default(), Outbox::default());
        begin(&mut snapshots, 3);
        arrive(&mut snapshots, 3, OTHER, "a", 1);
        assert!(!snapshots.cancel(3, 2, &mut outbox), "the compute thread has work");
        assert_eq!(text(&mut outbox), "drop [1]\n");
        assert_eq!(arrive(&mut snapshots, 3, OTHER, "b", 2), "drop [2]\n");
    }

    #[test]
    fn a_run_that_trains_drops_the_snapshots_of_others() {
        let old = SnapshotId { run: 8, step: 1, membership: 1 };
        let note = SnapshotNote { parts: 1, text: String::new() };
        let stored = PeerSnapshot { snapshot: old, note, parts: BTreeMap::new() };
        let (mut snapshots, mut outbox) = (PeerSnapshots::new(vec![stored]), Outbox::default());
        assert_eq!(snapshots.list(8).len(), 1);
        snapshots.retain_run(&mut outbox);
        assert_eq!(text(&mut outbox), "", "it is the run of this worker");
        assert_eq!(snapshots.list(9).len(), 0);
        snapshots.retain_run(&mut outbox);
        assert_eq!(text(&mut outbox), "retain 0 snapshots\n");
    }
}
