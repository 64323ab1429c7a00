//! Tensors to load: files and weights. The boss sends weights to one replica of a stage, and
//! replicas pass them on.
//!
//! Each tensor is passed on when it arrives, if its command has arrived. With the command this
//! worker knows every link that broke before.

use super::context::Context;
use super::membership::Membership;
use crate::effect::{Destination, Peer};
use crate::ids::{Slot, StageId, WorkerId};
use crate::message::{Failure, TensorHead};
use crate::task::{LoadContent, Task};
use std::collections::{BTreeMap, BTreeSet};

/// The most commands for which tensors may arrive early.
const MAX_EARLY: usize = 4;
/// The most tensors of a command.
const MAX_TENSORS: usize = 1 << 20;

/// The command that loads tensors, and the tensors that arrived for it or for later commands.
#[derive(Default)]
pub(super) struct Loading {
    /// The current command, until all its tensors have arrived.
    current: Option<Load>,
    arrivals: BTreeMap<u64, Arrivals>,
}

/// A command to load tensors.
pub(super) struct Load {
    pub(super) id: u64,
    /// The number of tensors that arrive.
    pub(super) expected: usize,
    pub(super) kind: LoadKind,
    /// The workers that send them, if not the boss.
    pub(super) senders: Vec<WorkerId>,
}

#[derive(Copy, Clone)]
pub(super) enum LoadKind {
    State(LoadContent),
    Files,
}

impl LoadKind {
    fn task(self, tensors: Vec<(String, Slot)>) -> Task<Slot> {
        match self {
            LoadKind::State(content) => Task::Load { tensors, content },
            LoadKind::Files => Task::Files { files: tensors },
        }
    }
}

impl Load {
    fn has_sender(&self, peer: Peer) -> bool {
        self.senders.iter().any(|sender| Peer::Worker(*sender) == peer)
    }
}

/// The arrivals for a command.
#[derive(Default)]
struct Arrivals {
    /// The tensors, each once. Tensors that this worker sends to itself are among them before they
    /// arrive.
    counted: BTreeSet<Origin>,
    tensors: Vec<(String, Slot)>,
    /// The weights to pass on, once the command has arrived.
    waiting: Vec<Weight>,
}

/// The identity of an arriving tensor.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Origin {
    from: Peer,
    /// The stage of a weight.
    stage: Option<StageId>,
    name: String,
}

/// A parameter, buffer or optimizer state that arrives.
pub(super) struct Weight {
    /// The command.
    pub(super) id: u64,
    pub(super) from: Peer,
    pub(super) stage: StageId,
    pub(super) name: String,
    pub(super) slots: Vec<Slot>,
}

impl Weight {
    fn origin(&self) -> Origin {
        Origin { from: self.from, stage: Some(self.stage), name: self.name.clone() }
    }
}

/// The command whose tensors have all arrived, or too many of them.
pub(super) struct Loaded {
    pub(super) id: u64,
    pub(super) result: Result<Task<Slot>, Failure>,
}

impl Loading {
    /// The command arrived and is the current one.
    pub(super) fn begin(&mut self, load: Load) {
        self.current = Some(load);
    }

    /// The current command is over.
    pub(super) fn end(&mut self) {
        self.current = None;
    }

    /// A weight arrived. `current` is the current command, whatever it does.
    pub(super) fn on_weight(
        &mut self,
        weight: Weight,
        current: Option<u64>,
        context: &mut Context<'_>,
    ) {
        let (id, from, stage) = (weight.id, weight.from, weight.stage);
        let placement = &context.membership.placement;
        let Some(me) = context.membership.worker.filter(|me| placement.has(stage, *me)) else {
            let reason = format!("sent weights of {stage}, which is not here");
            return context.outbox.refuse(from, weight.slots, reason);
        };
        if from == Peer::Worker(me) {
            return self.take(id, weight.name, weight.slots, context);
        }
        let giver = giver(context.membership, stage, me);
        let load = self.current.as_ref().filter(|load| load.id == id);
        // Workers that store a snapshot send it, if the command, which may arrive later, names
        // them.
        let may_send = giver == Peer::Boss && load.is_none_or(|load| load.has_sender(from));
        if from != giver && !may_send {
            let reason = format!("sent weights of {stage}, which {giver} sends");
            return context.outbox.refuse(from, weight.slots, reason);
        }
        let waits = load.is_none() && (!placement.takers(stage, me).is_empty() || from != giver);
        if let Err(reason) = self.count(id, weight.origin(), current) {
            return context.outbox.refuse(from, weight.slots, reason);
        }
        match self.arrivals.get_mut(&id).filter(|_| waits) {
            Some(arrivals) => arrivals.waiting.push(weight),
            None => self.pass_on(weight, context),
        }
    }

    /// A file that layers are built from arrived.
    pub(super) fn on_file(
        &mut self,
        id: u64,
        name: String,
        slots: Vec<Slot>,
        current: Option<u64>,
        context: &mut Context<'_>,
    ) {
        let origin = Origin { from: Peer::Boss, stage: None, name: name.clone() };
        match self.count(id, origin, current) {
            Ok(()) => self.take(id, name, slots, context),
            Err(reason) => context.outbox.refuse(Peer::Boss, slots, reason),
        }
    }

    /// The receivers of a stored weight of the current command: the first replica of its stage. If
    /// this worker is the first replica, it passes the weight on like one that arrived.
    pub(super) fn receivers(
        &mut self,
        id: u64,
        stage: StageId,
        name: &str,
        context: &Context<'_>,
    ) -> Result<Vec<Destination>, String> {
        let placement = &context.membership.placement;
        let (Some(first), Some(me)) = (placement.first(stage), context.membership.worker) else {
            return Err(format!("nobody has {stage}"));
        };
        let name = name.to_string();
        let head = TensorHead::Weight { id, name: name.clone(), stage };
        if first != me {
            return Ok(vec![context.links.reach(first, head)]);
        }
        self.count(id, Origin { from: Peer::Worker(me), stage: Some(stage), name }, Some(id))?;
        let workers = placement.takers(stage, me).into_iter().chain([me]);
        Ok(workers.map(|worker| context.links.to(worker, head.clone())).collect())
    }

    /// Passes on the weights that waited for the current command. Returns the command once all its
    /// tensors have arrived.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Option<Loaded> {
        let load = self.current.as_ref()?;
        let (id, expected, kind) = (load.id, load.expected, load.kind);
        if let Some(arrivals) = self.arrivals.get_mut(&id) {
            let may_send = |weight: &Weight| {
                let me = context.membership.worker;
                let giver = me.map(|me| giver(context.membership, weight.stage, me));
                giver == Some(weight.from) || load.has_sender(weight.from)
            };
            let all = std::mem::take(&mut arrivals.waiting).into_iter();
            let (waiting, strange): (Vec<Weight>, Vec<Weight>) = all.partition(may_send);
            arrivals.waiting = waiting;
            for weight in strange {
                arrivals.counted.remove(&weight.origin());
                let reason = format!("sent weights of {}, which nobody asked it for", weight.stage);
                context.outbox.refuse(weight.from, weight.slots, reason);
            }
            let counted = arrivals.counted.len();
            if counted > expected {
                self.end();
                let failure = format!("{counted} tensors came to be loaded; there are {expected}");
                return Some(Loaded { id, result: Err(Failure::new(failure)) });
            }
        }
        let waiting = self.arrivals.get_mut(&id).map(|a| std::mem::take(&mut a.waiting));
        for weight in waiting.into_iter().flatten() {
            self.pass_on(weight, context);
        }
        let here = self.arrivals.get(&id).map_or(0, |arrivals| arrivals.tensors.len());
        if here != expected {
            return None;
        }
        self.end();
        let tensors = self.arrivals.remove(&id).map_or(Vec::new(), |arrivals| arrivals.tensors);
        Some(Loaded { id, result: Ok(kind.task(tensors)) })
    }

    /// The number of tensors that arrived, and are neither loaded nor passed on.
    pub(super) fn held(&self) -> usize {
        self.arrivals.values().map(Arrivals::held).sum()
    }

    /// Removes the arrivals for a command.
    pub(super) fn cancel(&mut self, id: u64) -> Vec<Slot> {
        self.arrivals.remove(&id).map_or(Vec::new(), Arrivals::into_slots)
    }

    /// Removes all arrivals.
    pub(super) fn cancel_all(&mut self) -> Vec<Slot> {
        let all = std::mem::take(&mut self.arrivals).into_values();
        all.flat_map(Arrivals::into_slots).collect()
    }

    fn pass_on(&mut self, weight: Weight, context: &mut Context<'_>) {
        let Weight { id, stage, name, slots, .. } = weight;
        let Some(me) = context.membership.worker else { return context.outbox.drop_slots(slots) };
        let takers = context.membership.placement.takers(stage, me);
        if takers.is_empty() {
            return self.take(id, name, slots, context);
        }
        // A tensor that is passed on and also stays is sent to this worker, too.
        let head = TensorHead::Weight { id, name, stage };
        let takers = takers.into_iter().chain([me]);
        let to = takers.map(|worker| context.links.to(worker, head.clone())).collect();
        context.outbox.send(to, slots);
    }

    /// Counts a tensor for a command, or returns why it is one too many.
    fn count(&mut self, id: u64, origin: Origin, current: Option<u64>) -> Result<(), String> {
        let most = match &self.current {
            Some(load) if load.id == id => load.expected,
            // All have arrived and are being loaded.
            _ if current == Some(id) => 0,
            _ => MAX_TENSORS,
        };
        let counted = self.arrivals.get(&id).map_or(0, |arrivals| arrivals.counted.len());
        if counted >= most {
            return Err("sent more tensors to load than were to come".into());
        }
        if !self.arrivals.contains_key(&id) && self.arrivals.len() >= MAX_EARLY {
            return Err(format!(
                "sent tensors to load while those of {MAX_EARLY} other commands wait"
            ));
        }
        // A tensor that counted twice would replace another one, which would then be missing.
        match self.arrivals.entry(id).or_default().counted.insert(origin) {
            true => Ok(()),
            false => Err("sent the same tensor to be loaded twice".into()),
        }
    }

    fn take(&mut self, id: u64, name: String, slots: Vec<Slot>, context: &mut Context<'_>) {
        // A cancelled command has no arrivals.
        let Some(arrivals) = self.arrivals.get_mut(&id) else {
            return context.outbox.drop_slots(slots);
        };
        arrivals.tensors.extend(slots.into_iter().map(|slot| (name.clone(), slot)));
    }
}

impl Arrivals {
    fn held(&self) -> usize {
        let waiting = self.waiting.iter().map(|weight| weight.slots.len());
        self.tensors.len() + waiting.sum::<usize>()
    }

    fn into_slots(self) -> Vec<Slot> {
        let waiting = self.waiting.into_iter().flat_map(|weight| weight.slots);
        self.tensors.into_iter().map(|(_, slot)| slot).chain(waiting).collect()
    }
}

/// The peer that sends this worker the weights of a stage.
fn giver(membership: &Membership, stage: StageId, me: WorkerId) -> Peer {
    membership.placement.giver(stage, me).map_or(Peer::Boss, Peer::Worker)
}

#[cfg(test)]
mod tests {
    use super::super::links::Links;
    use super::super::outbox::Outbox;
    use super::super::testing::{links, membership, text};
    use super::*;

    const BOSS: Peer = Peer::Boss;
    const LAST: Peer = Peer::Worker(WorkerId(1));

    /// The first of two replicas of the first stage. Another worker has the last stage.
    struct World {
        membership: Membership,
        links: Links,
        outbox: Outbox,
        loading: Loading,
    }

    impl World {
        fn new() -> Self {
            let (membership, links) = (membership(&[2, 1], 0, None), links(0, &[]));
            World { membership, links, outbox: Outbox::default(), loading: Loading::default() }
        }

        fn begin(&mut self, expected: usize, senders: &[u16]) {
            let senders = senders.iter().map(|sender| WorkerId(*sender)).collect();
            self.loading.begin(Load {
                id: 5,
                expected,
                kind: LoadKind::State(LoadContent::Part),
                senders,
            });
        }

        fn weight(&mut self, from: Peer, name: &str, slot: u64) -> String {
            let (name, slots) = (name.to_string(), vec![Slot(slot)]);
            let weight = Weight { id: 5, from, stage: StageId(0), name, slots };
            let current = self.loading.current.as_ref().map(|load| load.id);
            let mut context = Context {
                membership: &self.membership,
                links: &self.links,
                outbox: &mut self.outbox,
            };
            self.loading.on_weight(weight, current, &mut context);
            self.poll()
        }

        fn poll(&mut self) -> String {
            let mut context = Context {
                membership: &self.membership,
                links: &self.links,
                outbox: &mut self.outbox,
            };
            let loaded = self.loading.poll(&mut context);
            let loaded = loaded.map_or(String::new(), |loaded| match loaded.result {
                Ok(_) => format!("loads for command {}\n", loaded.id),
                Err(failure) => format!("{failure}\n"),
            });
            text(&mut self.outbox) + &loaded
        }
    }

    #[test]
    fn the_first_replica_passes_a_weight_on_and_loads_it() {
        let mut world = World::new();
        world.begin(1, &[]);
        assert_eq!(world.poll(), "");
        let sent = "send [1] as Weight to worker 2, Weight to worker 0\n";
        assert_eq!(world.weight(BOSS, "w", 1), sent);
        let me = Peer::Worker(WorkerId(0));
        assert_eq!(world.weight(me, "w", 2), "loads for command 5\n");
    }

    #[test]
    fn an_early_weight_waits_for_its_command() {
        let mut world = World::new();
        assert_eq!(world.weight(BOSS, "w", 1), "");
        world.begin(1, &[]);
        assert_eq!(world.poll(), "send [1] as Weight to worker 2, Weight to worker 0\n");
    }

    #[test]
    fn the_command_says_who_else_sends() {
        let refused = "hang up on worker 1: sent weights of stage 0, which nobody asked it for\n";
        for (senders, expected) in [
            (&[1][..], "send [1] as Weight to worker 2, Weight to worker 0\n".to_string()),
            (&[], format!("drop [1]\n{refused}")),
        ] {
            let mut world = World::new();
            assert_eq!(world.weight(LAST, "w", 1), "", "the command may come later");
            world.begin(1, senders);
            assert_eq!(world.poll(), expected);
        }
    }

    #[test]
    fn a_weight_counts_once() {
        let mut world = World::new();
        world.begin(2, &[]);
        world.weight(BOSS, "w", 1);
        let refused = "hang up on the boss: sent the same tensor to be loaded twice\n";
        assert_eq!(world.weight(BOSS, "w", 2), format!("drop [2]\n{refused}"));
    }

    #[test]
    fn too_many_early_weights_fail_their_command() {
        let mut world = World::new();
        world.weight(BOSS, "a", 1);
        world.weight(BOSS, "b", 2);
        world.begin(1, &[]);
        assert_eq!(world.poll(), "2 tensors came to be loaded; there are 1\n");
        assert_eq!(world.loading.cancel(5), [Slot(1), Slot(2)]);
    }
}
