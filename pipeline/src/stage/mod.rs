//! The session of a worker: what it has been told, what has arrived, what it does next.
//!
//! A state machine without I/O. Call `on_*` when something happened, then `poll_effect` until it is
//! empty, and `on_timeout` at the latest at the time `poll_timeout` names.

mod inbox;
mod links;
mod round;

use crate::effect::{Destination, Effect, Frame, Micros, Peer};
use crate::ids::{MicrobatchKey, Slot, StageId, Ticket, WorkerId};
use crate::message::{Assignment, Command, Failure, Head, Round};
use crate::plan::StageSpec;
use crate::schedule::Action;
use crate::task::{Outcome, Task};
use inbox::{Inbox, Item};
use links::Links;
use round::Running;
use std::collections::{BTreeMap, VecDeque};

/// Tasks given to the compute thread at a time: one at work and one waiting, so that it never idles
/// for want of a message, and an abort never waits for more than these.
const LOOKAHEAD: usize = 2;

/// A worker's session.
#[derive(Default)]
pub struct StageSession {
    worker: Option<WorkerId>,
    stages: Vec<StageSpec>,
    homes: Vec<WorkerId>,
    links: Links,
    inbox: Inbox,
    job: Option<Job>,
    tasks: BTreeMap<Ticket, Purpose>,
    next_ticket: u64,
    /// Tensors to load, which may arrive before the command that wants them.
    loads: BTreeMap<u64, Vec<(String, Slot)>>,
    /// The newest command that was answered; what still arrives for it is of no use.
    answered: u64,
    /// The command whose parameters were updated last, for an abort that comes too late.
    stepped: Option<u64>,
    effects: VecDeque<Effect>,
}

/// The command being carried out.
enum Job {
    /// An assignment: its stages are being built and its links opened.
    Assign {
        id: u64,
        built: bool,
    },
    Round(Running),
    /// A load whose tensors are coming.
    Load {
        id: u64,
        expected: usize,
    },
    /// Anything that is one task.
    Task {
        id: u64,
    },
    /// A cancelled command whose remains are being cleared.
    Abort,
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
    pub fn on_link_up(&mut self, _now: Micros, peer: WorkerId) {
        self.links.up(peer);
        self.finish_assignment();
    }

    /// A direct connection to a worker could not be made, or broke.
    pub fn on_link_down(&mut self, _now: Micros, peer: WorkerId, reason: &str) {
        if let Some(was_up) = self.links.down(peer) {
            self.tell_boss(Head::LinkFailed { peer, reason: reason.to_string(), was_up });
            self.finish_assignment();
        }
    }

    /// A frame arrived.
    pub fn on_frame(&mut self, now: Micros, from: Peer, frame: Frame) {
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
            Head::Stop => self.effects.push_back(Effect::Finish),
            Head::Load { id, name } => self.load(id, name, slots),
            other => self.refuse(Peer::Boss, slots, format!("sent what only a worker may send: {}", name_of(&other))),
        }
    }

    fn command(&mut self, now: Micros, id: u64, body: Command) {
        if self.job.is_some() {
            return self.refuse(Peer::Boss, Vec::new(), "sent a command before the last one was answered".into());
        }
        match body {
            Command::Assign(assignment) => self.assign(now, id, *assignment),
            Command::SetOptimizer(spec) => self.single(id, Task::SetOptimizer(spec)),
            Command::Discard { batch } => self.single(id, Task::Discard { batch, gradients: false }),
            Command::SendState => self.single(id, Task::Snapshot),
            Command::LoadState { tensors } => {
                self.job = Some(Job::Load { id, expected: tensors as usize });
                self.start_load();
            }
            Command::Run(round) => self.run(id, *round),
        }
    }

    fn assign(&mut self, now: Micros, id: u64, assignment: Assignment) {
        let Assignment { worker, stages, homes, peers, seed } = assignment;
        self.worker = Some(worker);
        self.stages = stages.clone();
        self.homes = homes;
        self.job = Some(Job::Assign { id, built: false });
        self.compute(Purpose::Command(id), Task::Build { stages, seed });
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
                self.done(id, Vec::new(), 0);
            }
        }
    }

    fn single(&mut self, id: u64, task: Task<Slot>) {
        self.job = Some(Job::Task { id });
        self.compute(Purpose::Command(id), task);
    }

    fn run(&mut self, id: u64, round: Round) {
        let stray = round.actions.iter().find(|a| !self.stages.iter().any(|s| s.stage == a.stage()));
        if let Some(action) = stray {
            let reason = format!("sent an action for {}, which is not here", action.stage());
            return self.refuse(Peer::Boss, Vec::new(), reason);
        }
        let least = round.actions.iter().filter_map(Action::microbatch).max().map_or(0, |m| m as usize + 1);
        if round.loss.as_ref().is_some_and(|loss| loss.weights.len() < least) {
            return self.refuse(Peer::Boss, Vec::new(), format!("sent fewer than {least} loss weights"));
        }
        self.job = Some(Job::Round(Running::new(id, round)));
        self.advance();
    }

    /// Starts the actions whose tensors are there. Called after every arrival and every result.
    fn advance(&mut self) {
        while self.tasks.len() < LOOKAHEAD {
            let Some(Job::Round(running)) = &mut self.job else { return };
            if running.failed {
                return;
            }
            // What still runs may fail, and then the parameters must be as they were.
            if running.updates_next() && !self.tasks.is_empty() {
                return;
            }
            let Some((action, task)) = running.next_task(&self.stages, &mut self.inbox) else { break };
            let purpose = Purpose::Action(running.id, action);
            self.compute(purpose, task);
        }
        if let Some(Job::Round(running)) = &mut self.job {
            if running.all_started() && self.tasks.is_empty() {
                let (id, losses, sent) = (running.id, std::mem::take(&mut running.losses), running.sent);
                self.done(id, losses, sent);
            }
        }
    }

    fn arrive(&mut self, from: Peer, key: MicrobatchKey, stage: StageId, item: Item, slots: Vec<Slot>) {
        if !self.expects(from, stage, item) {
            return self.refuse(from, slots, format!("sent a tensor that {stage} does not take from it"));
        }
        match self.inbox.put(key, stage, item, slots) {
            Ok(()) => self.advance(),
            Err((slots, None)) => self.drop_slots(slots),
            Err((slots, Some(reason))) => self.refuse(from, slots, reason),
        }
    }

    /// Whether the plan has this sender give this stage this tensor.
    fn expects(&self, from: Peer, stage: StageId, item: Item) -> bool {
        let Some(spec) = self.stages.iter().find(|s| s.stage == stage) else { return false };
        let home = |stage: Option<StageId>| match stage {
            None => Some(Peer::Boss),
            Some(stage) => self.homes.get(stage.0 as usize).copied().map(Peer::Worker),
        };
        match item {
            Item::Target => from == Peer::Boss,
            Item::Value(value) => spec.inputs.iter().any(|i| i.value == value && home(i.from) == Some(from)),
            Item::Gradient { value, from: stage } => {
                let output = spec.outputs.iter().find(|o| o.value == value && o.needs_grad);
                home(stage) == Some(from)
                    && output.is_some_and(|o| match stage {
                        None => o.model_output.is_some(),
                        Some(stage) => o.to.contains(&stage),
                    })
            }
        }
    }

    /// The compute thread is done with a task.
    pub fn on_done(&mut self, _now: Micros, ticket: Ticket, result: Result<Outcome<Slot>, Failure>) {
        let Some(purpose) = self.tasks.remove(&ticket) else { return };
        match (purpose, result) {
            (Purpose::Discard(id), _) => self.aborted(id),
            (Purpose::Command(id), Ok(outcome)) if self.is_active(id) => self.command_done(id, outcome),
            (Purpose::Action(id, action), Ok(outcome)) => {
                if let Action::OptimStep { .. } = action {
                    self.stepped = Some(id);
                }
                if self.is_active(id) {
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
        match &self.job {
            Some(Job::Assign { id: active, .. } | Job::Load { id: active, .. } | Job::Task { id: active }) => {
                *active == id
            }
            Some(Job::Round(running)) => running.id == id && !running.failed,
            Some(Job::Abort) | None => false,
        }
    }

    fn command_done(&mut self, id: u64, outcome: Outcome<Slot>) {
        if let Some(Job::Assign { built, .. }) = &mut self.job {
            *built = true;
            return self.finish_assignment();
        }
        let mut sent = 0;
        if let Outcome::State { tensors } = outcome {
            for (name, slot) in tensors {
                sent += 1;
                self.send_boss(Head::State { id, name }, vec![slot]);
            }
        }
        self.done(id, Vec::new(), sent);
    }

    fn action_done(&mut self, action: Action, outcome: Outcome<Slot>) {
        let stage = action.stage();
        let Some(Job::Round(running)) = &mut self.job else { return };
        let Some(spec) = self.stages.iter().find(|s| s.stage == stage) else { return };
        let index = action.microbatch().unwrap_or(0);
        let key = MicrobatchKey { batch: running.round.batch, index };
        let to_worker = |to: StageId, head: Head| self.homes.get(to.0 as usize).map(|home| self.links.to(*home, head));
        match outcome {
            Outcome::Forward { outputs, loss } => {
                running.losses.extend(loss.map(|loss| (index, loss)));
                let to_boss = running.round.outputs;
                let leaving = spec.outputs.iter().filter(|o| !o.to.is_empty() || (to_boss && o.model_output.is_some()));
                for (output, slot) in leaving.zip(outputs) {
                    let value = output.value;
                    let users = output.to.iter().filter_map(|to| to_worker(*to, Head::Value { key, value, to: *to }));
                    let mut to: Vec<Destination> = users.collect();
                    if to_boss && output.model_output.is_some() {
                        running.sent += 1;
                        to.push(Destination { peer: Peer::Boss, route: None, head: Head::Output { key, value } });
                    }
                    self.effects.push_back(Effect::Send { to, slots: vec![slot] });
                }
            }
            Outcome::Backward { grads } => {
                let wanted = spec.inputs.iter().zip(grads).filter(|(input, _)| input.needs_grad);
                for (input, slots) in wanted {
                    let Some(maker) = input.from else { continue };
                    let head = Head::Gradient { key, value: input.value, from: Some(stage), to: maker };
                    self.effects.push_back(Effect::Send { to: to_worker(maker, head).into_iter().collect(), slots });
                }
            }
            Outcome::Done | Outcome::State { .. } => {}
        }
    }

    fn load(&mut self, id: u64, name: String, slots: Vec<Slot>) {
        if id <= self.answered {
            return self.drop_slots(slots);
        }
        self.loads.entry(id).or_default().extend(slots.into_iter().map(|slot| (name.clone(), slot)));
        self.start_load();
    }

    fn start_load(&mut self) {
        let Some(Job::Load { id, expected }) = self.job else { return };
        if self.loads.get(&id).map_or(0, Vec::len) == expected {
            let tensors = self.loads.remove(&id).unwrap_or_default();
            self.single(id, Task::Load { tensors });
        }
    }

    fn abort(&mut self, id: u64, batch: Option<u64>, gradients: bool) {
        let unloaded = self.loads.remove(&id).unwrap_or_default();
        self.drop_slots(unloaded.into_iter().map(|(_, slot)| slot).collect());
        if let Some(batch) = batch {
            let slots = self.inbox.cancel(batch);
            self.drop_slots(slots);
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

    fn done(&mut self, id: u64, losses: Vec<(u32, f32)>, sent: u32) {
        self.job = None;
        self.answered = self.answered.max(id);
        self.tell_boss(Head::Done { id, losses, sent });
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
