//! The session of the boss: takes requests of the user, sends commands to workers, and collects
//! answers.
//!
//! A state machine without I/O, like [`crate::stage`]. It runs one request at a time and queues the
//! others.

pub(crate) mod answer;
mod background;
mod collector;
mod commands;
mod conservation;
mod links;
mod members;
mod model_state;
mod outbox;
mod request;
mod round;
mod round_frames;
mod snapshot_request;
mod work;

pub use answer::{Answer, IntoRequest, RoundResults};
pub use request::{
    Digest, Instruction, ListSnapshots, MakeIds, Measure, MembershipChange, Prepare, ReportLinks,
    Request, RunRequest, SendState, Setup, MAX_PENDING_BATCHES,
};
pub use snapshot_request::SnapshotRequest;

use crate::effect::{BossEffect, BossNotice, Destination, Frame, Message, Micros, Peer};
use crate::failure::bounded;
use crate::ids::{Slot, WorkerId};
use crate::message::{Failure, LinkReport, TensorHead, ToBoss, ToWorker};
use crate::peer_snapshot::state_senders;
use collector::Collector;
use links::Links;
use members::{Follower, Preparing};
use model_state::ModelState;
use outbox::Outbox;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use work::Work;

/// The boss's session.
pub struct BossSession {
    setup: Setup,
    lost: BTreeMap<WorkerId, String>,
    job: Option<Job>,
    waiting: VecDeque<(u64, Request)>,
    next_id: u64,
    links: Links,
    model: ModelState,
    /// Copied parameters that are still arriving, by command, each with its request.
    background: BTreeMap<u64, (u64, Collector)>,
    /// Whether workers may join and leave.
    admits_workers: bool,
    /// Whether workers were told to stop, and close their links.
    stopping: bool,
    preparing: BTreeMap<WorkerId, Preparing>,
    /// The link between two members of a pool that broke. Nothing runs over it until workers are
    /// told their members again, and open their links anew.
    broken_link: Option<Failure>,
    followers: BTreeMap<WorkerId, Follower>,
    /// The workers that the current round waits for.
    awaited_followers: BTreeSet<WorkerId>,
    /// The workers that were told to leave, and wait for the end of the request, or for another
    /// worker that has their stage.
    leaving: BTreeSet<WorkerId>,
    outbox: Outbox,
}

/// The current request.
struct Job {
    id: u64,
    request: u64,
    batch: Option<u64>,
    step: Option<u64>,
    work: Work,
    phase: Phase,
    /// Whether the batch waits for its backward pass after this request. `None` leaves that
    /// unchanged.
    leaves: Option<bool>,
}

enum Phase {
    /// Workers at work.
    Collecting(Box<Collector>),
    /// The request failed and the user knows. Workers clean up.
    Aborting { uncleared: BTreeSet<WorkerId>, stepped: bool },
}

impl BossSession {
    /// A session over the workers of the plan.
    pub fn new(mut setup: Setup) -> Self {
        let known = setup.addresses.len().max(setup.plan.workers());
        setup.addresses.resize(known, None);
        BossSession {
            setup,
            lost: BTreeMap::new(),
            job: None,
            waiting: VecDeque::new(),
            next_id: 1,
            links: Links::default(),
            model: ModelState::default(),
            background: BTreeMap::new(),
            admits_workers: false,
            stopping: false,
            preparing: BTreeMap::new(),
            broken_link: None,
            followers: BTreeMap::new(),
            awaited_followers: BTreeSet::new(),
            leaving: BTreeSet::new(),
            outbox: Outbox::default(),
        }
    }

    /// Removes the next effect, if any.
    pub fn poll_effect(&mut self) -> Option<BossEffect> {
        self.outbox.pop()
    }

    /// Always `None`: every wait of the boss ends with an answer or a lost connection.
    pub fn poll_timeout(&self) -> Option<Micros> {
        None
    }

    /// A request of the user. The answer is a [`BossEffect::Reply`] with the same number.
    pub fn on_request(&mut self, now: Micros, number: u64, request: Request) {
        self.outbox.take(request.slot_count());
        self.waiting.push_back((number, request));
        self.next_request(now);
    }

    /// A worker's connection ended.
    pub fn on_lost(&mut self, now: Micros, worker: WorkerId, reason: &str) {
        // The first reason is the cause. A later one only says that the connection is closed.
        if self.lost.contains_key(&worker) {
            return;
        }
        self.lost.insert(worker, reason.to_string());
        self.leaving.remove(&worker);
        self.on_joining_lost(worker, reason);
        self.background_lost(worker, reason);
        // A worker that is told to link with it would wait forever.
        let membership_change =
            self.job.as_ref().is_some_and(|job| job.work == Work::MembershipChange);
        let matters = self.setup.plan.stage_placement.is_member(worker) || membership_change;
        if matters && !self.continues_without(worker) {
            self.fail(self.lost_failure(worker, reason));
        }
        // A lost worker cleans nothing up.
        self.cleared(worker, false);
        self.next_request(now);
    }

    /// A message arrived from a worker.
    pub fn on_message(&mut self, now: Micros, from: WorkerId, message: ToBoss) {
        // It was in flight when its worker was given up.
        if self.lost.contains_key(&from) {
            return;
        }
        match message {
            message if self.is_joining(from) && self.on_joining_message(from, &message) => {}
            ToBoss::Failed { id, failure } => {
                let failure = failure.bounded();
                // A worker that was not asked cannot end the request for the others.
                if self.is_active(id) && self.setup.plan.stage_placement.is_member(from) {
                    self.fail(failure.on(from));
                } else {
                    self.background_failed(id, from, failure);
                }
            }
            ToBoss::Aborted { id, stepped } => {
                if self.job.as_ref().is_some_and(|job| job.id == id) {
                    self.cleared(from, stepped);
                }
            }
            ToBoss::LinkFailed { peer, reason, was_up } => {
                self.link_failed(from, peer, &bounded(reason), was_up)
            }
            ToBoss::Leaving => self.on_leaving(from),
            ToBoss::LinkReport { peer, report } => {
                if self.alive(from) && peer.is_none_or(|peer| self.alive(peer)) {
                    self.links.reports.insert((from, peer), report.bounded());
                }
            }
            ToBoss::SnapshotStored { id, part } if self.background.contains_key(&id) => {
                self.take_background(id, from, Vec::new(), |collector, _| {
                    collector.take_stored_part(from, part)
                });
            }
            message => self.collect(now, from, message),
        }
        self.finish();
        self.next_request(now);
    }

    /// A frame with tensors arrived from a worker.
    pub fn on_frame(&mut self, now: Micros, from: WorkerId, frame: Frame) {
        let Frame { route, head, slots } = frame;
        self.outbox.take(slots.len());
        if let Some(route) = route {
            if route.from != from {
                return self.refuse(from, slots, "sent a frame in another worker's name");
            }
            let relays = self.relays(from, route.to, &head);
            let to = vec![Destination { peer: Peer::Worker(route.to), route: Some(route), head }];
            self.outbox.push(if relays {
                BossEffect::Send { to, slots }
            } else {
                BossEffect::Drop(slots)
            });
            return;
        }
        // It was in flight when its worker was given up. A relayed frame has been sent on, because
        // its receiver may wait for it.
        if self.lost.contains_key(&from) {
            return self.drop_slots(slots);
        }
        match head {
            TensorHead::State { id, name } if self.background.contains_key(&id) => {
                self.take_background(id, from, slots, |collector, slots| {
                    collector.take_state(from, name, slots)
                });
            }
            TensorHead::State { id, name } => {
                let id = Some(id);
                self.collect_tensor(from, slots, id, |collector, slots| {
                    collector.take_state(from, name, slots)
                });
            }
            TensorHead::Output { key, value } => {
                let id = self.job.as_ref().filter(|job| job.batch == Some(key.batch));
                let id = id.map(|job| job.id);
                self.collect_tensor(from, slots, id, |collector, slots| {
                    collector.take_output(from, key.index, value, slots)
                });
            }
            _ => self.refuse(from, slots, "sent the boss tensors for a worker"),
        }
        self.finish();
        self.next_request(now);
    }

    /// The last figures of the workers' links.
    pub fn links(&self) -> &BTreeMap<(WorkerId, Option<WorkerId>), LinkReport> {
        &self.links.reports
    }

    fn alive(&self, worker: WorkerId) -> bool {
        (worker.0 as usize) < self.setup.addresses.len() && !self.lost.contains_key(&worker)
    }

    /// The connected workers with stages.
    fn living(&self) -> BTreeSet<WorkerId> {
        self.setup.plan.stage_placement.members().into_iter().filter(|w| self.alive(*w)).collect()
    }

    /// A worker with stages that is not connected.
    fn lost_member(&self) -> Option<(WorkerId, &String)> {
        let stage_placement = &self.setup.plan.stage_placement;
        self.lost
            .iter()
            .find(|(worker, _)| stage_placement.is_member(**worker))
            .map(|(worker, reason)| (*worker, reason))
    }

    fn is_active(&self, id: u64) -> bool {
        self.job
            .as_ref()
            .is_some_and(|job| job.id == id && matches!(job.phase, Phase::Collecting(_)))
    }

    /// Starts the next request once the last one is complete. If a worker is missing, fails the
    /// request at once.
    fn next_request(&mut self, now: Micros) {
        self.release_leaving(now);
        while let Some((number, request)) = self.waiting.pop_front() {
            let hopeless = self.lost_member().is_some() && !request.recovers();
            let beside = matches!(request, Request::Instruct(Instruction::Prepare(_)));
            if self.job.is_some() && !hopeless && !beside {
                self.waiting.push_front((number, request));
                return;
            }
            if let Err(failure) = self.possible(&request) {
                let slots = request.into_slots();
                self.drop_slots(slots);
                let result = Err(failure.before_start());
                self.outbox.push(BossEffect::Reply { request: number, result });
                continue;
            }
            self.start(now, number, request);
        }
    }

    fn possible(&self, request: &Request) -> Result<(), Failure> {
        if let (Some((worker, reason)), false) = (self.lost_member(), request.recovers()) {
            return Err(self.lost_failure(worker, reason));
        }
        if let Request::Instruct(Instruction::Prepare(_)) | Request::ChangeMembership(_) = request {
            return self.can_change(request);
        }
        if let Request::Instruct(Instruction::Use(plan)) = request {
            return match plan.workers() == self.setup.plan.workers() {
                true => Ok(()),
                false => Err(Failure::new(format!(
                    "a plan for {} workers; there are {}",
                    plan.workers(),
                    self.setup.plan.workers()
                ))),
            };
        }
        self.model.check(request)?;
        match request {
            Request::Run(run) => {
                if let Some(failure) = &self.broken_link {
                    return Err(Failure { step: Some(run.step), ..failure.clone() });
                }
                round::check(run, &self.setup.plan)?;
                self.model.check_pending(run, self.setup.max_pending_batches)
            }
            _ => Ok(()),
        }
    }

    fn start(&mut self, now: Micros, number: u64, request: Request) {
        match request {
            Request::ReportLinks(_) => {
                let links = self.links.reports.iter();
                let links = links.map(|((worker, peer), report)| (*worker, *peer, *report));
                self.reply(number, Answer::ReportLinks(links.collect()));
            }
            Request::Instruct(Instruction::Use(plan)) => {
                (self.setup.plan, self.model.distributed) = (*plan, false);
                self.reply(number, Answer::Instruct(()));
            }
            Request::Instruct(Instruction::Prepare(prepare)) => self.prepare(number, *prepare),
            request => self.start_job(now, number, request),
        }
    }

    fn reply(&mut self, request: u64, answer: Answer) {
        self.outbox.push(BossEffect::Reply { request, result: Ok(answer) });
    }

    /// Sends the commands of a request to workers, and collects their answers.
    fn start_job(&mut self, now: Micros, number: u64, request: Request) {
        let id = self.next_id;
        self.next_id += 1;
        let work = Work::of(&request);
        let (batch, step, leaves) = match &request {
            Request::Run(run) => (Some(run.batch), Some(run.step), run.leaves()),
            Request::Instruct(Instruction::Discard { batch }) => (Some(*batch), None, Some(false)),
            _ => (None, None, None),
        };
        if work == Work::Distributing {
            self.model.distribute();
            self.links.restart();
        }
        let changes = match &request {
            Request::ChangeMembership(membership_change) => {
                self.change_membership(id, membership_change)
            }
            Request::Instruct(Instruction::Stop) => self.stop(),
            other => self.for_followers(id, other),
        };
        let unanswered = match request {
            Request::Instruct(Instruction::Stop) => BTreeSet::new(),
            Request::SendState(SendState { stage, optimizer, .. }) => {
                state_senders(&self.setup.plan, stage, optimizer)
            }
            Request::Instruct(Instruction::OpenData(_)) => commands::readers(&self.setup.plan),
            Request::MakeIds(_) => commands::id_makers(&self.setup.plan).into_keys().collect(),
            _ => self.living(),
        };
        self.links.allow_snapshots(request.snapshot_routes(&self.setup.plan));
        let collector = Collector::new(now, unanswered, &request, &self.setup.plan);
        let mut sends = commands::commands(request, id, &self.setup);
        sends.extend(changes);
        let phase = Phase::Collecting(Box::new(collector));
        self.job = Some(Job { id, request: number, batch, step, work, phase, leaves });
        self.outbox.extend(sends);
        self.finish();
    }

    /// The collector of the current request, if it has this number and is not cancelled.
    fn collector(&mut self, id: Option<u64>) -> Option<&mut Collector> {
        match &mut self.job {
            Some(Job { id: current, phase: Phase::Collecting(collector), .. })
                if Some(*current) == id =>
            {
                Some(collector)
            }
            _ => None,
        }
    }

    /// Takes a part of the answer to the current request. Ignores parts of a cancelled one.
    fn collect(&mut self, now: Micros, from: WorkerId, message: ToBoss) {
        let Some(collector) = self.collector(message.command()) else { return };
        match collector.take(now, from, message) {
            Ok(None) => {}
            Ok(Some(norm)) => {
                let Some(id) = self.job.as_ref().map(|job| job.id) else { return };
                let followers: Vec<WorkerId> = self.followers.keys().copied().collect();
                let to = self.living().into_iter().chain(followers);
                let to = to.map(|to| Message { to, body: ToWorker::TotalNorm { id, norm } });
                self.outbox.push(BossEffect::Tell(to.collect()));
            }
            Err(reason) => self.refuse(from, Vec::new(), &reason),
        }
    }

    /// Takes a tensor of the answer to the current request. Drops tensors of a cancelled one.
    fn collect_tensor(
        &mut self,
        from: WorkerId,
        slots: Vec<Slot>,
        id: Option<u64>,
        take: impl FnOnce(&mut Collector, &[Slot]) -> Result<(), String>,
    ) {
        let Some(collector) = self.collector(id) else { return self.drop_slots(slots) };
        if let Err(reason) = take(collector, &slots) {
            self.refuse(from, slots, &reason);
        }
    }

    /// Hands out state that arrived. Replies once every worker has answered and every announced
    /// tensor has arrived.
    fn finish(&mut self) {
        if let Some(Job { request, phase: Phase::Collecting(collector), .. }) = &mut self.job {
            let arrived = collector.hand_out_state(*request);
            self.outbox.extend(arrived);
        }
        self.move_to_background();
        match &self.job {
            Some(Job { phase: Phase::Collecting(collector), .. })
                if collector.is_complete() && self.awaited_followers.is_empty() => {}
            Some(Job { phase: Phase::Aborting { uncleared, stepped }, step, .. })
                if uncleared.is_empty() =>
            {
                if *stepped {
                    self.model.updated_in_part(*step);
                }
                self.job = None;
                return;
            }
            _ => return,
        }
        // Before anything counts as done: then the step can be repeated.
        if let Err(failure) = self.settle_slots() {
            return self.fail(failure);
        }
        let Some(Job { request, work, batch, leaves, phase: Phase::Collecting(collector), .. }) =
            self.job.take()
        else {
            return;
        };
        self.model.succeeded(work, batch, leaves);
        self.reply(request, collector.into_answer(self.behind()));
    }

    /// Ends the current request with an error, on all workers.
    fn fail(&mut self, failure: Failure) {
        let alive = self.living();
        let Some(job) = &mut self.job else { return };
        let Phase::Collecting(collector) = &mut job.phase else { return };
        let failure = Failure { step: job.step, ..failure };
        let slots = collector.take_slots();
        let body =
            ToWorker::Abort { id: job.id, batch: job.batch, gradients: job.work == Work::Training };
        let receivers = alive.iter().chain(self.followers.keys());
        let to = receivers.map(|to| Message { to: *to, body: body.clone() }).collect();
        self.awaited_followers.clear();
        // A failed change has no effect: followers are asked again.
        self.followers.retain(|_, follower| !follower.started_with(job.id));
        self.model.failed(job.work, job.batch);
        job.phase = Phase::Aborting { uncleared: alive, stepped: false };
        self.outbox.push(BossEffect::Tell(to));
        self.outbox.push(BossEffect::Reply { request: job.request, result: Err(failure) });
        self.drop_slots(slots);
        self.finish();
    }

    fn cleared(&mut self, worker: WorkerId, late: bool) {
        if let Some(Job { phase: Phase::Aborting { uncleared, stepped }, .. }) = &mut self.job {
            // From other workers it has no meaning.
            *stepped |= uncleared.remove(&worker) && late;
        }
        self.finish();
    }

    /// Whether the boss relays frames of this worker to that one: both take part, and were told to
    /// use the relay or to exchange snapshots. Unrequested frames could fill the boss's memory, for
    /// example if the receiver does not read.
    fn relays(&self, from: WorkerId, to: WorkerId, head: &TensorHead) -> bool {
        let at_work = |worker| {
            self.setup.plan.stage_placement.is_member(worker)
                || self.followers.contains_key(&worker)
        };
        from != to
            && self.alive(to)
            && at_work(from)
            && at_work(to)
            && self.links.allows(from, to, head)
    }

    fn link_failed(&mut self, from: WorkerId, peer: WorkerId, reason: &str, was_up: bool) {
        if self.stopping {
            return;
        }
        if self.admits_workers && was_up {
            return self.link_broke(from, peer, reason);
        }
        // Both ends may report the same failure. The second report was sent before the consequence
        // of the first one arrived there, so nothing more can be lost.
        if !self.alive(peer) || !self.links.relay(from, peer) {
            return;
        }
        let relay = |to, peer| Message { to, body: ToWorker::UseRelay { peer } };
        let to = vec![relay(from, peer), relay(peer, from)];
        self.outbox.push(BossEffect::Tell(to));
        if self.links.is_news(from, peer) {
            let text = format!(
                "{from} and {peer} cannot reach each other ({reason}); the boss relays between \
                 them"
            );
            let workers = vec![from, peer];
            self.outbox.push(BossEffect::Notice(BossNotice { text, workers }));
        }
        if was_up {
            self.snapshots_lost();
            let message = format!(
                "its direct link to {peer} broke ({reason}) and tensors may be lost; the step is \
                 cancelled, the boss relays from now on, call it again"
            );
            self.fail(Failure::lost(message).on(from));
        }
    }

    fn refuse(&mut self, from: WorkerId, slots: Vec<Slot>, reason: &str) {
        self.drop_slots(slots);
        self.outbox.push(BossEffect::Hangup { worker: from, reason: reason.to_string() });
    }

    fn drop_slots(&mut self, slots: Vec<Slot>) {
        if !slots.is_empty() {
            self.outbox.push(BossEffect::Drop(slots));
        }
    }
}
