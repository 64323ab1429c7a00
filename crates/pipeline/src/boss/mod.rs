//! The session of the boss: takes requests of the user, sends commands to workers, and collects
//! answers.
//!
//! A state machine without I/O, like [`crate::stage`]. It runs one request at a time and queues the
//! others.

mod copies;
mod gathering;
mod members;
mod request;
mod round;

pub use request::{
    has_same_state, speakers, Keeping, MembershipChange, Prepare, Request, RunRequest, Setup, MOST_WAITING,
};

use crate::effect::{Answer, BossEffect, Destination, Frame, Micros, Peer};
use crate::ids::{Slot, WorkerId};
use crate::message::{Command, Failure, Head, LinkReport, Mode};
use gathering::Gathering;
use members::{Follower, Preparing};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The number of cancelled batches to remember.
const REMEMBERED: usize = 256;

/// The boss's session.
pub struct BossSession {
    setup: Setup,
    lost: BTreeMap<WorkerId, String>,
    /// Pairs, the lower number first, that send through the boss.
    relayed: BTreeSet<(WorkerId, WorkerId)>,
    /// Pairs of workers that exchange snapshots. They need no link.
    lends: BTreeSet<(WorkerId, WorkerId)>,
    /// Pairs that the user knows of.
    told: BTreeSet<(WorkerId, WorkerId)>,
    /// Whether every worker has its stages.
    distributed: bool,
    job: Option<Job>,
    waiting: VecDeque<(u64, Request)>,
    next_id: u64,
    /// Batches of cancelled training, whose tensors and gradients are discarded.
    cancelled: BTreeSet<u64>,
    /// Set if a cancellation came too late for some stages: their parameters are a step ahead.
    torn: Option<Torn>,
    /// Whether some workers may have parameters of a load that failed on others.
    half_loaded: bool,
    /// Batches that went forward in training mode and wait for their backward pass.
    outstanding: BTreeSet<u64>,
    links: BTreeMap<(WorkerId, Option<WorkerId>), LinkReport>,
    /// Copied parameters that are still arriving, by command, each with its request.
    copies: BTreeMap<u64, (u64, Gathering)>,
    /// Whether workers may join and leave.
    open: bool,
    /// Whether workers were told to stop, and close their links.
    stopping: bool,
    preparing: BTreeMap<WorkerId, Preparing>,
    followers: BTreeMap<WorkerId, Follower>,
    /// The workers that the current round waits for.
    awaited: BTreeSet<WorkerId>,
    effects: VecDeque<BossEffect>,
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

/// A model with some stages a step ahead. It is consistent again once it is distributed anew, or
/// once parameters are loaded and then the optimizer is sent, whose state is a step ahead, too.
#[derive(Copy, Clone)]
struct Torn {
    step: u64,
    loaded: bool,
}

/// The properties of a request that matter at its end.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Work {
    /// Workers receive their stages.
    Distributing,
    /// Workers receive parameters.
    Loading,
    /// An optimizer with fresh state.
    SettingOptimizer,
    /// A round that may leave gradients, which are void if it fails.
    Training,
    /// The placement of the stages changes.
    MembershipChange,
    /// Workers send parameters, or store snapshots for each other.
    Sending,
    Other,
}

enum Phase {
    /// Workers at work.
    Gathering(Box<Gathering>),
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
            relayed: BTreeSet::new(),
            lends: BTreeSet::new(),
            told: BTreeSet::new(),
            distributed: false,
            job: None,
            waiting: VecDeque::new(),
            next_id: 1,
            cancelled: BTreeSet::new(),
            torn: None,
            half_loaded: false,
            outstanding: BTreeSet::new(),
            links: BTreeMap::new(),
            copies: BTreeMap::new(),
            open: false,
            stopping: false,
            preparing: BTreeMap::new(),
            followers: BTreeMap::new(),
            awaited: BTreeSet::new(),
            effects: VecDeque::new(),
        }
    }

    /// The next effect, until there is none.
    pub fn poll_effect(&mut self) -> Option<BossEffect> {
        self.effects.pop_front()
    }

    /// Never: the boss's own waits all end with an answer or a lost connection.
    pub fn poll_timeout(&self) -> Option<Micros> {
        None
    }

    /// A request of the user. The answer is a [`BossEffect::Reply`] with the same number.
    pub fn on_request(&mut self, now: Micros, number: u64, request: Request) {
        self.waiting.push_back((number, request));
        self.next_request(now);
    }

    /// A worker's connection ended.
    pub fn on_lost(&mut self, now: Micros, worker: WorkerId, reason: &str) {
        if self.lost.insert(worker, reason.to_string()).is_some() {
            return;
        }
        self.lost_apart(worker, reason);
        self.copies_lost(worker, reason);
        // A worker that is told to link with it would wait forever.
        let membership_change = self.job.as_ref().is_some_and(|job| job.work == Work::MembershipChange);
        let matters = self.setup.plan.stage_placement.is_member(worker) || membership_change;
        if matters && !self.goes_on_without(worker) {
            self.fail(self.lost_failure(worker, reason));
        }
        // A lost worker cleans nothing up.
        self.cleared(worker, false);
        self.next_request(now);
    }

    /// A frame arrived from a worker.
    pub fn on_frame(&mut self, now: Micros, from: WorkerId, frame: Frame) {
        let Frame { route, head, slots } = frame;
        if let Some(route) = route {
            if route.from != from || !head.is_data() {
                return self.refuse(from, slots, "sent a frame in another worker's name");
            }
            let relays = self.relays(from, route.to, &head);
            let to = vec![Destination { peer: Peer::Worker(route.to), route: Some(route), head }];
            self.effects.push_back(if relays { BossEffect::Send { to, slots } } else { BossEffect::Drop(slots) });
            return;
        }
        // It was in flight when its worker was given up. A relayed frame has been sent on, because
        // its receiver may wait for it.
        if self.lost.contains_key(&from) {
            return self.drop_slots(slots);
        }
        match head {
            head if self.is_apart(from) && self.of_apart(from, &head) => self.drop_slots(slots),
            Head::Failed { id, failure } => {
                // A worker that was not asked cannot end the request for the others.
                if self.is_active(id) && self.setup.plan.stage_placement.is_member(from) {
                    self.fail(failure.on(from));
                }
            }
            Head::Aborted { id, stepped } => {
                if self.job.as_ref().is_some_and(|job| job.id == id) {
                    self.cleared(from, stepped);
                }
            }
            Head::LinkFailed { peer, reason, was_up } => self.link_failed(from, peer, &reason, was_up),
            Head::LinkReport { peer, report } => {
                if self.alive(from) && peer.is_none_or(|peer| self.alive(peer)) {
                    self.links.insert((from, peer), report.bounded());
                }
            }
            head if self.is_copy(&head) => self.copy_arrives(now, from, head, slots),
            head => self.gather(now, from, head, slots),
        }
        self.finish();
        self.next_request(now);
    }

    /// The last figures of the workers' links.
    pub fn links(&self) -> &BTreeMap<(WorkerId, Option<WorkerId>), LinkReport> {
        &self.links
    }

    fn alive(&self, worker: WorkerId) -> bool {
        (worker.0 as usize) < self.setup.addresses.len() && !self.lost.contains_key(&worker)
    }

    /// The connected workers with stages.
    fn living(&self) -> BTreeSet<WorkerId> {
        self.setup.plan.stage_placement.members().into_iter().filter(|w| self.alive(*w)).collect()
    }

    /// A worker with stages that is not connected.
    fn gone(&self) -> Option<(WorkerId, &String)> {
        let stage_placement = &self.setup.plan.stage_placement;
        self.lost
            .iter()
            .find(|(worker, _)| stage_placement.is_member(**worker))
            .map(|(worker, reason)| (*worker, reason))
    }

    fn is_active(&self, id: u64) -> bool {
        self.job.as_ref().is_some_and(|job| job.id == id && matches!(job.phase, Phase::Gathering(_)))
    }

    /// Starts the next request once the last one is complete. If a worker is missing, fails the
    /// request at once.
    fn next_request(&mut self, now: Micros) {
        while let Some((number, request)) = self.waiting.pop_front() {
            let hopeless = self.gone().is_some() && !request.recovers();
            let beside = matches!(request, Request::Prepare(_));
            if self.job.is_some() && !hopeless && !beside {
                self.waiting.push_front((number, request));
                return;
            }
            if let Err(failure) = self.possible(&request) {
                let slots = request.into_slots();
                self.drop_slots(slots);
                let failure = Failure { refused: true, ..failure };
                self.effects.push_back(BossEffect::Reply { request: number, result: Err(failure) });
                continue;
            }
            self.start(now, number, request);
        }
    }

    fn possible(&self, request: &Request) -> Result<(), Failure> {
        if let (Some((worker, reason)), false) = (self.gone(), request.recovers()) {
            return Err(self.lost_failure(worker, reason));
        }
        if let Request::Prepare(_) | Request::ChangeMembership(_) = request {
            return self.can_change(request);
        }
        if let Request::Use(plan) = request {
            return match plan.workers() == self.setup.plan.workers() {
                true => Ok(()),
                false => Err(Failure::new(format!(
                    "a plan for {} workers; there are {}",
                    plan.workers(),
                    self.setup.plan.workers()
                ))),
            };
        }
        let anytime = matches!(
            request,
            Request::Distribute | Request::SendFiles(_) | Request::Stop | Request::Measure(_) | Request::Links
        );
        if !self.distributed && !anytime {
            return Err(Failure::new("the workers have no layers yet: call distribute_model() first"));
        }
        match (self.torn, request) {
            (Some(Torn { step, .. }), Request::Run(_) | Request::SendState { .. } | Request::Keep(_)) => Err(Failure::new(format!(
                "step {step} failed after some stages had already updated their parameters; load a state_dict and send the \
                 optimizer again to go on"
            ))),
            (None, Request::Run(_) | Request::SendState { .. } | Request::Keep(_)) if self.half_loaded => Err(Failure::new(
                "loading parameters failed on some workers, so they may not belong together: load a state_dict again to go on",
            )),
            (None, Request::Run(run)) if self.cancelled.contains(&run.batch) => Err(Failure::new(
                "this batch was cancelled when an earlier call failed, and its gradients are gone: begin again with \
                 forward()",
            )),
            (_, Request::Run(run)) => {
                round::check(run, &self.setup.plan)?;
                self.check_waiting(run)
            }
            _ => Ok(()),
        }
    }

    /// Limits the batches that wait for their backward pass, because workers store their
    /// activations.
    fn check_waiting(&self, run: &RunRequest) -> Result<(), Failure> {
        let waiting = self.outstanding.len();
        match run.leaves() {
            Some(true) if waiting >= self.setup.most_waiting && !self.outstanding.contains(&run.batch) => {
                Err(Failure::new(format!(
                    "{waiting} batches wait for their backward pass, which is as many as may: call backward() for one \
                     of them, or forget it, before the next forward() in training mode"
                )))
            }
            Some(false) if run.is_backward_only() && !self.outstanding.contains(&run.batch) => Err(Failure::new(
                "no forward pass of this batch waits for a backward pass: call forward() in training mode first",
            )),
            _ => Ok(()),
        }
    }

    fn start(&mut self, now: Micros, number: u64, request: Request) {
        match request {
            Request::Links => {
                let links = self.links.iter().map(|((worker, peer), report)| (*worker, *peer, *report)).collect();
                let result = Ok(Answer { links, ..Answer::default() });
                return self.effects.push_back(BossEffect::Reply { request: number, result });
            }
            Request::Use(plan) => {
                (self.setup.plan, self.distributed) = (*plan, false);
                return self.effects.push_back(BossEffect::Reply { request: number, result: Ok(Answer::default()) });
            }
            Request::Prepare(prepare) => return self.prepare(number, *prepare),
            _ => {}
        }
        let id = self.next_id;
        self.next_id += 1;
        let run = match &request {
            Request::Run(run) => Some((run.batch, run.step)),
            _ => None,
        };
        let work = match &request {
            Request::Distribute => Work::Distributing,
            Request::LoadState { .. } | Request::Restore { .. } => Work::Loading,
            Request::SendState { .. } | Request::Keep(_) => Work::Sending,
            Request::SetOptimizer(_) => Work::SettingOptimizer,
            Request::Run(run) if run.mode == Mode::Train => Work::Training,
            Request::ChangeMembership(_) => Work::MembershipChange,
            _ => Work::Other,
        };
        let leaves = match &request {
            Request::Run(run) => run.leaves(),
            Request::Discard { .. } => Some(false),
            _ => None,
        };
        let batch = match &request {
            Request::Discard { batch } => Some(*batch),
            _ => run.map(|(batch, _)| batch),
        };
        if work == Work::Distributing {
            self.outstanding.clear();
            self.distributed = false;
            self.relayed.clear();
            self.lends.clear();
        }
        let changes = match &request {
            Request::ChangeMembership(membership_change) => self.change_membership(id, membership_change),
            Request::Stop => self.stop(),
            other => self.for_followers(id, other),
        };
        let unanswered = match request {
            Request::Stop => BTreeSet::new(),
            Request::SendState { stage, optimizer } => request::speakers(&self.setup.plan, stage, optimizer),
            Request::OpenData(_) => request::readers(&self.setup.plan),
            Request::MakeIds => request::id_makers(&self.setup.plan).into_keys().collect(),
            _ => self.living(),
        };
        self.lends.extend(request.lends(&self.setup.plan));
        let gathering = Gathering::new(now, unanswered, &request, &self.setup.plan);
        let mut sends = request.sends(id, &self.setup);
        sends.extend(changes);
        self.job = Some(Job {
            id,
            request: number,
            batch,
            step: run.map(|(_, step)| step),
            work,
            phase: Phase::Gathering(Box::new(gathering)),
            leaves,
        });
        self.effects.extend(sends);
        self.finish();
    }

    /// Takes a part of the answer to the current request. Drops parts of a cancelled one.
    fn gather(&mut self, now: Micros, from: WorkerId, head: Head, slots: Vec<Slot>) {
        let Some(Job { id, batch, phase, .. }) = &mut self.job else { return self.stray(from, &head, slots) };
        let id = *id;
        let of_job = match &head {
            Head::Done { id: of, .. } | Head::Norms { id: of, .. } | Head::Measured { id: of, .. } => *of == id,
            Head::State { id: of, .. } | Head::Kept { id: of, .. } | Head::Copies { id: of, .. } => *of == id,
            Head::Digests { id: of, .. } | Head::Health { id: of, .. } | Head::UniqueIds { id: of, .. } => *of == id,
            Head::Output { key, .. } => *batch == Some(key.batch),
            _ => false,
        };
        let (Phase::Gathering(gathering), true) = (phase, of_job) else { return self.stray(from, &head, slots) };
        match gathering.take(now, from, head, &slots) {
            Ok(None) => {}
            Ok(Some(norm)) => {
                let followers: Vec<WorkerId> = self.followers.keys().copied().collect();
                let to = self.living().into_iter().chain(followers).map(|worker| Destination {
                    peer: Peer::Worker(worker),
                    route: None,
                    head: Head::TotalNorm { id, norm },
                });
                self.effects.push_back(BossEffect::Send { to: to.collect(), slots: Vec::new() });
            }
            Err(reason) => self.refuse(from, slots, &reason),
        }
    }

    /// Handles a frame for no current request: it is late, or a violation of the protocol.
    fn stray(&mut self, from: WorkerId, head: &Head, slots: Vec<Slot>) {
        match head {
            Head::Done { .. }
            | Head::Norms { .. }
            | Head::Measured { .. }
            | Head::Digests { .. }
            | Head::UniqueIds { .. }
            | Head::Health { .. }
            | Head::State { .. }
            | Head::Kept { .. }
            | Head::Copies { .. }
            | Head::Output { .. } => {
                self.drop_slots(slots);
            }
            _ => self.refuse(from, slots, "sent what only the boss may send"),
        }
    }

    /// Replies once every worker has answered and every announced tensor has arrived.
    fn finish(&mut self) {
        self.set_aside();
        match &self.job {
            Some(Job { phase: Phase::Gathering(gathering), .. })
                if gathering.is_complete() && self.awaited.is_empty() => {}
            Some(Job { phase: Phase::Aborting { uncleared, stepped }, step, .. }) if uncleared.is_empty() => {
                if *stepped {
                    self.torn = step.map(|step| Torn { step, loaded: false });
                }
                self.job = None;
                return;
            }
            _ => return,
        }
        let Some(Job { request, work, batch, leaves, phase: Phase::Gathering(gathering), .. }) = self.job.take() else {
            return;
        };
        match (batch, leaves) {
            (Some(batch), Some(true)) => drop(self.outstanding.insert(batch)),
            (Some(batch), Some(false)) => drop(self.outstanding.remove(&batch)),
            _ => {}
        }
        self.torn = match (self.torn, work) {
            (Some(torn), Work::Loading) => Some(Torn { loaded: true, ..torn }),
            (Some(Torn { loaded: true, .. }), Work::SettingOptimizer) | (_, Work::Distributing) => None,
            (torn, _) => torn,
        };
        self.half_loaded &= !matches!(work, Work::Loading | Work::Distributing);
        self.distributed |= work == Work::Distributing;
        let answer = Answer { behind: self.behind(), ..gathering.into_answer() };
        self.effects.push_back(BossEffect::Reply { request, result: Ok(answer) });
    }

    /// Ends the current request with an error, on all workers.
    fn fail(&mut self, failure: Failure) {
        let alive = self.living();
        let Some(job) = &mut self.job else { return };
        let Phase::Gathering(gathering) = &mut job.phase else { return };
        let failure = Failure { step: job.step, ..failure };
        let slots = gathering.give_up();
        let abort = Head::Abort { id: job.id, batch: job.batch, gradients: job.work == Work::Training };
        let told = alive.iter().chain(self.followers.keys());
        let to = told.map(|w| Destination { peer: Peer::Worker(*w), route: None, head: abort.clone() });
        let to: Vec<_> = to.collect();
        self.awaited.clear();
        // A failed change has no effect: followers are asked again.
        self.followers.retain(|_, follower| !follower.began_with(job.id));
        self.half_loaded |= job.work == Work::Loading;
        job.phase = Phase::Aborting { uncleared: alive, stepped: false };
        if let Some(batch) = job.batch {
            self.outstanding.remove(&batch);
        }
        self.cancelled.extend(job.batch.filter(|_| job.work == Work::Training));
        if self.cancelled.len() > REMEMBERED {
            self.cancelled.pop_first();
        }
        self.effects.push_back(BossEffect::Send { to, slots: Vec::new() });
        self.effects.push_back(BossEffect::Reply { request: job.request, result: Err(failure) });
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
    fn relays(&self, from: WorkerId, to: WorkerId, head: &Head) -> bool {
        let at_work =
            |worker| self.setup.plan.stage_placement.is_member(worker) || self.followers.contains_key(&worker);
        from != to
            && self.alive(to)
            && at_work(from)
            && at_work(to)
            && (self.relayed.contains(&(from.min(to), from.max(to)))
                || matches!(head, Head::Keeping { .. } | Head::Weight { .. }) && self.lends.contains(&(from, to)))
    }

    fn link_failed(&mut self, from: WorkerId, peer: WorkerId, reason: &str, was_up: bool) {
        if self.stopping {
            return;
        }
        if self.open && was_up {
            return self.link_broke(from, peer, reason);
        }
        // Both ends may report the same failure. The second report was sent before the consequence
        // of the first one arrived there, so nothing more can be lost.
        if !self.alive(peer) || !self.relayed.insert((from.min(peer), from.max(peer))) {
            return;
        }
        let relay = |to, peer| Destination { peer: Peer::Worker(to), route: None, head: Head::UseRelay { peer } };
        let to = vec![relay(from, peer), relay(peer, from)];
        self.effects.push_back(BossEffect::Send { to, slots: Vec::new() });
        // The next distribution of the model would notice the same.
        if self.told.insert((from.min(peer), from.max(peer))) {
            let notice = format!("{from} and {peer} cannot reach each other ({reason}); the boss relays between them");
            self.effects.push_back(BossEffect::Notice(notice));
        }
        if was_up {
            self.copies_broken();
            let message = format!(
                "its direct link to {peer} broke ({reason}) and tensors may be lost; the step is cancelled, the boss \
                 relays from now on, call it again"
            );
            self.fail(Failure { passing: true, ..Failure::new(message).on(from) });
        }
    }

    fn refuse(&mut self, from: WorkerId, slots: Vec<Slot>, reason: &str) {
        self.drop_slots(slots);
        self.effects.push_back(BossEffect::Hangup { worker: from, reason: reason.to_string() });
    }

    fn drop_slots(&mut self, slots: Vec<Slot>) {
        if !slots.is_empty() {
            self.effects.push_back(BossEffect::Drop(slots));
        }
    }
}

/// The head of a command, for one worker.
fn command(worker: WorkerId, id: u64, body: Command) -> Destination {
    Destination { peer: Peer::Worker(worker), route: None, head: Head::Command { id, body } }
}
