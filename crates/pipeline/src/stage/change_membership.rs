//! A change of membership: stages stay, workers join and load the state of a replica, workers
//! leave.

use super::{Job, Purpose, ReplicaGroup, StageSession};
use crate::effect::{Micros, Peer, Residuals, StageEffect};
use crate::ids::{Slot, WorkerId};
use crate::message::{ChangeMembership, Head};
use crate::task::Task;
use std::collections::{BTreeMap, BTreeSet};

/// The most parameters, buffers and optimizer tensors of a replica.
const MOST_TENSORS: u32 = 1 << 20;
/// The most commands for which a state may arrive early.
const MOST_STATES: usize = 4;

/// The progress of a change of membership.
pub(super) struct MembershipChange {
    pub(super) id: u64,
    /// Followers that receive this worker's state, once it is copied and they are connected.
    give: Vec<WorkerId>,
    copied: Option<Vec<(String, Slot)>>,
    /// The worker whose state this worker loads, and whether it has arrived.
    take: Option<WorkerId>,
    taking: bool,
}

impl MembershipChange {
    /// Frees the copy if it was not sent.
    pub(super) fn give_up(&mut self) -> Vec<Slot> {
        self.copied.take().into_iter().flatten().map(|(_, slot)| slot).collect()
    }

    pub(super) fn is_done(&self) -> bool {
        self.give.is_empty() && self.take.is_none()
    }
}

/// The arriving state of a replica.
pub(super) struct ReplicaState {
    of: u32,
    names: BTreeSet<String>,
    tensors: Vec<(String, Slot)>,
}

impl ReplicaState {
    pub(super) fn into_tensors(self) -> Vec<(String, Slot)> {
        self.tensors
    }
}

impl StageSession {
    pub(super) fn change_membership(&mut self, now: Micros, id: u64, change_membership: ChangeMembership) {
        let ChangeMembership { stage_placement, followers, peers, give, take } = change_membership;
        if self.sharding.is_some() {
            return self.refuse(
                Peer::Boss,
                Vec::new(),
                "sent other workers for stages of which each keeps a part alone".into(),
            );
        }
        let Some(me) = self
            .worker
            .filter(|_| stage_placement.are_possible() && stage_placement.stages() == self.stage_placement.stages())
        else {
            return self.refuse(Peer::Boss, Vec::new(), "sent other workers for stages that are not here".into());
        };
        // The shards change, so the residuals of the old ones are void.
        self.residuals(Residuals::Forget);
        self.groups = ReplicaGroup::of(&self.stages, &stage_placement, &followers, me, (self.buckets, self.sharding));
        self.stage_placement = stage_placement;
        let gives = !give.is_empty();
        self.job =
            Some(Job::ChangeMembership(Box::new(MembershipChange { id, give, copied: None, take, taking: false })));
        self.open_links(now, me, &peers);
        if gives {
            let all: Vec<_> = self.stages.iter().map(|spec| spec.stage).collect();
            self.compute(Purpose::Command(id), Task::Snapshot { parameters: all.clone(), optimizer: all });
        }
        self.start_taking();
        self.finish_opening();
    }

    /// This worker's state was copied for followers, or another worker's state was loaded.
    pub(super) fn membership_changed(&mut self, tensors: Option<Vec<(String, Slot)>>) {
        let Some(Job::ChangeMembership(membership_change)) = &mut self.job else { return };
        match tensors {
            None => membership_change.take = None,
            copied => membership_change.copied = copied,
        }
        self.finish_opening();
    }

    /// Sends this worker's state, if it is copied. The links are up.
    pub(super) fn give_state(&mut self) {
        let Some(Job::ChangeMembership(membership_change)) = &mut self.job else { return };
        let (Some(tensors), id) = (membership_change.copied.take(), membership_change.id) else { return };
        let followers = std::mem::take(&mut membership_change.give);
        let of = u32::try_from(tensors.len()).unwrap_or(u32::MAX);
        for (name, slot) in tensors {
            let head = Head::ReplicaState { id, name, of };
            let to = followers.iter().map(|follower| self.links.to(*follower, head.clone())).collect();
            self.effects.push_back(StageEffect::Send { to, slots: vec![slot] });
        }
    }

    /// A tensor of another replica's state.
    pub(super) fn take_state(&mut self, from: Peer, id: u64, (name, of): (String, u32), slots: Vec<Slot>) {
        let is_taken = matches!(&self.job, Some(Job::ChangeMembership(membership_change)) if membership_change.id == id && membership_change.taking);
        if id <= self.answered || is_taken {
            return self.drop_slots(slots);
        }
        let others = self.states.iter().filter(|(of, states)| **of != id && states.contains_key(&from)).count();
        if others >= MOST_STATES {
            return self.refuse(from, slots, "sent its state, of which nobody knows".into());
        }
        // Apart by sender: the right sender is known only once the command has arrived.
        let states = self.states.entry(id).or_default();
        let state =
            states.entry(from).or_insert_with(|| ReplicaState { of, names: BTreeSet::new(), tensors: Vec::new() });
        let fits = state.of == of && of <= MOST_TENSORS && state.tensors.len() < of as usize;
        // A tensor that counted twice would replace another one, which would then be missing.
        if !fits || !state.names.insert(name.clone()) {
            return self.refuse(from, slots, "sent more of its state than it said, or the same twice".into());
        }
        state.tensors.extend(slots.into_iter().map(|slot| (name.clone(), slot)));
        self.start_taking();
    }

    /// Loads the state of a replica once it is complete.
    fn start_taking(&mut self) {
        let Some(Job::ChangeMembership(membership_change)) = &self.job else { return };
        let (Some(guide), id) = (membership_change.take, membership_change.id) else { return };
        let mut strangers = self.states.remove(&id).unwrap_or_default();
        let state = strangers.remove(&Peer::Worker(guide));
        for (from, state) in strangers {
            let slots = state.into_tensors().into_iter().map(|(_, slot)| slot).collect();
            self.refuse(from, slots, "sent its state, which nobody asked it for".into());
        }
        match state {
            Some(state) if state.tensors.len() == state.of as usize => {
                let tensors = state.into_tensors();
                if let Some(Job::ChangeMembership(membership_change)) = &mut self.job {
                    membership_change.taking = true;
                }
                self.compute(Purpose::Command(id), Task::Load { tensors, optimizer: true });
            }
            Some(state) => drop(self.states.insert(id, BTreeMap::from([(Peer::Worker(guide), state)]))),
            None => {}
        }
    }
}
