//! The fleet: one boss session, the workers' sessions with their compute threads, and the driver that
//! carries out effects, all on one virtual clock.

#[path = "answers.rs"]
mod answers;
#[path = "at_work.rs"]
mod at_work;
#[path = "keeping.rs"]
mod keeping;
#[path = "meeting.rs"]
mod meeting;
#[path = "slots.rs"]
mod slots;
#[path = "striking.rs"]
mod striking;

use crate::churn::{Change, Churn};
use crate::math::{self, Fake};
use crate::network::{Conditions, Event, Network, Packet};
use crate::params::NOTHING;
use crate::seeds::Log;
use crate::strikes::{Strike, Struck};
use crate::{
    calls::Answered,
    faults::{Faults, Loss, Perils, Trouble},
};
use layerspec::DType;
use pipeline::boss::{BossSession, Request, Setup, MOST_WAITING};
use pipeline::effect::{BossEffect, Destination, Frame, Peer, StageEffect, Summing, WorkerSpan};
use pipeline::frame::{decode, encode, head_len, Envelope, Route};
use pipeline::ids::{Slot, StageId, WorkerId};
use pipeline::kept::PeerSnapshot;
use pipeline::message::{Failure, Head};
use pipeline::replicas::{BucketBytes, Node, StagePlacement, Tree};
use pipeline::samples::DataTask;
use pipeline::stage::StageSession;
use pipeline::task::Outcome;
use pipeline::{Plan, TensorMeta};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use testkit::Random;

/// More events than any run here takes: the sessions talk without end.
const MOST_EVENTS: u64 = 200_000;

/// A reply to a request.
pub struct Replied {
    pub at: u64,
    pub result: Result<Answered, Failure>,
}

/// The whole fleet.
pub struct World {
    pub boss_slots: Slots,
    pub notices: Vec<String>,
    pub trouble: Trouble,
    /// When each action of the last round ran.
    pub spans: Vec<WorkerSpan>,
    /// How many events have happened.
    pub events: u64,
    /// For each follower how many commands it had to carry out when the last answer came.
    pub behind: Vec<(WorkerId, usize)>,
    /// How many microbatches workers were told to read before they were asked for, and how many of these were asked for.
    pub ahead: (u64, u64),
    /// Who comes and goes, where workers may.
    pub churn: Option<Churn>,
    /// What may befall workers at any event.
    pub perils: Perils,
    /// What is to strike at given events, and what has.
    strikes: BTreeMap<u64, Strike>,
    pub struck: Struck,
    /// The ways that weights to be loaded took, by name, each with the stage.
    pub weights: BTreeMap<String, Vec<(StageId, Peer, WorkerId)>>,
    /// What workers said last of the copies that they keep.
    pub copies: Vec<(WorkerId, PeerSnapshot)>,
    /// Who has which stage, where nobody comes and goes.
    stage_placement: StagePlacement,
    network: Network,
    boss: BossSession,
    workers: Vec<Worker>,
    /// Those that the boss knows to be lost, where they may not come and go.
    lost: BTreeSet<WorkerId>,
    requests: u64,
    /// Those that are answered while others are carried out.
    beside: BTreeSet<u64>,
    /// When the last reply came.
    replied: u64,
    replies: BTreeMap<u64, Replied>,
    log: Log,
}

use at_work::Worker;
pub use keeping::Kept;
pub use slots::Slots;

impl World {
    pub fn new(plan: Plan, seed: u64, conditions: Conditions, faults: Faults, log: Log) -> Self {
        let mut random = Random::new(seed);
        // With any trouble at all, some workers cannot be dialled.
        let deaf = if conditions.refused > 0 { 20 } else { 0 };
        let address = |n: usize| SocketAddr::from(([127, 0, 0, 1], 1024 + n as u16));
        let addresses = (0..plan.workers()).map(|n| (!random.chance(deaf)).then(|| address(n))).collect();
        let ahead: Vec<u64> = (0..plan.workers()).map(|_| random.below(10_000_000_000)).collect();
        World {
            boss_slots: Slots::default(),
            notices: Vec::new(),
            trouble: Trouble::new(faults),
            spans: Vec::new(),
            events: 0,
            behind: Vec::new(),
            ahead: (0, 0),
            churn: None,
            perils: Perils::default(),
            strikes: BTreeMap::new(),
            struck: Struck::default(),
            weights: BTreeMap::new(),
            copies: Vec::new(),
            stage_placement: plan.stage_placement.clone(),
            network: Network::new(conditions, random),
            workers: ahead.iter().map(|ahead| Worker::new(*ahead)).collect(),
            boss: BossSession::new(Setup {
                plan,
                seed: crate::calls::SEED,
                // So small that models of a few numbers have several.
                buckets: BucketBytes { first: 16, other: 100 },
                addresses,
                most_waiting: MOST_WAITING,
            }),
            lost: BTreeSet::new(),
            requests: 0,
            beside: BTreeSet::new(),
            replied: 0,
            replies: BTreeMap::new(),
            log,
        }
    }

    pub fn now(&self) -> u64 {
        self.network.now
    }

    /// Hands a request to the boss; the reply comes under the number given back.
    pub fn submit(&mut self, request: Request) -> u64 {
        self.requests += 1;
        self.log.note(|| format!("{:>9} request {}: {}", self.now(), self.requests, short(&request)));
        if matches!(request, Request::Keep(_)) {
            self.beside.insert(self.requests);
        }
        if self.struck.boss_killed {
            return self.requests;
        }
        self.boss.on_request(self.network.time(), self.requests, request);
        self.drain_boss();
        self.requests
    }

    /// Lets the fleet work until there is a reply.
    pub fn reply(&mut self, request: u64) -> Replied {
        loop {
            // Nobody is left to whom it would be of use.
            if self.struck.boss_killed {
                let result = Err(Failure { passing: true, ..Failure::new("the boss was killed") });
                return Replied { at: self.now(), result };
            }
            if let Some(reply) = self.replies.remove(&request) {
                return reply;
            }
            assert!(self.step(), "request {request} hangs: nothing is left to happen");
        }
    }

    /// Lets everything happen that is on its way, and checks that nothing is left behind.
    pub fn settle(&mut self) {
        while self.step() {}
        if self.struck.boss_killed {
            return assert!(self.workers.iter().all(|w| !w.alive), "a worker does not learn that the boss is gone");
        }
        assert!(self.boss_slots.held().is_empty(), "the boss still holds {:?}", self.boss_slots.held());
        // What came once more after it was of use goes with what is told next.
        let all = !self.struck.repeats();
        for (index, worker) in self.workers.iter().enumerate().filter(|(_, w)| w.alive && all || w.finished) {
            assert!(worker.slots.held().is_empty(), "worker {index} still holds {:?}", worker.slots.held());
            assert!(worker.tasks.is_empty(), "worker {index} still has tasks");
        }
    }

    /// Checks that no live worker keeps a forward pass for a backward pass that will not come.
    pub fn assert_clear(&self) {
        for (index, worker) in self.workers.iter().enumerate().filter(|(_, w)| w.alive) {
            assert!(worker.compute.is_clear(), "worker {index} keeps a forward pass");
        }
    }

    /// Checks that every worker was told to stop or is lost, and that no reply was left over.
    pub fn assert_over(&self) {
        assert!(self.workers.iter().all(|w| !w.alive), "a worker was not told to stop");
        assert!(
            self.struck.boss_killed || self.replies.is_empty(),
            "a reply nobody asked for: request {:?}",
            self.replies.keys()
        );
    }

    /// Lets so many events happen, if there are any; workers may be lost without.
    pub fn linger(&mut self, events: u64) {
        for _ in 0..events {
            self.step();
        }
    }

    /// The next event, if any is left.
    fn step(&mut self) -> bool {
        self.imperil();
        let timer = self.workers.iter().filter(|w| w.alive).filter_map(Worker::timer).min();
        let event = self.network.next_time();
        if timer.is_none() && event.is_none() {
            return false;
        }
        self.events += 1;
        assert!(self.events < MOST_EVENTS, "the sessions do not come to rest");
        self.inject_faults();
        self.come_and_go();
        self.strike();
        match timer {
            Some(timer) if event.is_none_or(|event| timer <= event) => self.on_timer(timer),
            _ => {
                if let Some(event) = self.network.next() {
                    self.on_event(event);
                }
            }
        }
        true
    }

    /// Has workers come and go, at these events.
    pub fn open(&mut self, churn: Churn) {
        self.boss.open();
        self.churn = Some(churn);
    }

    /// Lets everything happen, and takes the replies to these requests, which nobody wants any more.
    pub fn forget(&mut self, requests: Vec<u64>) {
        while self.step() {}
        // Who still follows waits for what one that has gone has not sent.
        let stuck: Vec<WorkerId> = self.boss.behind().into_iter().filter(|(_, n)| *n > 0).map(|(w, _)| w).collect();
        stuck.into_iter().for_each(|worker| self.vanish(worker));
        self.settle();
        requests.iter().for_each(|request| drop(self.replies.remove(request)));
    }

    /// The reply to a request, if it is there.
    pub fn replied(&mut self, request: u64) -> Option<Replied> {
        self.replies.remove(&request)
    }

    fn on_timer(&mut self, time: u64) {
        self.network.now = self.network.now.max(time);
        let now = self.network.time();
        for index in 0..self.workers.len() {
            let worker = &mut self.workers[index];
            if worker.alive && worker.timer().is_some_and(|timer| timer <= now.0) {
                self.log.note(|| format!("{:>9} worker {index}: timeout", now.0));
                worker.session.on_timeout(worker.clock(now));
                assert!(worker.timer().is_none_or(|timer| timer > now.0), "a timer that does not move on");
                self.drain_worker(WorkerId(index as u16));
            }
        }
    }

    fn on_event(&mut self, event: Event) {
        let now = self.network.time();
        match event {
            Event::Arrives(packet) => self.on_packet(packet),
            Event::Lost(_) if self.struck.boss_killed => {}
            Event::Lost(worker) => {
                self.log.note(|| format!("{:>9} boss: {worker} is lost", now.0));
                self.struck.given_up.insert(worker);
                match &mut self.churn {
                    Some(churn) => churn.gone.push(worker),
                    None => {
                        self.trouble.known_lost = Some(now.0);
                        self.lost.insert(worker);
                    }
                }
                self.boss.on_lost(now, worker, "the connection closed");
                self.drain_boss();
            }
            Event::Leaves(worker) => self.leave(worker),
            Event::Computed(id) => {
                if self.alive(id) {
                    self.computed(id);
                }
            }
            Event::Summed(id, ticket, sums) => {
                let worker = &mut self.workers[id.0 as usize];
                if worker.alive {
                    self.log.note(|| format!("{:>9} {id}: summed {ticket}", now.0));
                    let slots = sums.into_iter().map(|sum| worker.slots.hold(sum)).collect();
                    worker.session.on_summed(worker.clock(now), ticket, Ok(slots));
                    self.drain_worker(id);
                }
            }
            Event::Read(id, ticket, result) => {
                let worker = &mut self.workers[id.0 as usize];
                if worker.alive {
                    self.log.note(|| format!("{:>9} {id}: read {ticket}", now.0));
                    let slots = result.map(|read| read.into_iter().map(|tensor| worker.slots.hold(tensor)).collect());
                    worker.session.on_data(worker.clock(now), ticket, slots);
                    self.drain_worker(id);
                }
            }
            Event::LinkUp { at, peer, dial } => {
                if self.alive(at) && self.network.link_up(at, peer, dial) {
                    self.log.note(|| format!("{:>9} {at}: link to {peer} is up", now.0));
                    let worker = &mut self.workers[at.0 as usize];
                    worker.session.on_link_up(worker.clock(now), peer);
                    self.drain_worker(at);
                }
            }
            Event::LinkDown { at, peer, dial, reason } => {
                if self.alive(at) && self.network.link_down(at, peer, dial) {
                    self.log.note(|| format!("{:>9} {at}: link to {peer} is down ({reason})", now.0));
                    let worker = &mut self.workers[at.0 as usize];
                    worker.session.on_link_down(worker.clock(now), peer, reason);
                    self.drain_worker(at);
                }
            }
        }
    }

    fn alive(&self, worker: WorkerId) -> bool {
        self.workers[worker.0 as usize].alive
    }

    fn on_packet(&mut self, packet: Packet) {
        let now = self.network.time();
        let (from, to) = (packet.from, packet.to);
        let gone = match to {
            Peer::Worker(worker) => !self.alive(worker),
            Peer::Boss => self.struck.boss_killed,
        };
        if gone || !self.network.delivers(&packet) {
            return self.log.note(|| format!("{:>9} {from} -> {to}: lost", now.0));
        }
        let (prefix, head) = packet.head.split_first_chunk().expect("a length");
        assert_eq!(head_len(*prefix).expect("a good length"), head.len());
        let Envelope { route, head, tensors } = decode(head).expect("what was encoded");
        assert_eq!(tensors.len(), packet.tensors.len());
        self.log.note(|| format!("{:>9} {from} -> {to}: {}", now.0, short(&head)));
        match (from, to) {
            (_, Peer::Worker(to)) => {
                let worker = &mut self.workers[to.0 as usize];
                let slots = packet.tensors.into_iter().map(|t| worker.slots.hold(t)).collect();
                worker.session.on_frame(worker.clock(now), from, Frame { route, head, slots });
                self.drain_worker(to);
            }
            (Peer::Worker(from), Peer::Boss) => {
                let slots = packet.tensors.into_iter().map(|t| self.boss_slots.hold(t)).collect();
                self.boss.on_frame(now, from, Frame { route, head, slots });
                self.drain_boss();
            }
            (Peer::Boss, Peer::Boss) => panic!("the boss sends to itself"),
        }
    }

    fn drain_boss(&mut self) {
        while let Some(effect) = self.boss.poll_effect() {
            match effect {
                BossEffect::Send { to, slots } => {
                    let tensors = self.boss_slots.give_up_all(slots);
                    self.send(Peer::Boss, to, tensors);
                }
                BossEffect::Drop(slots) => drop(self.boss_slots.give_up_all(slots)),
                BossEffect::Notice(text) => {
                    // With what follows a worker in a notice: worker 1 is not worker 10.
                    let names = |lost: &WorkerId| text.contains(&format!("{lost} "));
                    assert!(!self.lost.iter().any(names), "old news: {text}");
                    self.notices.push(text);
                }
                BossEffect::Reply { request, result } => {
                    let result = result.map(|answer| self.answered(answer));
                    // A copy comes while other requests are carried out.
                    let beside = self.beside.remove(&request);
                    if !beside && !matches!(&result, Ok(answered) if !answered.state.is_empty()) {
                        self.replied = self.now();
                    }
                    self.log.note(|| format!("{:>9} reply {request}: {}", self.now(), short(&result)));
                    let replied = Replied { at: self.now(), result };
                    assert!(request <= self.requests, "a reply to no request");
                    assert!(self.replies.insert(request, replied).is_none(), "a second reply to request {request}");
                }
                BossEffect::Hangup { worker, reason } => self.boss_hangs_up(Peer::Worker(worker), &reason),
                BossEffect::Dismiss { worker, .. } => {
                    self.leave(worker);
                    self.churn.iter_mut().for_each(|churn| churn.gone.push(worker));
                    self.boss.on_lost(self.network.time(), worker, "it was dismissed");
                }
            }
        }
        assert!(self.boss.poll_timeout().is_none());
    }

    fn drain_worker(&mut self, id: WorkerId) {
        while let Some(effect) = self.workers[id.0 as usize].session.poll_effect() {
            let worker = &mut self.workers[id.0 as usize];
            match effect {
                StageEffect::Send { to, slots } => {
                    let tensors = worker.slots.give_up_all(slots);
                    self.send(Peer::Worker(id), to, tensors);
                }
                StageEffect::Compute { ticket, task } => {
                    let Ok(task) = task.try_map(|slot| Ok::<_, std::convert::Infallible>(worker.slots.give_up(slot)));
                    worker.tasks.push_back((ticket, task));
                    if worker.tasks.len() == 1 {
                        worker.began = self.network.now;
                        self.network.compute(id, &worker.tasks[0].1);
                    }
                }
                StageEffect::Sum { ticket, summing, sums } => {
                    let Summing::Tree(microbatches) = summing else { panic!("{id} compresses: {summing:?}") };
                    let sums = sums.into_iter().map(|(node, slots)| (node, worker.slots.give_up_all(slots)));
                    let sums = sum_slices(microbatches, sums.collect());
                    self.network.sum(id, ticket, sums);
                }
                StageEffect::Data { ticket, task: DataTask::Open(spec) } => {
                    worker.data = Some(spec);
                    self.network.read(id, ticket, Ok(Vec::new()));
                }
                StageEffect::Data { ticket, task: DataTask::Read(reading) } => {
                    let data = worker.data.as_ref().unwrap_or_else(|| panic!("{id} reads data that it has not opened"));
                    let microbatch = (reading.batch[reading.part.start] % 1000) as u32;
                    self.ahead.1 += u64::from(worker.ahead_of_time.contains(&reading));
                    let result = match self.trouble.fail_read(id, microbatch) {
                        Some(failure) => Err(failure),
                        None => Ok(crate::calls::read(data, &reading)),
                    };
                    self.network.read(id, ticket, result);
                }
                StageEffect::ReadAhead(readings) => {
                    let data = worker.data.as_ref().unwrap_or_else(|| panic!("{id} reads data that it has not opened"));
                    readings.iter().for_each(|reading| drop(crate::calls::read(data, reading)));
                    self.ahead.0 += readings.len() as u64;
                    worker.ahead_of_time = readings;
                }
                StageEffect::StoreSnapshot { copy, note, part, tensors } => {
                    let take = |(name, slot)| (name, worker.slots.give_up(slot));
                    worker.kept.put(copy, note, part, tensors.into_iter().map(take).collect());
                }
                StageEffect::SendSnapshot { to, copy, part, name } => {
                    let tensor = worker.kept.get(copy, part, &name);
                    self.send(Peer::Worker(id), to, vec![tensor]);
                }
                StageEffect::RetainSnapshots(copies) => worker.kept.keep_only(&copies),
                StageEffect::Interrupt => self.interrupt(id),
                // Nothing is compressed here, so nothing is lost.
                StageEffect::Residuals(_) => {}
                StageEffect::Dial { peer, .. } => self.network.dial(id, peer),
                StageEffect::Drop(slots) => drop(worker.slots.give_up_all(slots)),
                StageEffect::Finish => (worker.alive, worker.finished) = (false, true),
                StageEffect::Hangup { peer, reason } => self.hang_up(id, peer, &reason),
                StageEffect::Progress(_) => panic!("{id} wants {effect:?}"),
            }
        }
    }

    fn note_weight(&mut self, from: Peer, peer: Peer, route: Option<Route>, head: &Head) {
        let to = match (peer, route) {
            // It passes on what a worker has written.
            (Peer::Worker(_), Some(_)) => return,
            (Peer::Boss, Some(route)) => route.to,
            (Peer::Worker(to), None) if from != peer => to,
            _ => return,
        };
        if let Head::Weight { name, stage, .. } = head {
            self.weights.entry(name.clone()).or_default().push((*stage, from, to));
        }
    }

    fn send(&mut self, from: Peer, to: Vec<Destination>, tensors: Vec<Fake>) {
        for Destination { peer, route, head } in to {
            if from == Peer::Boss && matches!(peer, Peer::Worker(worker) if self.lost.contains(&worker)) {
                assert_eq!(head, Head::Stop, "the boss sends to {peer}, which is lost");
            }
            self.note_weight(from, peer, route, &head);
            let is_data = head.is_data();
            let meta = TensorMeta { dtype: DType::Int64, shape: vec![1] };
            let envelope = Envelope { route, head, tensors: vec![meta; tensors.len()] };
            let head = encode(&envelope).expect("a frame within bounds");
            self.network.send(Packet::new(from, peer, head, tensors.clone()), is_data);
        }
    }
}

/// The sum of each slice over all microbatches, along the tree.
fn sum_slices(microbatches: u32, sums: Vec<(Node, Vec<Fake>)>) -> Vec<Fake> {
    let slices = sums.first().map_or(0, |(_, slices)| slices.len());
    assert!(sums.iter().all(|(_, all)| all.len() == slices));
    let sum = |place: usize| {
        let mut tree = Tree::new(microbatches);
        for (node, slices) in &sums {
            math::branch(&mut tree, *node, Some(slices[place]).filter(|grad| *grad != NOTHING));
        }
        tree.into_root().expect("all microbatches").unwrap_or(NOTHING)
    };
    (0..slices).map(sum).collect()
}

fn hold_all(outcome: Outcome<Fake>, slots: &mut Slots) -> Outcome<Slot> {
    outcome.map(|tensor| slots.hold(tensor))
}

fn short(thing: &impl std::fmt::Debug) -> String {
    format!("{thing:?}").chars().take(180).collect()
}
