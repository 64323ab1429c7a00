//! The session of a worker: its commands, what has arrived, and its next effects.
//!
//! A state machine without I/O. Call `on_*` when something happened, then `poll_effect` until it is
//! empty, and `on_timeout` at the latest at the time `poll_timeout` names.
//!
//! A duplicate counts once. A duplicate command, or a duplicate tensor whose first copy is here or
//! counted, costs its sender the connection. A duplicate of something already used or answered is
//! dropped, at the latest with the next command.

mod change_membership;
mod commands;
mod communicating;
mod early;
mod inbox;
mod keeping;
mod links;
mod loading;
mod needs;
mod reading;
mod reducing;
mod results;
mod round;

use crate::effect::{Destination, Frame, Micros, Peer, Residuals, StageEffect};
use crate::ids::{MicrobatchKey, Slot, StageId, Ticket, WorkerId};
use crate::kept::{PeerSnapshot, SnapshotId};
use crate::message::{Failure, Head, LinkReport, Round, Span, MAX_MICROBATCHES};
use crate::plan::StageSpec;
use crate::replicas::{BucketBytes, Sharding, StagePlacement};
use crate::schedule::{Action, Order};
use crate::task::{LayerTimes, Outcome, Task};
use change_membership::{MembershipChange, ReplicaState};
use commands::Waiting;
use early::Early;
use inbox::{Inbox, Item};
use keeping::Keeping;
use links::Links;
use loading::Arriving;
use reducing::{Asked, ReplicaGroup};
use round::Running;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The number of tasks at the compute thread: one at work and one waiting. So it never idles for
/// lack of a message, and an abort waits for at most these. If the order is free, the waiting task
/// is chosen early only if no task that may still arrive would precede it. So the result is the
/// same as with the latest possible choice.
const LOOKAHEAD: usize = 2;

/// A worker's session.
#[derive(Default)]
pub struct StageSession {
    worker: Option<WorkerId>,
    stages: Vec<StageSpec>,
    stage_placement: StagePlacement,
    /// The stages that other workers hold or follow, too.
    groups: BTreeMap<StageId, ReplicaGroup>,
    /// The sizes of the buckets in which gradients are exchanged.
    buckets: BucketBytes,
    /// What the replicas of a stage shard, if anything.
    sharding: Option<Sharding>,
    links: Links,
    inbox: Inbox,
    job: Option<Job>,
    /// Commands that wait for the current one. Only followers have some.
    waiting: VecDeque<Waiting>,
    /// The newest command that came.
    told: u64,
    early: Early,
    tasks: BTreeMap<Ticket, Purpose>,
    /// Sums that are being taken beside the compute thread.
    sums: BTreeMap<Ticket, Asked>,
    /// Samples that are being read beside the compute thread.
    reads: BTreeMap<Ticket, reading::Asked>,
    next_ticket: u64,
    /// Tensors to load, which may arrive before their command.
    loads: BTreeMap<u64, Arriving>,
    /// Arriving states of replicas, which may arrive before their command.
    states: BTreeMap<u64, BTreeMap<Peer, ReplicaState>>,
    /// Arriving parts of snapshots, by command, which may arrive later.
    keeping: BTreeMap<u64, Keeping>,
    /// The snapshot in progress, and its first command. Parts for earlier commands are void.
    copying: Option<(SnapshotId, u64)>,
    /// Later commands that were cancelled.
    unkept: BTreeSet<u64>,
    /// The stored snapshots, and their run.
    kept: Vec<PeerSnapshot>,
    keeps_for: Option<u64>,
    /// The newest command that was answered. Late arrivals for it are dropped.
    answered: u64,
    /// The command that updated parameters last, for an abort that comes too late.
    stepped: Option<u64>,
    /// The times of the last event and of the arrival of the current command.
    now: Micros,
    received: Micros,
    effects: VecDeque<StageEffect>,
}

/// The current command.
enum Job {
    /// An assignment: the stages are being built and the links opened.
    Assign {
        id: u64,
        built: bool,
    },
    Round(Box<Running>),
    /// A change of membership: the stages stay.
    ChangeMembership(Box<MembershipChange>),
    /// A load whose tensors are arriving, and its task.
    Load {
        id: u64,
        expected: usize,
        what: fn(Vec<(String, Slot)>) -> Task<Slot>,
        /// The workers that send them, if not the boss.
        keepers: Vec<WorkerId>,
    },
    /// A snapshot: state is being copied and stored.
    Keep {
        id: u64,
    },
    /// A measurement: of layers, which is one task, and of the links that are being measured.
    Measure {
        id: u64,
        times: Option<Vec<LayerTimes>>,
    },
    /// Communicators are being made with other workers.
    Communicate {
        id: u64,
    },
    /// Any command that is one task.
    Task {
        id: u64,
    },
    /// A cancelled command whose remains are being cleared.
    Abort {
        id: u64,
    },
}

impl Job {
    /// The command, if it is not cancelled.
    fn id(&self) -> Option<u64> {
        match self {
            Job::Assign { id, .. } | Job::Load { id, .. } | Job::Measure { id, .. } => Some(*id),
            Job::Task { id } | Job::Keep { id } | Job::Communicate { id } => Some(*id),
            Job::Round(running) => Some(running.id),
            Job::ChangeMembership(membership_change) => Some(membership_change.id),
            Job::Abort { .. } => None,
        }
    }
}

/// The purpose of a task at the compute thread.
enum Purpose {
    /// A whole command.
    Command(u64),
    /// An action of the round of a command.
    Action(u64, Action),
    /// Cleaning up after a cancelled command.
    Discard(u64),
}

impl StageSession {
    /// A session that waits for its first command.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same, for a worker that stores snapshots of earlier runs.
    pub fn with_kept(kept: Vec<PeerSnapshot>) -> Self {
        StageSession { kept, ..Self::default() }
    }

    /// The next effect, until there is none.
    pub fn poll_effect(&mut self) -> Option<StageEffect> {
        self.effects.pop_front()
    }

    /// The latest time for `on_timeout`. It may change with every call.
    pub fn poll_timeout(&self) -> Option<Micros> {
        self.links.deadline()
    }

    /// The time of `poll_timeout` has come.
    pub fn on_timeout(&mut self, now: Micros) {
        for peer in self.links.overdue(now) {
            self.on_link_down(now, peer, "no answer within 3 seconds");
        }
    }

    /// A direct connection to a worker is up, dialled by either end.
    pub fn on_link_up(&mut self, now: Micros, peer: WorkerId) {
        self.now = now;
        self.links.up(peer);
        self.finish_opening();
    }

    /// A direct connection to a worker could not be made, or broke.
    pub fn on_link_down(&mut self, now: Micros, peer: WorkerId, reason: &str) {
        self.now = now;
        if let Some(was_up) = self.links.down(peer) {
            self.tell_boss(Head::LinkFailed { peer, reason: reason.to_string(), was_up });
            self.finish_opening();
        }
        self.finish_measuring();
    }

    /// The driver began to measure a connection and will call `on_link_report`. A measurement of
    /// layers is answered only after that, because the choice of a schedule needs both.
    pub fn on_measuring(&mut self, peer: Peer) {
        self.links.measuring(peer);
    }

    /// The driver measured a connection to another worker or to the boss, or could not measure it.
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
            Head::Sum { batch, .. }
            | Head::Reduced { batch, .. }
            | Head::Updated { batch, .. }
            | Head::Statistics { batch, .. } => {
                self.of_replica(from, batch, head, slots);
            }
            Head::ReplicaState { id, name, of } => self.take_state(from, id, (name, of), slots),
            Head::Keeping { id, part, name, of } => self.keeping(from, id, (part, name, of), slots),
            Head::Weight { id, name, stage } => self.weight(from, id, (name, stage), slots),
            head if from == Peer::Boss => self.on_boss(now, head, slots),
            head => self.refuse(from, slots, format!("sent what only the boss may send: {}", name_of(&head))),
        }
    }

    fn on_boss(&mut self, now: Micros, head: Head, slots: Vec<Slot>) {
        match head {
            Head::Command { id, body } => self.on_command(now, id, body),
            Head::UseRelay { peer } => {
                self.links.relay(peer);
                self.finish_opening();
            }
            Head::Abort { id, batch, gradients } => self.abort(id, batch, gradients),
            Head::TotalNorm { id, norm } => self.total_norm(id, norm),
            Head::Progress(progress) => self.effects.push_back(StageEffect::Progress(progress)),
            Head::Stop => {
                self.let_go_of_all();
                self.effects.push_back(StageEffect::Finish);
            }
            Head::File { id, name } => self.file(id, name, slots),
            other => self.refuse(Peer::Boss, slots, format!("sent what only a worker may send: {}", name_of(&other))),
        }
    }

    fn run(&mut self, id: u64, round: Round) {
        if let Err(reason) = self.check(&round) {
            return self.refuse(Peer::Boss, Vec::new(), format!("sent {reason}"));
        }
        self.forget_other_runs();
        let batch = round.batch;
        self.job =
            Some(Job::Round(Box::new(Running::new(id, round, &self.stages, &self.groups, &self.stage_placement))));
        // What other replicas sent may be here before this worker was told.
        for (from, head, slots) in self.early.take(batch) {
            self.of_replica(from, batch, head, slots);
        }
        self.read_samples();
        self.advance();
    }

    /// Refuses a round that would wait forever for something that cannot arrive.
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
        let speaks =
            self.stages.iter().any(|s| self.worker.is_some() && self.stage_placement.first(s.stage) == self.worker);
        let limited = needs::max_norm(round).is_some();
        // The first replica computes the norm, or all do.
        if updates && (norms && !limited || !norms && limited && speaks) {
            return Err("a limit for the norm of gradients without actions that find the norm, or the reverse".into());
        }
        for (stage, group) in self.groups.iter().filter(|(_, group)| group.is_sharded()) {
            let stage = *stage;
            let place = |action| round.actions.iter().position(|other| *other == action);
            let (step, gather) = (place(Action::OptimStep { stage }), place(Action::AllGather { stage }));
            if !group.shards_parameters() && (step.is_some() != gather.is_some() || step > gather) {
                return Err(format!(
                    "an update of a part of {stage} that is not followed by one that gathers the others"
                ));
            }
            if step.is_some() && place(Action::GradNorm { stage }).is_some() != limited {
                return Err(format!("a limit for the norm of gradients of which a part of {stage} is left out"));
            }
        }
        if round.microbatches > MAX_MICROBATCHES || least > round.microbatches as usize {
            return Err(format!("a batch of {} microbatches with actions for {least}", round.microbatches));
        }
        if !self.has_samples(round) {
            return Err("microbatches without samples, or samples for others".into());
        }
        if !round.microbatch_assignment.fits(&self.stage_placement) {
            return Err("microbatches for replicas that there are not".into());
        }
        if !self.groups.is_empty() && !round.reduction.is_apart() {
            return Err("a round that sums gradients in a way that replicas cannot".into());
        }
        if round.reduction.adds_up_first() && self.groups.values().any(ReplicaGroup::shards_gradients) {
            return Err("a round that adds up gradients which leave with each microbatch".into());
        }
        self.check_collective(round)?;
        match &round.order {
            Order::Ready { in_flight, held }
                if in_flight.len() < self.stage_placement.stages() || held.len() < self.stage_placement.stages() =>
            {
                Err("an order that does not cover all stages".into())
            }
            _ => Ok(()),
        }
    }

    /// Starts the actions whose tensors have arrived. Called after every arrival and every result.
    fn advance(&mut self) {
        while self.tasks.len() < LOOKAHEAD {
            let Some(Job::Round(running)) = &mut self.job else { return };
            if running.failed {
                return;
            }
            let busy = !self.tasks.is_empty();
            let Some((action, task)) = running.next_task(&self.stages, &self.groups, &mut self.inbox, busy) else {
                break;
            };
            let purpose = Purpose::Action(running.id, action);
            self.compute(purpose, task);
        }
        if let Some(Job::Round(running)) = &mut self.job {
            // The reduction thread may still send gradients of this round that other workers wait
            // for.
            let sums = self.sums.values().any(|asked| asked.is_for(running.id));
            if running.all_started() && self.tasks.is_empty() && !sums {
                let (id, losses, sent) = (running.id, std::mem::take(&mut running.losses), running.sent);
                let spans = std::mem::take(&mut running.spans);
                let (used, batch) = (running.uses_compressed(), running.round.batch);
                match used {
                    Some(true) => self.residuals(Residuals::Keep),
                    Some(false) => self.residuals(Residuals::Restore),
                    None => {}
                }
                let over = self.early.cancel_until(batch);
                self.drop_slots(over);
                self.done(id, losses, sent, spans);
            }
        }
    }

    fn arrive(&mut self, from: Peer, key: MicrobatchKey, stage: StageId, item: Item, slots: Vec<Slot>) {
        // The sender may have left the stages: frames that the boss relays can arrive after its
        // commands.
        if self.inbox.is_void(key.batch) {
            return self.drop_slots(slots);
        }
        if !self.expects(from, stage, item, slots.len()) {
            return self.refuse(from, slots, format!("sent tensors that {stage} does not take from it"));
        }
        match self.inbox.put(key, stage, item, slots) {
            Ok(()) => {
                if let Item::Sum { bucket, .. } = item {
                    self.sum_up(stage, bucket);
                }
                self.advance();
            }
            Err((slots, None)) => self.drop_slots(slots),
            Err((slots, Some(reason))) => self.refuse(from, slots, reason),
        }
    }

    /// The compute thread completed a task, on which it worked from `span.0` to `span.1`.
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
                if failure.updating {
                    self.stepped = Some(id);
                }
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

    fn done(&mut self, id: u64, losses: Vec<(u32, f32)>, sent: u32, spans: Vec<Span>) {
        self.job = None;
        self.answered = self.answered.max(id);
        let (received, answered) = (self.received, self.now);
        self.tell_boss(Head::Done { id, losses, sent, received, answered, spans });
        self.next_command();
    }

    fn fail(&mut self, id: u64, mut failure: Failure) {
        failure.worker = self.worker;
        match &mut self.job {
            // The boss answers with an abort. Until then nothing more starts.
            Some(Job::Round(running)) => running.failed = true,
            _ => self.job = None,
        }
        self.tell_boss(Head::Failed { id, failure });
    }

    fn compute(&mut self, purpose: Purpose, task: Task<Slot>) {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.tasks.insert(ticket, purpose);
        self.effects.push_back(StageEffect::Compute { ticket, task });
    }

    fn tell_boss(&mut self, head: Head) {
        self.send_boss(head, Vec::new());
    }

    fn send_boss(&mut self, head: Head, slots: Vec<Slot>) {
        let to = vec![Destination { peer: Peer::Boss, route: None, head }];
        self.effects.push_back(StageEffect::Send { to, slots });
    }

    fn drop_slots(&mut self, slots: Vec<Slot>) {
        if !slots.is_empty() {
            self.effects.push_back(StageEffect::Drop(slots));
        }
    }

    fn refuse(&mut self, from: Peer, slots: Vec<Slot>, reason: String) {
        self.drop_slots(slots);
        self.effects.push_back(StageEffect::Hangup { peer: from, reason });
    }
}

fn name_of(head: &Head) -> String {
    let text = format!("{head:?}");
    text.split([' ', '{', '(']).next().unwrap_or_default().to_string()
}
