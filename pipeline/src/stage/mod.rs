//! The session of a worker: what it has been told, what has arrived, what it does next.
//!
//! A state machine without I/O. Call `on_*` when something happened, then `poll_effect` until it is
//! empty, and `on_timeout` at the latest at the time `poll_timeout` names.

mod inbox;
mod links;
mod needs;
mod reducing;
mod results;
mod round;

use crate::effect::{Destination, Effect, Frame, Micros, Peer, Residuals};
use crate::ids::{MicrobatchKey, Slot, StageId, Ticket, WorkerId};
use crate::message::{Assignment, Command, Failure, Head, LinkReport, Round, Span, MAX_MICROBATCHES};
use crate::plan::StageSpec;
use crate::replicas::Homes;
use crate::schedule::{Action, Order};
use crate::task::{LayerTimes, Outcome, Task};
use inbox::{Inbox, Item};
use links::Links;
use reducing::{Asked, Team};
use round::Running;
use std::collections::{BTreeMap, VecDeque};

/// Tasks given to the compute thread at a time: one at work and one waiting, so that it never idles
/// for want of a message, and an abort never waits for more than these. Where the order is free, the waiting one is
/// chosen early only if nothing that is still to come would go before it: then what runs is what would have been chosen
/// at the last moment.
const LOOKAHEAD: usize = 2;

/// A worker's session.
#[derive(Default)]
pub struct StageSession {
    worker: Option<WorkerId>,
    stages: Vec<StageSpec>,
    homes: Homes,
    /// Those of the stages that other workers have, too.
    teams: BTreeMap<StageId, Team>,
    links: Links,
    inbox: Inbox,
    job: Option<Job>,
    tasks: BTreeMap<Ticket, Purpose>,
    /// Sums that are being taken beside the compute thread.
    sums: BTreeMap<Ticket, Asked>,
    next_ticket: u64,
    /// Tensors to load, which may arrive before the command that wants them.
    loads: BTreeMap<u64, Vec<(String, Slot)>>,
    /// The newest command that was answered; what still arrives for it is of no use.
    answered: u64,
    /// The command whose parameters were updated last, for an abort that comes too late.
    stepped: Option<u64>,
    /// When something happened last, and when the command at work arrived.
    now: Micros,
    received: Micros,
    effects: VecDeque<Effect>,
}

/// The command being carried out.
enum Job {
    /// An assignment: its stages are being built and its links opened.
    Assign {
        id: u64,
        built: bool,
    },
    Round(Box<Running>),
    /// A load whose tensors are coming, and the task that takes them.
    Load {
        id: u64,
        expected: usize,
        what: fn(Vec<(String, Slot)>) -> Task<Slot>,
    },
    /// A measurement: of layers, which is one task, and of the links that are being measured.
    Measure {
        id: u64,
        times: Option<Vec<LayerTimes>>,
    },
    /// Anything that is one task.
    Task {
        id: u64,
    },
    /// A cancelled command whose remains are being cleared.
    Abort,
}

impl Job {
    /// The command, if it is not cancelled.
    fn id(&self) -> Option<u64> {
        match self {
            Job::Assign { id, .. } | Job::Load { id, .. } | Job::Measure { id, .. } | Job::Task { id } => Some(*id),
            Job::Round(running) => Some(running.id),
            Job::Abort => None,
        }
    }
}

/// What a task at the compute thread is for.
enum Purpose {
    /// The whole of a command.
    Command(u64),
    /// An action of the round of a command.
    Action(u64, Action),
    /// Clearing up after a cancelled command.
    Discard(u64),
}

impl StageSession {
    /// A session that waits for its first command.
    pub fn new() -> Self {
        Self::default()
    }

    /// The next thing to do, until there is none.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// When to call `on_timeout` at the latest; ask again after every call.
    pub fn poll_timeout(&self) -> Option<Micros> {
        self.links.deadline()
    }

    /// The time that `poll_timeout` named has come.
    pub fn on_timeout(&mut self, now: Micros) {
        for peer in self.links.overdue(now) {
            self.on_link_down(now, peer, "no answer within 3 seconds");
        }
    }

    /// A direct connection to a worker is there, whoever dialled.
    pub fn on_link_up(&mut self, now: Micros, peer: WorkerId) {
        self.now = now;
        self.links.up(peer);
        self.finish_assignment();
    }

    /// A direct connection to a worker could not be made, or broke.
    pub fn on_link_down(&mut self, now: Micros, peer: WorkerId, reason: &str) {
        self.now = now;
        if let Some(was_up) = self.links.down(peer) {
            self.tell_boss(Head::LinkFailed { peer, reason: reason.to_string(), was_up });
            self.finish_assignment();
        }
        self.finish_measuring();
    }

    /// The driver began to find out what a connection is like, and will say so with `on_link_report`. What layers take is
    /// answered only then: a schedule is chosen by both.
    pub fn on_measuring(&mut self, peer: Peer) {
        self.links.measuring(peer);
    }

    /// The driver knows what a connection is like, to another worker or to the boss, or could not find out.
    pub fn on_link_report(&mut self, peer: Peer, report: Option<LinkReport>) {
        self.links.measured(peer, report);
        self.finish_measuring();
    }

    /// A frame arrived.
    pub fn on_frame(&mut self, now: Micros, from: Peer, frame: Frame) {
        self.now = now;
        let Frame { route, head, slots } = frame;
        // The boss passes frames on for pairs that cannot connect.
        let from = match route {
            Some(route) if from == Peer::Boss => Peer::Worker(route.from),
            _ => from,
        };
        match head {
            Head::Value { key, value, to } => self.arrive(from, key, to, Item::Value(value), slots),
            Head::Target { key, to } => self.arrive(from, key, to, Item::Target, slots),
            Head::Gradient { key, value, from: stage, to } => {
                self.arrive(from, key, to, Item::Gradient { value, from: stage }, slots);
            }
            Head::TiedGrads { batch, from: stage, to } => {
                let key = MicrobatchKey { batch, index: 0 };
                self.arrive(from, key, to, Item::TiedGrads { from: stage }, slots);
            }
            Head::TiedValues { batch, from: stage, to } => {
                let key = MicrobatchKey { batch, index: 0 };
                self.arrive(from, key, to, Item::TiedValues { from: stage }, slots);
            }
            Head::Sum { batch, stage, bucket, node } => {
                let key = MicrobatchKey { batch, index: 0 };
                let item = self.item_of(from, stage, |replica| Item::Sum { bucket, node, replica });
                self.arrive(from, key, stage, item, slots);
            }
            Head::Reduced { batch, stage, bucket } => {
                let item = self.item_of(from, stage, |replica| Item::Reduced { bucket, replica });
                self.arrive(from, MicrobatchKey { batch, index: 0 }, stage, item, slots);
            }
            Head::Statistics { batch, stage } => {
                let item = self.item_of(from, stage, |replica| Item::Statistics { replica });
                self.arrive(from, MicrobatchKey { batch, index: 0 }, stage, item, slots);
            }
            head if from == Peer::Boss => self.on_boss(now, head, slots),
            head => self.refuse(from, slots, format!("sent what only the boss may send: {}", name_of(&head))),
        }
    }

    fn on_boss(&mut self, now: Micros, head: Head, slots: Vec<Slot>) {
        match head {
            Head::Command { id, body } => self.command(now, id, body),
            Head::UseRelay { peer } => {
                self.links.relay(peer);
                self.finish_assignment();
            }
            Head::Abort { id, batch, gradients } => self.abort(id, batch, gradients),
            Head::TotalNorm { id, norm } => {
                if let Some(Job::Round(running)) = self.job.as_mut().filter(|job| job.id() == Some(id)) {
                    running.norm = Some(norm);
                    self.advance();
                }
            }
            Head::Stop => self.effects.push_back(Effect::Finish),
            Head::Load { id, name } => self.load(id, name, slots),
            other => self.refuse(Peer::Boss, slots, format!("sent what only a worker may send: {}", name_of(&other))),
        }
    }

    fn command(&mut self, now: Micros, id: u64, body: Command) {
        if self.job.is_some() {
            return self.refuse(Peer::Boss, Vec::new(), "sent a command before the last one was answered".into());
        }
        self.received = now;
        match body {
            Command::Assign(assignment) => self.assign(now, id, *assignment),
            Command::SetOptimizer(spec) => {
                self.residuals(Residuals::Forget);
                self.single(id, Task::SetOptimizer(spec));
            }
            Command::Discard { batch } => self.single(id, Task::Discard { batch, gradients: false }),
            Command::Measure(probes) => {
                self.job = Some(Job::Measure { id, times: None });
                self.compute(Purpose::Command(id), Task::Measure { probes });
            }
            Command::SendState => self.single(id, Task::Snapshot),
            Command::Digest => self.single(id, Task::Digest),
            Command::LoadState { tensors } => {
                let what = |tensors| Task::Load { tensors };
                self.job = Some(Job::Load { id, expected: tensors as usize, what });
                self.start_load();
            }
            Command::TakeFiles { files } => {
                let what = |files| Task::Files { files };
                self.job = Some(Job::Load { id, expected: files as usize, what });
                self.start_load();
            }
            Command::Run(round) => self.run(id, *round),
        }
    }

    fn assign(&mut self, now: Micros, id: u64, assignment: Assignment) {
        let Assignment { worker, stages, homes, buckets, peers, seed } = assignment;
        if !homes.are_possible() {
            return self.refuse(Peer::Boss, Vec::new(), "sent stages with replicas that cannot be".into());
        }
        self.residuals(Residuals::Forget);
        self.worker = Some(worker);
        self.teams = Team::of(&stages, &homes, worker, buckets);
        self.stages = stages.clone();
        self.homes = homes;
        self.job = Some(Job::Assign { id, built: false });
        self.compute(Purpose::Command(id), Task::Build { stages, buckets, seed });
        let opening = self.links.open(now, worker, &peers);
        let dials = opening.dial.into_iter().map(|(peer, address)| Effect::Dial { peer, address });
        self.effects.extend(dials);
        for peer in opening.unreachable {
            let reason = "one of them makes no direct connections".to_string();
            self.tell_boss(Head::LinkFailed { peer, reason, was_up: false });
        }
    }

    fn finish_assignment(&mut self) {
        if let Some(Job::Assign { id, built: true }) = self.job {
            if self.links.settled() {
                self.done(id, Vec::new(), 0, Vec::new());
            }
        }
    }

    fn finish_measuring(&mut self) {
        if !self.links.all_measured() {
            return;
        }
        if let Some(Job::Measure { id, times: Some(times) }) = &mut self.job {
            let (id, times) = (*id, std::mem::take(times));
            for report in self.links.reports() {
                self.tell_boss(report);
            }
            self.tell_boss(Head::Measured { id, times });
            self.done(id, Vec::new(), 0, Vec::new());
        }
    }

    fn single(&mut self, id: u64, task: Task<Slot>) {
        self.job = Some(Job::Task { id });
        self.compute(Purpose::Command(id), task);
    }

    fn run(&mut self, id: u64, round: Round) {
        if let Err(reason) = self.check(&round) {
            return self.refuse(Peer::Boss, Vec::new(), format!("sent {reason}"));
        }
        self.job = Some(Job::Round(Box::new(Running::new(id, round, &self.stages, &self.teams, &self.homes))));
        // What other replicas sent may be here before this worker was told.
        let stages: Vec<StageId> = self.teams.keys().copied().collect();
        stages.into_iter().for_each(|stage| self.sum_up(stage));
        self.advance();
    }

    /// Refuses a round that would wait for ever for what cannot come.
    fn check(&self, round: &Round) -> Result<(), String> {
        let stray = round.actions.iter().find(|a| !self.stages.iter().any(|s| s.stage == a.stage()));
        if let Some(action) = stray {
            return Err(format!("an action for {}, which is not here", action.stage()));
        }
        let least = round.actions.iter().filter_map(Action::microbatch).max().map_or(0, |m| m as usize + 1);
        if round.loss.as_ref().is_some_and(|loss| loss.weights.len() < least) {
            return Err(format!("fewer than {least} loss weights"));
        }
        let updates = round.actions.iter().any(|a| matches!(a, Action::OptimStep { .. }));
        let norms = round.actions.iter().any(|a| matches!(a, Action::GradNorm { .. }));
        if updates && round.update.is_none() {
            return Err("an optimizer step without a learning rate".into());
        }
        let speaks = self.stages.iter().any(|s| self.worker.is_some() && self.homes.first(s.stage) == self.worker);
        // Of replicas the first finds the norm.
        if updates && norms != (needs::max_norm(round).is_some() && speaks) {
            return Err("a limit for the norm of gradients without actions that find the norm, or the reverse".into());
        }
        if round.microbatches > MAX_MICROBATCHES || least > round.microbatches as usize {
            return Err(format!("a batch of {} microbatches with actions for {least}", round.microbatches));
        }
        if !round.deal.fits(&self.homes) {
            return Err("microbatches for replicas that there are not".into());
        }
        if !self.teams.is_empty() && !round.reduction.is_apart() {
            return Err("a round that sums gradients in a way that replicas cannot".into());
        }
        match &round.order {
            Order::Ready { in_flight, held }
                if in_flight.len() < self.homes.stages() || held.len() < self.homes.stages() =>
            {
                Err("an order that does not cover all stages".into())
            }
            _ => Ok(()),
        }
    }

    /// Starts the actions whose tensors are there. Called after every arrival and every result.
    fn advance(&mut self) {
        while self.tasks.len() < LOOKAHEAD {
            let Some(Job::Round(running)) = &mut self.job else { return };
            if running.failed {
                return;
            }
            let busy = !self.tasks.is_empty();
            let Some((action, task)) = running.next_task(&self.stages, &self.teams, &mut self.inbox, busy) else {
                break;
            };
            let purpose = Purpose::Action(running.id, action);
            self.compute(purpose, task);
        }
        if let Some(Job::Round(running)) = &mut self.job {
            if running.all_started() && self.tasks.is_empty() {
                let (id, losses, sent) = (running.id, std::mem::take(&mut running.losses), running.sent);
                let spans = std::mem::take(&mut running.spans);
                match running.uses_compressed() {
                    Some(true) => self.residuals(Residuals::Keep),
                    Some(false) => self.residuals(Residuals::Restore),
                    None => {}
                }
                self.done(id, losses, sent, spans);
            }
        }
    }

    fn arrive(&mut self, from: Peer, key: MicrobatchKey, stage: StageId, item: Item, slots: Vec<Slot>) {
        if !self.expects(from, stage, item, slots.len()) {
            return self.refuse(from, slots, format!("sent tensors that {stage} does not take from it"));
        }
        match self.inbox.put(key, stage, item, slots) {
            Ok(()) => {
                if let Item::Sum { .. } = item {
                    self.sum_up(stage);
                }
                self.advance();
            }
            Err((slots, None)) => self.drop_slots(slots),
            Err((slots, Some(reason))) => self.refuse(from, slots, reason),
        }
    }

    /// The compute thread is done with a task, on which it worked from `span.0` to `span.1`.
    pub fn on_done(
        &mut self,
        now: Micros,
        ticket: Ticket,
        result: Result<Outcome<Slot>, Failure>,
        span: (Micros, Micros),
    ) {
        self.now = now;
        let Some(purpose) = self.tasks.remove(&ticket) else { return };
        match (purpose, result) {
            (Purpose::Discard(id), _) => self.aborted(id),
            (Purpose::Command(id), Ok(outcome)) if self.is_active(id) => self.command_done(id, outcome),
            (Purpose::Action(id, action), Ok(outcome)) => {
                if let Action::OptimStep { .. } = action {
                    self.stepped = Some(id);
                }
                if self.is_active(id) {
                    if let Some(Job::Round(running)) = &mut self.job {
                        running.ran(Span { action, start: span.0, end: span.1 });
                    }
                    self.action_done(action, outcome);
                    self.advance();
                } else {
                    self.drop_slots(outcome.into_tensors());
                }
            }
            (Purpose::Command(id) | Purpose::Action(id, _), Err(failure)) => {
                if self.is_active(id) {
                    self.fail(id, failure);
                }
            }
            (Purpose::Command(_), Ok(outcome)) => self.drop_slots(outcome.into_tensors()),
        }
    }

    fn is_active(&self, id: u64) -> bool {
        let failed = matches!(&self.job, Some(Job::Round(running)) if running.failed);
        !failed && self.job.as_ref().and_then(Job::id) == Some(id)
    }

    fn load(&mut self, id: u64, name: String, slots: Vec<Slot>) {
        if id <= self.answered {
            return self.drop_slots(slots);
        }
        self.loads.entry(id).or_default().extend(slots.into_iter().map(|slot| (name.clone(), slot)));
        self.start_load();
    }

    fn start_load(&mut self) {
        let Some(Job::Load { id, expected, what }) = self.job else { return };
        if self.loads.get(&id).map_or(0, Vec::len) == expected {
            let tensors = self.loads.remove(&id).unwrap_or_default();
            self.single(id, what(tensors));
        }
    }

    fn abort(&mut self, id: u64, batch: Option<u64>, gradients: bool) {
        let unloaded = self.loads.remove(&id).unwrap_or_default();
        self.drop_slots(unloaded.into_iter().map(|(_, slot)| slot).collect());
        if let Some(batch) = batch {
            let slots = self.inbox.cancel(batch);
            self.drop_slots(slots);
        }
        if gradients {
            self.residuals(Residuals::Restore);
        }
        // The compute thread works in order: when this is done, all that was given to it before is.
        self.answered = self.answered.max(id);
        self.job = Some(Job::Abort);
        self.compute(Purpose::Discard(id), Task::Discard { batch: batch.unwrap_or(0), gradients });
    }

    fn aborted(&mut self, id: u64) {
        self.job = None;
        let stepped = self.stepped == Some(id);
        self.tell_boss(Head::Aborted { id, stepped });
    }

    fn done(&mut self, id: u64, losses: Vec<(u32, f32)>, sent: u32, spans: Vec<Span>) {
        self.job = None;
        self.answered = self.answered.max(id);
        let (received, answered) = (self.received, self.now);
        self.tell_boss(Head::Done { id, losses, sent, received, answered, spans });
    }

    fn fail(&mut self, id: u64, mut failure: Failure) {
        failure.worker = self.worker;
        match &mut self.job {
            // The boss answers with an abort; until then nothing more is started.
            Some(Job::Round(running)) => running.failed = true,
            _ => self.job = None,
        }
        self.tell_boss(Head::Failed { id, failure });
    }

    fn compute(&mut self, purpose: Purpose, task: Task<Slot>) {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.tasks.insert(ticket, purpose);
        self.effects.push_back(Effect::Compute { ticket, task });
    }

    fn tell_boss(&mut self, head: Head) {
        self.send_boss(head, Vec::new());
    }

    fn send_boss(&mut self, head: Head, slots: Vec<Slot>) {
        let to = vec![Destination { peer: Peer::Boss, route: None, head }];
        self.effects.push_back(Effect::Send { to, slots });
    }

    fn drop_slots(&mut self, slots: Vec<Slot>) {
        if !slots.is_empty() {
            self.effects.push_back(Effect::Drop(slots));
        }
    }

    fn refuse(&mut self, from: Peer, slots: Vec<Slot>, reason: String) {
        self.drop_slots(slots);
        self.effects.push_back(Effect::Hangup { peer: from, reason });
    }
}

fn name_of(head: &Head) -> String {
    let text = format!("{head:?}");
    text.split([' ', '{', '(']).next().unwrap_or_default().to_string()
}
