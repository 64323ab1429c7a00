//! The network between the boss and the workers: frames in flight, their order, and their loss.

#[path = "network_faults.rs"]
mod network_faults;

use crate::math::Fake;
use crate::planned_faults::FrameFault;
use pipeline::effect::{Micros, Peer};
use pipeline::ids::{StageId, Ticket, WorkerId};
use pipeline::message::Failure;
use pipeline::schedule::StageTimes;
use pipeline::task::Task;
use std::collections::{BTreeMap, BTreeSet};
use testkit::Random;

/// The behaviour of a network.
#[derive(Copy, Clone, Debug)]
pub struct Conditions {
    /// The longest delay of a frame, in microseconds.
    pub delay: u64,
    /// The longest task, in microseconds.
    pub task: u64,
    /// The numbers of dials, of 100, that are refused, never answered, and answered after more than
    /// three seconds.
    pub refused: u64,
    pub silent: u64,
    pub late: u64,
    /// Nothing is random: every frame takes the longest delay, every task its own time.
    pub exact: bool,
}

impl Conditions {
    /// Every dial succeeds.
    pub const CALM: Conditions =
        Conditions { delay: 100, task: 100, refused: 0, silent: 0, late: 0, exact: false };

    pub fn random(random: &mut Random) -> Self {
        let delay = *random.pick(&[1, 10, 100, 50_000]);
        let task = *random.pick(&[1, 100, 10_000]);
        let (refused, silent, late) =
            *random.pick(&[(0, 0, 0), (20, 20, 20), (100, 0, 0), (0, 100, 0), (0, 0, 100)]);
        Conditions { delay, task, refused, silent, late, exact: false }
    }
}

/// A frame on its way.
#[derive(Clone)]
pub struct Packet {
    pub from: Peer,
    pub to: Peer,
    pub head: Vec<u8>,
    pub tensors: Vec<Fake>,
    /// The dial that made its connection, if that is a direct one.
    dial: Option<u32>,
}

impl Packet {
    pub fn new(from: Peer, to: Peer, head: Vec<u8>, tensors: Vec<Fake>) -> Self {
        Packet { from, to, head, tensors, dial: None }
    }
}

/// The next event.
pub enum Event {
    Arrives(Packet),
    /// The compute thread of a worker is done with its oldest task.
    Computed(WorkerId),
    /// A sum that a worker computes beside its compute thread is done.
    Summed(WorkerId, Ticket, Vec<Fake>),
    /// A worker has opened its data, or read a microbatch.
    Read(WorkerId, Ticket, Result<Vec<Fake>, Failure>),
    LinkUp {
        at: WorkerId,
        peer: WorkerId,
        dial: u32,
    },
    LinkDown {
        at: WorkerId,
        peer: WorkerId,
        dial: u32,
        reason: &'static str,
    },
    /// The boss learns that a worker is gone.
    Lost(WorkerId),
    /// A worker learns that the boss has given it up, and leaves.
    Leaves(WorkerId),
    /// The user takes a frame of the state of a request, which this worker sent.
    Taken(u64, WorkerId),
}

impl Event {
    /// The worker that it happens to.
    fn at(&self) -> Option<WorkerId> {
        match self {
            Event::Arrives(Packet { to: Peer::Worker(worker), .. }) => Some(*worker),
            Event::Computed(at) | Event::Summed(at, ..) | Event::Read(at, ..) => Some(*at),
            Event::LinkUp { at, .. } | Event::LinkDown { at, .. } => Some(*at),
            Event::Arrives(_) | Event::Lost(_) | Event::Leaves(_) | Event::Taken(..) => None,
        }
    }
}

/// The direct connections of two workers, one at a time. The end of one may become known after the
/// next was dialled.
#[derive(Default)]
struct Link {
    /// The number of the last dial.
    dial: u32,
    /// The dial that made the connection, for each end that knows of it.
    up: BTreeMap<WorkerId, u32>,
    /// Connections that broke, with the time after which their frames are lost.
    broken: BTreeMap<u32, u64>,
}

/// Everything between the nodes.
pub struct Network {
    pub conditions: Conditions,
    pub random: Random,
    pub now: u64,
    queue: BTreeMap<(u64, u64), Event>,
    sequence: u64,
    /// When the last frame of an ordered stream arrives.
    ordered: BTreeMap<(Peer, Peer), u64>,
    /// The time at which each worker has read all requested samples.
    reading: BTreeMap<WorkerId, u64>,
    links: BTreeMap<(WorkerId, WorkerId), Link>,
    /// Workers that are gone, with the time until which their frames still arrive, by receiver.
    gone: BTreeMap<WorkerId, BTreeMap<Peer, u64>>,
    /// Workers that do nothing until this time.
    asleep: BTreeMap<WorkerId, u64>,
    /// The current short partition, and the pairs that are separated for ever.
    parting: Option<Parting>,
    severed: BTreeSet<(Peer, Peer)>,
    /// The number of frames sent, without those from a worker to itself.
    pub frames: u64,
    /// The faults of frames, by the number of the frame.
    pub frame_faults: BTreeMap<u64, FrameFault>,
    pub injected_frame_faults: Vec<FrameFault>,
    /// The additional delay that frames may have had.
    pub slack: u64,
}

/// A partition: two sides between which nothing passes until a time.
struct Parting {
    far: BTreeSet<WorkerId>,
    until: u64,
}

impl Network {
    pub fn new(conditions: Conditions, random: Random) -> Self {
        Network {
            conditions,
            random,
            now: 0,
            queue: BTreeMap::new(),
            sequence: 0,
            ordered: BTreeMap::new(),
            reading: BTreeMap::new(),
            links: BTreeMap::new(),
            gone: BTreeMap::new(),
            asleep: BTreeMap::new(),
            parting: None,
            severed: BTreeSet::new(),
            frames: 0,
            frame_faults: BTreeMap::new(),
            injected_frame_faults: Vec::new(),
            slack: 0,
        }
    }

    pub fn time(&self) -> Micros {
        Micros(self.now)
    }

    /// When the next event happens.
    pub fn next_time(&self) -> Option<u64> {
        self.queue.keys().next().map(|(time, _)| *time)
    }

    /// The next event. Events of a sleeping worker are postponed.
    pub fn next(&mut self) -> Option<Event> {
        let ((time, number), event) = self.queue.pop_first()?;
        let until = event.at().and_then(|worker| self.asleep.get(&worker)).copied().unwrap_or(0);
        if time < until {
            self.queue.insert((until, number), event);
            return None;
        }
        self.now = self.now.max(time);
        Some(event)
    }

    fn at(&mut self, time: u64, event: Event) {
        self.sequence += 1;
        let time = self.held_until(time, &event);
        self.queue.insert((time, self.sequence), event);
    }

    fn soon(&mut self) -> u64 {
        let delay = self.conditions.delay;
        self.now + if self.conditions.exact { delay } else { 1 + self.random.below(delay) }
    }

    /// A task begins.
    pub fn compute(&mut self, worker: WorkerId, task: &Task<Fake>) {
        let end = match self.conditions.exact {
            true => self.now + exact_time(task),
            false => self.now + 1 + self.random.below(self.conditions.task),
        };
        self.at(end, Event::Computed(worker));
    }

    /// The user takes a frame of state after some time.
    pub fn take_later(&mut self, request: u64, worker: WorkerId, delay: u64) {
        self.at(self.now + delay, Event::Taken(request, worker));
    }

    /// A sum is begun beside the compute thread.
    pub fn sum(&mut self, worker: WorkerId, ticket: Ticket, sums: Vec<Fake>) {
        let end = self.soon();
        self.at(end, Event::Summed(worker, ticket, sums));
    }

    /// A worker begins to open or read its data. It does one task after the other.
    pub fn read(&mut self, worker: WorkerId, ticket: Ticket, result: Result<Vec<Fake>, Failure>) {
        let last = self.reading.get(&worker).copied().unwrap_or(0);
        let end = self.soon().max(last);
        self.reading.insert(worker, end);
        self.at(end, Event::Read(worker, ticket, result));
    }

    /// Sends a packet. Frames with tensors may overtake each other. The others keep their order.
    pub fn send(&mut self, mut packet: Packet, is_data: bool) {
        let (mut arrival, again) = self.next_frame_fault(&packet);
        if let (Peer::Worker(from), Peer::Worker(to)) = (packet.from, packet.to) {
            packet.dial =
                self.links.get(&pair(from, to)).and_then(|link| link.up.get(&from)).copied();
            assert!(
                from == to || packet.dial.is_some(),
                "{from} sends to {to} on a link that is not up"
            );
        }
        if !is_data {
            let last = self.ordered.entry((packet.from, packet.to)).or_default();
            arrival = arrival.max(*last);
            *last = arrival;
        }
        let second = again.map(|more| (arrival + if is_data { more } else { 0 }, packet.clone()));
        self.at(arrival, Event::Arrives(packet));
        second.into_iter().for_each(|(time, packet)| self.at(time, Event::Arrives(packet)));
    }

    /// Whether a frame that arrives now is delivered.
    pub fn delivers(&self, packet: &Packet) -> bool {
        if self.is_severed(packet.from, packet.to) {
            return false;
        }
        if let Peer::Worker(from) = packet.from {
            if self
                .gone
                .get(&from)
                .is_some_and(|until| until.get(&packet.to).is_none_or(|until| *until < self.now))
            {
                return false;
            }
            if let (Peer::Worker(to), Some(dial)) = (packet.to, packet.dial) {
                let broken =
                    self.links.get(&pair(from, to)).and_then(|link| link.broken.get(&dial));
                return broken.is_none_or(|broken| self.now <= *broken);
            }
        }
        true
    }

    /// Tries to connect. The result is drawn here.
    pub fn dial(&mut self, from: WorkerId, to: WorkerId) {
        let link = self.links.entry(pair(from, to)).or_default();
        link.dial += 1;
        let dial = link.dial;
        let Conditions { refused, silent, late, .. } = self.conditions;
        let scenario = self.random.below(100);
        let severed = self.is_severed(Peer::Worker(from), Peer::Worker(to));
        if severed || self.gone.contains_key(&to) || (refused..refused + silent).contains(&scenario)
        {
            return;
        }
        if scenario < refused {
            let time = self.soon();
            return self.at(time, Event::LinkDown { at: from, peer: to, dial, reason: "refused" });
        }
        // A late answer comes soon after the workers gave up, while they work.
        let wait = if scenario < refused + silent + late {
            3_000_000 + 50 * self.random.below(self.conditions.delay)
        } else {
            0
        };
        for (at, peer) in [(from, to), (to, from)] {
            // One end may learn of it long after the other.
            let slow = if self.random.chance(20) { 20 * self.conditions.delay } else { 0 };
            let time = self.soon() + wait + slow;
            self.at(time, Event::LinkUp { at, peer, dial });
        }
    }

    /// An end learns that it is connected. Returns whether the connection is that of the last dial.
    pub fn link_up(&mut self, at: WorkerId, peer: WorkerId, dial: u32) -> bool {
        let severed = self.is_severed(Peer::Worker(at), Peer::Worker(peer));
        let Some(link) = self.links.get_mut(&pair(at, peer)) else { return false };
        let there = !severed && !link.broken.contains_key(&dial) && !self.gone.contains_key(&peer);
        let news = link.dial == dial && there;
        if news {
            link.up.insert(at, dial);
        }
        news
    }

    /// An end learns that a dial failed or its connection broke. Returns whether it now has no
    /// connection.
    pub fn link_down(&mut self, at: WorkerId, peer: WorkerId, dial: u32) -> bool {
        let Some(link) = self.links.get_mut(&pair(at, peer)) else { return false };
        let present = link.up.get(&at).copied().unwrap_or(link.dial);
        if present == dial {
            link.up.remove(&at);
        }
        present == dial
    }

    /// Breaks a direct link that is up at both ends. Each end learns this later.
    pub fn break_link(&mut self) -> Option<(WorkerId, WorkerId)> {
        let both_up =
            |link: &Link| link.up.len() == 2 && link.up.values().all(|dial| *dial == link.dial);
        let whole =
            self.links.iter().filter(|(_, l)| both_up(l) && !l.broken.contains_key(&l.dial));
        let whole: Vec<_> = whole.map(|(pair, _)| *pair).collect();
        if whole.is_empty() {
            return None;
        }
        let (a, b) = *self.random.pick(&whole);
        let until = self.now + self.random.below(self.conditions.delay);
        let link = self.links.get_mut(&(a, b))?;
        let dial = link.dial;
        link.broken.insert(dial, until);
        for (at, peer) in [(a, b), (b, a)] {
            let time = until + self.soon() - self.now;
            self.at(time, Event::LinkDown { at, peer, dial, reason: "connection reset" });
        }
        Some((a, b))
    }

    /// A worker vanishes. Each receiver loses its packets from a different moment on. The boss and
    /// the peers learn of the loss in any order.
    pub fn lose(&mut self, worker: WorkerId, others: impl Iterator<Item = WorkerId>) {
        let mut until = BTreeMap::new();
        for peer in others {
            let last = self.now + self.random.below(self.conditions.delay * 2);
            until.insert(Peer::Worker(peer), last);
            if let Some(&dial) =
                self.links.get(&pair(worker, peer)).and_then(|link| link.up.get(&peer))
            {
                let time = last + self.soon() - self.now;
                self.at(
                    time,
                    Event::LinkDown { at: peer, peer: worker, dial, reason: "connection lost" },
                );
            }
        }
        let last = self.now + self.random.below(self.conditions.delay * 2);
        until.insert(Peer::Boss, last);
        let time = last + self.soon() - self.now;
        self.at(time, Event::Lost(worker));
        self.gone.insert(worker, until);
    }

    /// A worker falls silent until the returned time, and the boss gives it up before. Its packets
    /// arrive, and so do those that it sends after waking, until it learns that it was given up.
    pub fn silence(&mut self, worker: WorkerId) -> u64 {
        let Conditions { delay, task, .. } = self.conditions;
        let silent = 1 + self.random.below(40 * delay.max(task));
        let given_up = self.now + self.random.below(silent);
        self.at(given_up, Event::Lost(worker));
        let until = self.now + silent;
        self.asleep.insert(worker, until);
        let leaves = self.soon() + silent;
        self.at(leaves, Event::Leaves(worker));
        until
    }
}

fn pair(a: WorkerId, b: WorkerId) -> (WorkerId, WorkerId) {
    (a.min(b), a.max(b))
}

/// The times of tasks without randomness. Small sums of these numbers all differ.
pub fn exact(stage: StageId) -> StageTimes {
    let more = [0, 29, 73, 131][usize::from(stage.0) % 4];
    StageTimes {
        forward: 1009 + more,
        backward: 2503 + 2 * more,
        backward_input: 1213 + more,
        backward_weight: 1423 + 3 * more,
        optim_step: 1,
    }
}

fn exact_time(task: &Task<Fake>) -> u64 {
    match task {
        Task::Forward { stage, .. } => exact(*stage).forward,
        Task::Backward { stage, input_only: false, .. } => exact(*stage).backward,
        Task::Backward { stage, .. } => exact(*stage).backward_input,
        Task::BackwardWeight { stage, .. } => exact(*stage).backward_weight,
        _ => 1,
    }
}
