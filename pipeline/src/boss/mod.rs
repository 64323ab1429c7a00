//! The session of the boss: requests of the user in, commands to workers out, answers gathered.
//!
//! A state machine without I/O, like [`crate::stage`]. One request is carried out at a time; more
//! wait in line.

mod request;

pub use request::{Request, RunRequest, Setup};

use crate::effect::{Answer, Destination, Effect, Frame, Micros, Peer};
use crate::ids::{Slot, WorkerId};
use crate::message::{Command, Failure, Head, Mode};
use crate::plan::Plan;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;

/// How many cancelled batches are remembered.
const REMEMBERED: usize = 256;

/// The boss's session.
pub struct BossSession {
    plan: Plan,
    seed: u64,
    /// Where each worker accepts direct connections, if it does.
    addresses: Vec<Option<SocketAddr>>,
    lost: BTreeMap<WorkerId, String>,
    /// Pairs, the lower number first, that were told to send by way of the boss.
    relayed: BTreeSet<(WorkerId, WorkerId)>,
    /// Every worker has its stages.
    distributed: bool,
    job: Option<Job>,
    waiting: VecDeque<(u64, Request)>,
    next_id: u64,
    /// Batches of cancelled training, whose tensors and gradients are gone.
    cancelled: BTreeSet<u64>,
    /// A cancelled step came too late for some stages: their parameters are a step ahead.
    torn: Option<Torn>,
    effects: VecDeque<Effect>,
}

/// The request being carried out.
struct Job {
    id: u64,
    request: u64,
    batch: Option<u64>,
    step: Option<u64>,
    work: Work,
    phase: Phase,
}

/// A model of which some stages are a step ahead. It is whole again once it is distributed anew, or
/// parameters are loaded and then the optimizer, whose state is a step ahead too, is sent.
#[derive(Copy, Clone)]
struct Torn {
    step: u64,
    loaded: bool,
}

/// What matters of a request when it ends.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Work {
    /// Workers get their stages.
    Distributing,
    /// Workers get parameters.
    Loading,
    /// An optimizer with fresh state.
    SettingOptimizer,
    /// It may leave gradients, which are void if it fails.
    Training,
    Other,
}

enum Phase {
    /// Workers at work.
    Gathering { unanswered: BTreeSet<WorkerId>, answer: Answer, arrived: u32, announced: u32 },
    /// It failed and the user knows; workers clear up.
    Aborting { uncleared: BTreeSet<WorkerId>, stepped: bool },
}

impl BossSession {
    /// A session over these workers, one for each that the plan has.
    pub fn new(setup: Setup) -> Self {
        BossSession {
            plan: setup.plan,
            seed: setup.seed,
            addresses: setup.addresses,
            lost: BTreeMap::new(),
            relayed: BTreeSet::new(),
            distributed: false,
            job: None,
            waiting: VecDeque::new(),
            next_id: 1,
            cancelled: BTreeSet::new(),
            torn: None,
            effects: VecDeque::new(),
        }
    }

    /// The next thing to do, until there is none.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Never: the boss's own waits all end with an answer or a lost connection.
    pub fn poll_timeout(&self) -> Option<Micros> {
        None
    }

    /// The user wants something. The answer is an [`Effect::Reply`] with the same number.
    pub fn on_request(&mut self, _now: Micros, number: u64, request: Request) {
        self.waiting.push_back((number, request));
        self.next_request();
    }

    /// A worker's connection is gone.
    pub fn on_lost(&mut self, _now: Micros, worker: WorkerId, reason: &str) {
        if self.lost.insert(worker, reason.to_string()).is_some() {
            return;
        }
        self.fail(Failure::new(lost_message(reason)).on(worker));
        // A worker that is gone clears nothing up.
        self.cleared(worker, false);
        self.next_request();
    }

    /// A frame arrived from a worker.
    pub fn on_frame(&mut self, _now: Micros, from: WorkerId, frame: Frame) {
        let Frame { route, head, slots } = frame;
        if let Some(route) = route {
            if route.from != from || !head.is_data() {
                return self.refuse(from, slots, "sent a frame in another worker's name");
            }
            let to = vec![Destination { peer: Peer::Worker(route.to), route: Some(route), head }];
            let alive = self.alive(route.to);
            self.effects.push_back(if alive { Effect::Send { to, slots } } else { Effect::Drop(slots) });
            return;
        }
        match head {
            Head::Done { id, losses, sent } => self.done(from, id, losses, sent),
            Head::Failed { id, failure } => {
                if self.is_active(id) {
                    self.fail(failure.on(from));
                }
            }
            Head::Aborted { id, stepped } => {
                if self.job.as_ref().is_some_and(|job| job.id == id) {
                    self.cleared(from, stepped);
                }
            }
            Head::LinkFailed { peer, reason, was_up } => self.link_failed(from, peer, &reason, was_up),
            Head::Output { key, value } => self.collect(from, slots, |job, answer, slot| {
                let mine = job.batch == Some(key.batch);
                mine.then(|| answer.outputs.push((key.index, value, slot)))
            }),
            Head::State { id, name } => self.collect(from, slots, |job, answer, slot| {
                (job.id == id).then(|| answer.state.push((name.clone(), slot)))
            }),
            _ => self.refuse(from, slots, "sent what only the boss may send"),
        }
        self.finish();
        self.next_request();
    }

    fn alive(&self, worker: WorkerId) -> bool {
        (worker.0 as usize) < self.plan.workers() && !self.lost.contains_key(&worker)
    }

    fn living(&self) -> BTreeSet<WorkerId> {
        (0..self.plan.workers() as u16).map(WorkerId).filter(|w| self.alive(*w)).collect()
    }

    fn is_active(&self, id: u64) -> bool {
        self.job.as_ref().is_some_and(|job| job.id == id && matches!(job.phase, Phase::Gathering { .. }))
    }

    /// Starts the next request in line once the last one is through. Without all workers nothing can
    /// be carried out, and nobody waits to be told so.
    fn next_request(&mut self) {
        while let Some((number, request)) = self.waiting.pop_front() {
            let hopeless = !self.lost.is_empty() && !matches!(request, Request::Stop);
            if self.job.is_some() && !hopeless {
                self.waiting.push_front((number, request));
                return;
            }
            if let Err(failure) = self.possible(&request) {
                let slots = request.into_slots();
                self.drop_slots(slots);
                self.effects.push_back(Effect::Reply { request: number, result: Err(failure) });
                continue;
            }
            self.start(number, request);
        }
    }

    fn possible(&self, request: &Request) -> Result<(), Failure> {
        if let (Some((worker, reason)), false) = (self.lost.first_key_value(), matches!(request, Request::Stop)) {
            return Err(Failure::new(lost_message(reason)).on(*worker));
        }
        if !self.distributed && !matches!(request, Request::Distribute | Request::Stop) {
            return Err(Failure::new("the workers have no layers yet: call distribute_model() first"));
        }
        match (self.torn, request) {
            (Some(Torn { step, .. }), Request::Run(_) | Request::SendState) => Err(Failure::new(format!(
                "step {step} failed after some stages had already updated their parameters; load a state_dict and send the \
                 optimizer again to go on"
            ))),
            (None, Request::Run(run)) if self.cancelled.contains(&run.batch) => Err(Failure::new(
                "this batch was cancelled when an earlier call failed, and its gradients are gone: begin again with \
                 forward()",
            )),
            _ => Ok(()),
        }
    }

    fn start(&mut self, number: u64, request: Request) {
        let id = self.next_id;
        self.next_id += 1;
        let run = match &request {
            Request::Run(run) => Some((run.batch, run.step)),
            _ => None,
        };
        let work = match &request {
            Request::Distribute => Work::Distributing,
            Request::LoadState(_) => Work::Loading,
            Request::SetOptimizer(_) => Work::SettingOptimizer,
            Request::Run(run) if run.mode == Mode::Train => Work::Training,
            _ => Work::Other,
        };
        if work == Work::Distributing {
            self.distributed = false;
            self.relayed.clear();
        }
        let unanswered = if matches!(request, Request::Stop) { BTreeSet::new() } else { self.living() };
        let sends = request.sends(id, &self.plan, self.seed, &self.addresses);
        self.job = Some(Job {
            id,
            request: number,
            batch: run.map(|(batch, _)| batch),
            step: run.map(|(_, step)| step),
            work,
            phase: Phase::Gathering { unanswered, answer: Answer::default(), arrived: 0, announced: 0 },
        });
        self.effects.extend(sends);
        self.finish();
    }

    fn done(&mut self, from: WorkerId, id: u64, losses: Vec<(u32, f32)>, sent: u32) {
        if !self.is_active(id) {
            return;
        }
        if let Some(Job { phase: Phase::Gathering { unanswered, answer, announced, .. }, .. }) = &mut self.job {
            if unanswered.remove(&from) {
                answer.losses.extend(losses);
                *announced = announced.saturating_add(sent);
            }
        }
    }

    /// A tensor for the answer of the request at work; one for a cancelled request is let go.
    fn collect(
        &mut self,
        from: WorkerId,
        slots: Vec<Slot>,
        put: impl FnOnce(&JobName, &mut Answer, Slot) -> Option<()>,
    ) {
        let [slot] = slots.as_slice() else {
            return self.refuse(from, slots, "sent an answer without its tensor");
        };
        if let Some(Job { id, batch, phase: Phase::Gathering { answer, arrived, .. }, .. }) = &mut self.job {
            if put(&JobName { id: *id, batch: *batch }, answer, *slot).is_some() {
                *arrived = arrived.saturating_add(1);
                return;
            }
        }
        self.drop_slots(slots);
    }

    /// Replies once every worker has answered and every announced tensor is here.
    fn finish(&mut self) {
        match &self.job {
            Some(Job { phase: Phase::Gathering { unanswered, arrived, announced, .. }, .. })
                if unanswered.is_empty() && arrived == announced => {}
            Some(Job { phase: Phase::Aborting { uncleared, stepped }, step, .. }) if uncleared.is_empty() => {
                if *stepped {
                    self.torn = step.map(|step| Torn { step, loaded: false });
                }
                self.job = None;
                return;
            }
            _ => return,
        }
        let Some(Job { request, work, phase: Phase::Gathering { mut answer, .. }, .. }) = self.job.take() else {
            return;
        };
        self.torn = match (self.torn, work) {
            (Some(torn), Work::Loading) => Some(Torn { loaded: true, ..torn }),
            (Some(Torn { loaded: true, .. }), Work::SettingOptimizer) | (_, Work::Distributing) => None,
            (torn, _) => torn,
        };
        self.distributed |= work == Work::Distributing;
        answer.losses.sort_by_key(|(microbatch, _)| *microbatch);
        answer.outputs.sort_by_key(|(microbatch, value, _)| (*microbatch, *value));
        self.effects.push_back(Effect::Reply { request, result: Ok(answer) });
    }

    /// Ends the request at work with an error, everywhere.
    fn fail(&mut self, failure: Failure) {
        let alive = self.living();
        let Some(job) = &mut self.job else { return };
        let Phase::Gathering { answer, .. } = &mut job.phase else { return };
        let failure = Failure { step: job.step, ..failure };
        let slots = answer.outputs.drain(..).map(|(.., slot)| slot).chain(answer.state.drain(..).map(|(_, s)| s));
        let slots: Vec<_> = slots.collect();
        let abort = Head::Abort { id: job.id, batch: job.batch, gradients: job.work == Work::Training };
        let to = alive.iter().map(|w| Destination { peer: Peer::Worker(*w), route: None, head: abort.clone() });
        let to: Vec<_> = to.collect();
        job.phase = Phase::Aborting { uncleared: alive, stepped: false };
        self.cancelled.extend(job.batch.filter(|_| job.work == Work::Training));
        if self.cancelled.len() > REMEMBERED {
            self.cancelled.pop_first();
        }
        self.effects.push_back(Effect::Send { to, slots: Vec::new() });
        self.effects.push_back(Effect::Reply { request: job.request, result: Err(failure) });
        self.drop_slots(slots);
        self.finish();
    }

    fn cleared(&mut self, worker: WorkerId, late: bool) {
        if let Some(Job { phase: Phase::Aborting { uncleared, stepped }, .. }) = &mut self.job {
            uncleared.remove(&worker);
            *stepped |= late;
        }
        self.finish();
    }

    fn link_failed(&mut self, from: WorkerId, peer: WorkerId, reason: &str, was_up: bool) {
        // Both ends may report the same; the second report was sent before the first one's consequence
        // arrived there, so nothing more can be lost.
        if !self.alive(peer) || !self.relayed.insert((from.min(peer), from.max(peer))) {
            return;
        }
        let relay = |to, peer| Destination { peer: Peer::Worker(to), route: None, head: Head::UseRelay { peer } };
        let to = vec![relay(from, peer), relay(peer, from)];
        self.effects.push_back(Effect::Send { to, slots: Vec::new() });
        let notice = format!("{from} and {peer} cannot reach each other ({reason}); the boss relays between them");
        self.effects.push_back(Effect::Notice(notice));
        if was_up {
            let message = format!(
                "its direct link to {peer} broke ({reason}) and tensors may be lost; the step is cancelled, the boss \
                 relays from now on, call it again"
            );
            self.fail(Failure::new(message).on(from));
        }
    }

    fn refuse(&mut self, from: WorkerId, slots: Vec<Slot>, reason: &str) {
        self.drop_slots(slots);
        self.effects.push_back(Effect::Hangup { peer: Peer::Worker(from), reason: reason.to_string() });
    }

    fn drop_slots(&mut self, slots: Vec<Slot>) {
        if !slots.is_empty() {
            self.effects.push_back(Effect::Drop(slots));
        }
    }
}

/// What tells whether a tensor belongs to the request at work.
struct JobName {
    id: u64,
    batch: Option<u64>,
}

fn lost_message(reason: &str) -> String {
    format!("lost ({reason}); its layers and their state are gone, start the run again")
}

/// The head of a command, for one worker.
fn command(worker: WorkerId, id: u64, body: Command) -> Destination {
    Destination { peer: Peer::Worker(worker), route: None, head: Head::Command { id, body } }
}
