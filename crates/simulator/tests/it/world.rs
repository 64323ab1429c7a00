//! The fleet: one boss session, the workers' sessions with their compute threads, and the driver
//! that carries out effects, all on one virtual clock.

#[path = "answers.rs"]
mod answers;
#[path = "fault_injection.rs"]
mod fault_injection;
#[path = "fetches.rs"]
mod fetches;
#[path = "peer_snapshots.rs"]
mod peer_snapshots;
#[path = "progress.rs"]
mod progress;
#[path = "rendezvous.rs"]
mod rendezvous;
#[path = "sending.rs"]
mod sending;
#[path = "slots.rs"]
mod slots;
#[path = "worker.rs"]
mod worker;

use crate::churn::{Change, Churn};
use crate::last_fault::LastFault;
use crate::math::{self, Fake};
use crate::network::{Conditions, Event, Network, Packet};
use crate::params::NOTHING;
use crate::planned_faults::{InjectedFaults, PlannedFault};
use crate::seeds::Log;
use crate::{
    calls::Answered,
    faults::{Faults, Loss, RandomFaults, Trouble},
};
use pipeline::boss::{BossSession, Instruction, IntoRequest, Request, Setup};
use pipeline::effect::{BossEffect, Frame, Message, Peer, StageEffect, Summing, WorkerSpan};
use pipeline::frame::{decode, head_len, Envelope, FrameMessage, TensorEnvelope};
use pipeline::ids::{Slot, StageId, WorkerId};
use pipeline::message::{Failure, NoMessage, ToBoss, ToWorker};
use pipeline::peer_snapshot::PeerSnapshot;
use pipeline::replicas::{BucketBytes, Node, StagePlacement, Tree};
use pipeline::samples::DataTask;
use pipeline::stage::StageSession;
use pipeline::task::Outcome;
use pipeline::Plan;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use testkit::Random;

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
    /// The number of events so far.
    pub events: u64,
    /// The number of commands that each follower still had to run at the last answer.
    pub behind: Vec<(WorkerId, usize)>,
    /// The number of prefetched microbatches, and how many of these were used.
    pub ahead: (u64, u64),
    /// The joins and leaves, if workers may join and leave.
    pub churn: Option<Churn>,
    /// The faults that may happen at any event.
    pub random_faults: RandomFaults,
    /// The faults of given events, and those that have happened.
    planned_faults: BTreeMap<u64, PlannedFault>,
    pub injected: InjectedFaults,
    /// The last fault of the run, if it has one, and the progress since.
    pub last_fault: Option<LastFault>,
    /// The routes of weights that are loaded, by name, each with the stage.
    pub weights: BTreeMap<String, Vec<(StageId, Peer, WorkerId)>>,
    /// The latest reports of workers about their snapshots.
    pub snapshots: Vec<(WorkerId, PeerSnapshot)>,
    /// The workers of each stage, if the membership is fixed.
    stage_placement: StagePlacement,
    /// The number of frames of state that waited until others were taken.
    pub windows_used: u64,
    fetches: Fetches,
    network: Network,
    boss: BossSession,
    workers: Vec<Worker>,
    /// The workers that the boss knows to be lost, if the membership is fixed.
    lost: BTreeSet<WorkerId>,
    requests: u64,
    /// The requests without a reply.
    unanswered: BTreeSet<u64>,
    /// Whether a request failed. Then some workers may have completed its step, and others not.
    has_failed: bool,
    /// The requests that are answered while others run.
    beside: BTreeSet<u64>,
    /// When the last reply came.
    replied: u64,
    replies: BTreeMap<u64, Replied>,
    pub log: Log,
}

use fetches::Fetches;
pub use peer_snapshots::{Kept, LeftWorker};
pub use slots::Slots;
use worker::Worker;

impl World {
    pub fn new(plan: Plan, seed: u64, conditions: Conditions, faults: Faults, log: Log) -> Self {
        let mut random = Random::new(seed);
        // If dials may be refused, some workers cannot be dialled at all.
        let deaf = if conditions.refused > 0 { 20 } else { 0 };
        let address = |n: usize| SocketAddr::from(([127, 0, 0, 1], 1024 + n as u16));
        let addresses =
            (0..plan.workers()).map(|n| (!random.chance(deaf)).then(|| address(n))).collect();
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
            random_faults: RandomFaults::default(),
            planned_faults: BTreeMap::new(),
            injected: InjectedFaults::default(),
            last_fault: None,
            weights: BTreeMap::new(),
            snapshots: Vec::new(),
            stage_placement: plan.stage_placement.clone(),
            windows_used: 0,
            fetches: Fetches::new(seed),
            network: Network::new(conditions, random),
            workers: ahead.iter().map(|ahead| Worker::new(*ahead)).collect(),
            boss: BossSession::new(Setup {
                seed: crate::calls::SEED,
                // So small that models of a few numbers have several buckets.
                buckets: BucketBytes { first: 16, other: 100 },
                addresses,
                ..Setup::new(plan)
            }),
            lost: BTreeSet::new(),
            requests: 0,
            unanswered: BTreeSet::new(),
            has_failed: false,
            beside: BTreeSet::new(),
            replied: 0,
            replies: BTreeMap::new(),
            log,
        }
    }

    pub fn now(&self) -> u64 {
        self.network.now
    }

    /// Hands a request to the boss. Returns the number of the reply.
    pub fn submit(&mut self, request: impl IntoRequest) -> u64 {
        let request = request.into_request();
        self.requests += 1;
        self.log
            .note(|| format!("{:>9} request {}: {}", self.now(), self.requests, short(&request)));
        if matches!(request, Request::Instruct(Instruction::StoreSnapshot(_))) {
            self.beside.insert(self.requests);
        }
        if self.injected.boss_killed {
            return self.requests;
        }
        self.unanswered.insert(self.requests);
        self.boss.on_request(self.network.time(), self.requests, request);
        self.drain_boss();
        self.requests
    }

    /// Checks that no live worker stores a forward pass whose backward pass will not come.
    pub fn assert_clear(&self) {
        for (index, worker) in self.workers.iter().enumerate().filter(|(_, w)| w.alive) {
            assert!(worker.compute.is_clear(), "worker {index} keeps a forward pass");
        }
    }

    /// Checks that every worker was told to stop or is lost, and that no reply was left over.
    pub fn assert_over(&self) {
        assert!(self.workers.iter().all(|w| !w.alive), "a worker was not told to stop");
        assert!(
            self.injected.boss_killed || self.replies.is_empty(),
            "a reply nobody asked for: request {:?}",
            self.replies.keys()
        );
    }

    /// Lets workers join and leave at these events.
    pub fn open(&mut self, churn: Churn) {
        self.boss.open();
        self.churn = Some(churn);
    }

    fn on_event(&mut self, event: Event) {
        let now = self.network.time();
        match event {
            Event::Arrives(packet) => self.on_packet(packet),
            Event::Lost(_) if self.injected.boss_killed => {}
            Event::Lost(worker) => {
                self.log.note(|| format!("{:>9} boss: {worker} is lost", now.0));
                self.injected.given_up.insert(worker);
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
            Event::Taken(..) if self.injected.boss_killed => {}
            Event::Taken(request, worker) => {
                self.boss.on_state_taken(request, worker);
                self.drain_boss();
            }
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
                    let slots = result.map(|read| {
                        read.into_iter().map(|tensor| worker.slots.hold(tensor)).collect()
                    });
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
                    self.log
                        .note(|| format!("{:>9} {at}: link to {peer} is down ({reason})", now.0));
                    let worker = &mut self.workers[at.0 as usize];
                    worker.session.on_link_down(worker.clock(now), peer, reason);
                    self.drain_worker(at);
                }
            }
        }
    }

    pub fn alive(&self, worker: WorkerId) -> bool {
        self.workers[worker.0 as usize].alive
    }

    fn on_packet(&mut self, packet: Packet) {
        let now = self.network.time();
        let (from, to) = (packet.from, packet.to);
        let gone = match to {
            Peer::Worker(worker) => !self.alive(worker),
            Peer::Boss => self.injected.boss_killed,
        };
        if gone || !self.network.delivers(&packet) {
            return self.log.note(|| format!("{:>9} {from} -> {to}: lost", now.0));
        }
        let (prefix, head) = packet.head.split_first_chunk().expect("a length");
        assert_eq!(head_len(*prefix).expect("a good length"), head.len());
        match (from, to) {
            (Peer::Boss, Peer::Worker(to)) => {
                let envelope = self.read::<ToWorker>(from, packet.to, head);
                self.on_worker_envelope(from, to, envelope, packet.tensors);
            }
            (Peer::Worker(_), Peer::Worker(to)) => {
                let Envelope::Tensors(tensors) = self.read::<NoMessage>(from, packet.to, head);
                self.on_worker_envelope(from, to, Envelope::Tensors(tensors), packet.tensors);
            }
            (Peer::Worker(from), Peer::Boss) => {
                match self.read::<ToBoss>(packet.from, to, head) {
                    Envelope::Message(message) => self.boss.on_message(now, from, message),
                    Envelope::Tensors(TensorEnvelope { route, head, tensors }) => {
                        assert_eq!(tensors.len(), packet.tensors.len());
                        let tensors = packet.tensors.into_iter();
                        let slots = tensors.map(|t| self.boss_slots.hold(t)).collect();
                        self.boss.on_frame(now, from, Frame { route, head, slots });
                    }
                }
                self.drain_boss();
            }
            (Peer::Boss, Peer::Boss) => panic!("the boss sends to itself"),
        }
    }

    fn read<M: FrameMessage + std::fmt::Debug>(
        &mut self,
        from: Peer,
        to: Peer,
        head: &[u8],
    ) -> Envelope<M> {
        let envelope = decode(head).expect("what was encoded");
        let now = self.network.time();
        self.log.note(|| format!("{:>9} {from} -> {to}: {}", now.0, short(&envelope)));
        envelope
    }

    fn on_worker_envelope(
        &mut self,
        from: Peer,
        to: WorkerId,
        envelope: Envelope<ToWorker>,
        tensors: Vec<Fake>,
    ) {
        let now = self.network.time();
        let worker = &mut self.workers[to.0 as usize];
        match envelope {
            Envelope::Message(message) => worker.session.on_message(worker.clock(now), message),
            Envelope::Tensors(TensorEnvelope { route, head, tensors: metas }) => {
                assert_eq!(metas.len(), tensors.len());
                let slots = tensors.into_iter().map(|t| worker.slots.hold(t)).collect();
                worker.session.on_frame(worker.clock(now), from, Frame { route, head, slots });
            }
        }
        self.drain_worker(to);
    }

    pub(super) fn drain_boss(&mut self) {
        while let Some(effect) = self.boss.poll_effect() {
            match effect {
                BossEffect::Tell(messages) => {
                    for Message { to, body } in messages {
                        if self.lost.contains(&to) {
                            assert_eq!(body, ToWorker::Stop, "the boss tells {to}, which is lost");
                        }
                        self.note_window(to, &body);
                        self.tell(Peer::Boss, Peer::Worker(to), body);
                    }
                }
                BossEffect::Send { to, slots } => {
                    let tensors = self.boss_slots.give_up_all(slots);
                    self.send(Peer::Boss, to, tensors);
                }
                BossEffect::Drop(slots) => drop(self.boss_slots.give_up_all(slots)),
                BossEffect::StateHeads { request, heads } => self.fetches.begin(request, heads),
                BossEffect::State { request, worker, name, slot } => {
                    let value = self.boss_slots.give_up(slot);
                    self.state_arrives(request, worker, &name, value);
                }
                BossEffect::Notice(notice) => {
                    let is_of = |lost: &WorkerId| notice.workers.contains(lost);
                    assert!(!self.lost.iter().any(is_of), "old news: {notice}");
                    self.notices.push(notice.text);
                }
                BossEffect::Reply { request, result } => {
                    if let Err(failure) = &result {
                        assert_no_mistake(failure);
                    }
                    let result = result.map(|answer| self.answered(request, answer));
                    if result.is_err() {
                        self.has_failed = true;
                        self.fetches.forget(request);
                    }
                    self.unanswered.remove(&request);
                    // A snapshot arrives while other requests run.
                    let beside = self.beside.remove(&request);
                    if !beside && !matches!(&result, Ok(answered) if !answered.state.is_empty()) {
                        self.replied = self.now();
                    }
                    self.log
                        .note(|| format!("{:>9} reply {request}: {}", self.now(), short(&result)));
                    let replied = Replied { at: self.now(), result };
                    assert!(request <= self.requests, "a reply to no request");
                    assert!(
                        self.replies.insert(request, replied).is_none(),
                        "a second reply to request {request}"
                    );
                }
                BossEffect::Hangup { worker, reason } => {
                    self.boss_hangs_up(Peer::Worker(worker), &reason)
                }
                BossEffect::Dismiss { worker, .. } => self.disconnect(worker),
                BossEffect::Leaving(worker) => {
                    self.churn.iter_mut().for_each(|churn| churn.leaving.push(worker));
                }
            }
        }
        assert!(self.boss.poll_timeout().is_none());
        // A tensor that the driver holds and the session does not is lost.
        assert_eq!(self.boss_slots.held().len(), self.boss.held_slots(), "the boss lost tensors");
    }

    fn tell_boss(&mut self, id: WorkerId, message: ToBoss) {
        if let ToBoss::Failed { failure, .. } = &message {
            assert_no_mistake(failure);
        }
        self.tell(Peer::Worker(id), Peer::Boss, message);
    }

    fn drain_worker(&mut self, id: WorkerId) {
        while let Some(effect) = self.workers[id.0 as usize].session.poll_effect() {
            let worker = &mut self.workers[id.0 as usize];
            match effect {
                StageEffect::Tell(message) => self.tell_boss(id, message),
                StageEffect::Send { to, slots } => {
                    let tensors = worker.slots.give_up_all(slots);
                    self.send(Peer::Worker(id), to, tensors);
                }
                StageEffect::Compute { ticket, task } => {
                    let Ok(task) = task.try_map(|slot| {
                        Ok::<_, std::convert::Infallible>(worker.slots.give_up(slot))
                    });
                    worker.tasks.push_back((ticket, task));
                    if worker.tasks.len() == 1 {
                        worker.began = self.network.now;
                        self.network.compute(id, &worker.tasks[0].1);
                    }
                }
                StageEffect::Sum { ticket, summing, sums } => {
                    let Summing::Tree(microbatches) = summing else {
                        panic!("{id} compresses: {summing:?}")
                    };
                    let sums = sums
                        .into_iter()
                        .map(|(node, slots)| (node, worker.slots.give_up_all(slots)));
                    let sums = sum_slices(microbatches, sums.collect());
                    self.network.sum(id, ticket, sums);
                }
                StageEffect::Data { ticket, task: DataTask::Open(spec) } => {
                    worker.data = Some(spec);
                    self.network.read(id, ticket, Ok(Vec::new()));
                }
                StageEffect::Data { ticket, task: DataTask::Read(reading) } => {
                    let data = worker
                        .data
                        .as_ref()
                        .unwrap_or_else(|| panic!("{id} reads data that it has not opened"));
                    let microbatch = (reading.batch[reading.part.start] % 1000) as u32;
                    self.ahead.1 += u64::from(worker.ahead_of_time.contains(&reading));
                    let result = match self.trouble.fail_read(id, microbatch) {
                        Some(failure) => Err(failure),
                        None => Ok(crate::calls::read(data, &reading)),
                    };
                    self.network.read(id, ticket, result);
                }
                StageEffect::ReadAhead(readings) => {
                    let data = worker
                        .data
                        .as_ref()
                        .unwrap_or_else(|| panic!("{id} reads data that it has not opened"));
                    readings.iter().for_each(|reading| drop(crate::calls::read(data, reading)));
                    self.ahead.0 += readings.len() as u64;
                    worker.ahead_of_time = readings;
                }
                StageEffect::StoreSnapshot { snapshot, note, part, tensors } => {
                    let take = |(name, slot)| (name, worker.slots.give_up(slot));
                    worker.kept.put(snapshot, note, part, tensors.into_iter().map(take).collect());
                }
                StageEffect::SendSnapshot { to, snapshot, part, name } => {
                    let tensor = worker.kept.get(snapshot, part, &name);
                    self.send(Peer::Worker(id), to, vec![tensor]);
                }
                StageEffect::RetainSnapshots(snapshots) => worker.kept.keep_only(&snapshots),
                StageEffect::Interrupt => self.interrupt(id),
                // Nothing is compressed here, so nothing is lost.
                StageEffect::Residuals(_) => {}
                // No firewall stands between these workers.
                StageEffect::PunchHole { .. } => {}
                StageEffect::Dial { peer, .. } => self.network.dial(id, peer),
                StageEffect::Drop(slots) => drop(worker.slots.give_up_all(slots)),
                StageEffect::Finish => (worker.alive, worker.finished) = (false, true),
                StageEffect::Hangup { peer, reason } => self.hang_up(id, peer, &reason),
                StageEffect::Leave if worker.told => return self.vanish(id),
                StageEffect::Progress(_) | StageEffect::Leave => {
                    panic!("{id} wants {effect:?}")
                }
            }
        }
        let worker = &self.workers[id.0 as usize];
        assert_eq!(worker.slots.held().len(), worker.session.held_slots(), "{id} lost tensors");
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

/// Fails if a session reports a mistake of its own. A run with faults would take it for an injected
/// failure.
fn assert_no_mistake(failure: &Failure) {
    assert!(!failure.message.ends_with("please report it"), "{failure}");
}

fn hold_all(outcome: Outcome<Fake>, slots: &mut Slots) -> Outcome<Slot> {
    outcome.map(|tensor| slots.hold(tensor))
}

fn short(thing: &impl std::fmt::Debug) -> String {
    format!("{thing:?}").chars().take(180).collect()
}
