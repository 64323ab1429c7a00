//! Plays a schedule: the sessions in small, with times in place of tensors.
//!
//! The boss's command reaches each worker, and the batch reaches the workers that use it. Each
//! worker takes the action that its [`Picker`] names once it is free. The results of an action go
//! over the lines ([`super::lines`]) to the workers that use them.

use super::costs::Process;
use super::events::Events;
use super::lines::{LineId, Lines, Parcel};
use super::progress::{count_down, Passes, Place, Replica, Replicas};
use super::work::Work;
use super::{Action, Costs, Deadlock, Interval, Picker, Schedule, Timeline};
use crate::ids::{StageId, WorkerId};

/// Plays a schedule.
pub fn timeline(schedule: &Schedule, costs: &Costs) -> Result<Timeline, Deadlock> {
    let awaited = |stage| schedule.layout.is_awaited(stage);
    let work = Work {
        layout: &schedule.layout,
        microbatch_assignment: &schedule.microbatch_assignment,
        microbatches: schedule.microbatches,
    };
    let microbatch_order = work.microbatch_order();
    let pickers = schedule
        .workers
        .iter()
        .map(|list| Picker::new(list, &schedule.order, &microbatch_order, awaited))
        .collect();
    play(&work, pickers, costs)
}

/// Plays the actions that the pickers hold.
pub(super) fn play(
    work: &Work<'_>,
    pickers: Vec<Picker>,
    costs: &Costs,
) -> Result<Timeline, Deadlock> {
    let mut player = Player::new(work, pickers, costs);
    player.call();
    player.start_all(0);
    while let Some(now) = player.events.next_time() {
        // All events of one time happen before any worker chooses.
        while let Some(event) = player.events.pop_at(now) {
            player.happens(now, event);
        }
        player.start_all(now);
    }
    player.finish()
}

#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A worker is done with an action.
    Ended(usize, Action),
    /// Something that an action waits for has arrived.
    Arrived(Need),
    /// The last byte of a tensor left. The line may have another.
    Left(LineId),
    /// The boss's command reached a worker.
    Called(usize),
    /// The norm over all stages is known everywhere.
    Norm,
}

/// Something that an action waits for.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Need {
    /// An input of a stage and microbatch.
    Forward(usize, u32),
    /// A gradient of an output of a stage and microbatch.
    Backward(usize, u32),
    Sum(Place),
    Reduced(Place),
    TiedGrads(Place),
    TiedValues(Place),
    Shared(Place),
}

struct Player<'a> {
    work: Work<'a>,
    costs: &'a Costs,
    workers: Vec<Worker>,
    passes: Passes,
    replicas: Replicas,
    /// The number of stages whose norm is not computed.
    norms: u32,
    norm_known: bool,
    lines: Lines<Need>,
    events: Events<Event>,
}

struct Worker {
    picker: Picker,
    /// Whether it computes, or waits for the boss's command.
    busy: bool,
    intervals: Vec<Interval>,
}

impl<'a> Player<'a> {
    fn new(work: &Work<'a>, pickers: Vec<Picker>, costs: &'a Costs) -> Self {
        let norms = pickers.iter().map(Picker::norms).sum();
        let worker = |picker| Worker { picker, busy: true, intervals: Vec::new() };
        Player {
            work: *work,
            costs,
            workers: pickers.into_iter().map(worker).collect(),
            passes: Passes::new(work, costs),
            replicas: Replicas::new(work),
            norms,
            norm_known: norms == 0,
            lines: Lines::default(),
            events: Events::new(),
        }
    }

    /// A stage of a worker.
    fn place(&self, stage: usize, worker: usize) -> Place {
        let placement = &self.work.layout.stage_placement;
        let replica = placement.replica(StageId(stage as u16), WorkerId(worker as u16));
        Place { stage, replica: replica.unwrap_or(0).into() }
    }

    /// The worker of a replica of a stage.
    fn worker(&self, place: Place) -> WorkerId {
        let workers = self.work.layout.stage_placement.of(StageId(place.stage as u16));
        workers.get(place.replica).copied().unwrap_or(WorkerId(0))
    }

    /// The worker that takes a microbatch through a stage.
    fn taker(&self, stage: usize, microbatch: u32) -> WorkerId {
        self.work.worker(StageId(stage as u16), microbatch).unwrap_or(WorkerId(0))
    }

    fn is_ready(&self, worker: usize, action: &Action) -> bool {
        let stage = action.stage().0 as usize;
        let pass = || self.passes.of(stage, action.microbatch().unwrap_or(0));
        let waits = || self.replicas.of(self.place(stage, worker));
        match action {
            Action::Forward { .. } => pass().inputs == 0,
            Action::Backward { .. } | Action::BackwardInput { .. } => {
                pass().forward_done && pass().grads == 0
            }
            Action::BackwardWeight { .. } => pass().input_done,
            Action::Reduce { .. } => {
                let Replica { passes, sums, reduced, .. } = *waits();
                passes == 0 && sums == 0 && reduced == 0
            }
            Action::ReduceTied { .. } => waits().passes == 0,
            Action::GradNorm { .. } => waits().passes == 0 && waits().tied_grads == 0,
            Action::OptimStep { .. } => {
                waits().passes == 0 && waits().tied_grads == 0 && self.norm_known
            }
            Action::AllGather { .. } if self.work.layout.shards_parameters(action.stage()) => {
                waits().shared as usize + 1 >= self.replicas.count(stage)
            }
            // The shards that it waits for are played as if they were sent with the sums.
            Action::AllGather { .. } | Action::Share { .. } | Action::Reshard { .. } => true,
            Action::UpdateTied { .. } => waits().tied_values == 0,
        }
    }

    /// Starts the next action of every free worker.
    fn start_all(&mut self, now: u64) {
        for worker in 0..self.workers.len() {
            if self.workers[worker].busy {
                continue;
            }
            let ready = |action: &Action| self.is_ready(worker, action);
            let Some(action) = self.workers[worker].picker.pick(ready) else { continue };
            if let Action::AllGather { .. } = action {
                let place = self.place(action.stage().0.into(), worker);
                let others = self.replicas.count(place.stage) as u32 - 1;
                let shared = &mut self.replicas.of_mut(place).shared;
                *shared = shared.saturating_sub(others);
            }
            let end = now + self.costs.of(&action, WorkerId(worker as u16));
            let at_work = &mut self.workers[worker];
            at_work.picker.start(&action);
            at_work.busy = true;
            at_work.intervals.push(Interval { action, start: now, end });
            self.events.push(end, Event::Ended(worker, action));
        }
    }

    fn happens(&mut self, now: u64, event: Event) {
        match event {
            Event::Ended(worker, action) => {
                self.workers[worker].busy = false;
                self.ended(now, worker, action);
            }
            Event::Arrived(need) => self.arrived(now, need),
            Event::Left(line) => self.leave(now, line),
            Event::Called(worker) => self.workers[worker].busy = false,
            Event::Norm => self.norm_known = true,
        }
    }

    fn arrived(&mut self, now: u64, need: Need) {
        match need {
            Need::Forward(stage, microbatch) => {
                count_down(&mut self.passes.of_mut(stage, microbatch).inputs);
            }
            Need::Backward(stage, microbatch) => {
                count_down(&mut self.passes.of_mut(stage, microbatch).grads);
            }
            Need::Sum(place) => {
                count_down(&mut self.replicas.of_mut(place).sums);
                self.summed(now, place);
            }
            Need::Reduced(place) => count_down(&mut self.replicas.of_mut(place).reduced),
            Need::TiedGrads(place) => count_down(&mut self.replicas.of_mut(place).tied_grads),
            Need::TiedValues(place) => count_down(&mut self.replicas.of_mut(place).tied_values),
            Need::Shared(place) => self.replicas.of_mut(place).shared += 1,
        }
    }

    /// A worker is done with an action. Its results go to the workers that use them.
    fn ended(&mut self, now: u64, worker: usize, action: Action) {
        let (stage, from) = (action.stage(), WorkerId(worker as u16));
        let place = self.place(stage.0.into(), worker);
        match action {
            Action::Forward { microbatch, .. } => self.send_outputs(now, from, stage, microbatch),
            Action::BackwardInput { microbatch, .. } => {
                self.send_grads(now, from, stage, microbatch);
            }
            Action::Backward { microbatch, .. } => {
                self.send_grads(now, from, stage, microbatch);
                self.end_pass(now, place);
            }
            Action::BackwardWeight { .. } => self.end_pass(now, place),
            Action::ReduceTied { .. } => self.send_tied(now, from, place, Need::TiedGrads),
            Action::OptimStep { .. } => self.send_tied(now, from, place, Need::TiedValues),
            Action::GradNorm { .. } => {
                count_down(&mut self.norms);
                if self.norms == 0 {
                    self.events.push(now + 2 * self.boss_latency(), Event::Norm);
                }
            }
            Action::Share { .. } => self.return_part(now, place, Need::Shared),
            Action::Reduce { .. }
            | Action::AllGather { .. }
            | Action::UpdateTied { .. }
            | Action::Reshard { .. } => {}
        }
    }

    /// Sends the outputs of a stage to the stages that use them.
    fn send_outputs(&mut self, now: u64, from: WorkerId, stage: StageId, microbatch: u32) {
        self.passes.of_mut(stage.0.into(), microbatch).forward_done = true;
        for edge in self.work.layout.edges.iter().filter(|(maker, _)| *maker == stage) {
            let user = edge.1 .0.into();
            let (to, need) = (self.taker(user, microbatch), Need::Forward(user, microbatch));
            self.send(now, from, to, self.bytes(*edge), need);
        }
    }

    /// Sends the gradients of a stage's inputs to the stages that made them.
    fn send_grads(&mut self, now: u64, from: WorkerId, stage: StageId, microbatch: u32) {
        self.passes.of_mut(stage.0.into(), microbatch).input_done = true;
        for edge in self.work.layout.back.iter().filter(|(_, user)| *user == stage) {
            let maker = edge.0 .0.into();
            let (to, need) = (self.taker(maker, microbatch), Need::Backward(maker, microbatch));
            self.send(now, from, to, self.bytes(*edge), need);
        }
    }

    /// Sends gradients of tied parameters to their owners, or new values to the stages that use
    /// them.
    fn send_tied(&mut self, now: u64, from: WorkerId, place: Place, need: fn(Place) -> Need) {
        let to_owner = matches!(need(place), Need::TiedGrads(_));
        let stage = StageId(place.stage as u16);
        for tie in &self.work.layout.ties {
            let (sender, receiver) = if to_owner { (tie.1, tie.0) } else { *tie };
            if sender != stage {
                continue;
            }
            let bytes = self.costs.tied_bytes.get(tie).copied().unwrap_or(0);
            let placement = &self.work.layout.stage_placement;
            for to in placement.partners(stage, self.worker(place), receiver) {
                let receives = self.place(receiver.0.into(), to.0.into());
                self.send(now, from, to, bytes, need(receives));
            }
        }
    }

    /// A microbatch's backward pass is complete. With the last one of a replica, or with each one,
    /// gradients go to the other replicas.
    fn end_pass(&mut self, now: u64, place: Place) {
        let passes = &mut self.replicas.of_mut(place).passes;
        count_down(passes);
        let stage = StageId(place.stage as u16);
        if *passes > 0 && !self.work.layout.shards_gradients(stage) {
            return;
        }
        let bytes = self.costs.reduced_bytes.get(&stage).copied().unwrap_or(0);
        self.exchange(now, place, bytes, Need::Sum);
        self.summed(now, place);
    }

    /// Once the gradients of all replicas have arrived, each sends the sum of its part to the
    /// others.
    fn summed(&mut self, now: u64, place: Place) {
        let Replica { passes, sums, .. } = *self.replicas.of(place);
        let is_complete = passes == 0 && sums == 0;
        if is_complete && !self.work.layout.shards_parameters(StageId(place.stage as u16)) {
            self.return_part(now, place, Need::Reduced);
        }
    }

    /// A replica sends its part of a stage to the others.
    fn return_part(&mut self, now: u64, place: Place, need: fn(Place) -> Need) {
        let stage = StageId(place.stage as u16);
        let bytes = self.costs.returned_bytes.get(&stage).copied().unwrap_or(0);
        self.exchange(now, place, bytes, need);
    }

    /// A replica sends each other replica its share of these bytes.
    fn exchange(&mut self, now: u64, place: Place, all: u64, need: fn(Place) -> Need) {
        let bytes = all / self.replicas.count(place.stage) as u64;
        let from = self.worker(place);
        for to in self.replicas.others(place) {
            self.send(now, from, self.worker(to), bytes, need(to));
        }
    }

    /// The bytes of a microbatch that go between two stages.
    fn bytes(&self, edge: (StageId, StageId)) -> u64 {
        self.costs.bytes.get(&edge).copied().unwrap_or(0)
    }

    /// The boss calls every worker, and sends the batch, microbatch after microbatch.
    fn call(&mut self) {
        for worker in 0..self.workers.len() {
            match self.costs.boss_link(WorkerId(worker as u16)).latency {
                0 => self.workers[worker].busy = false,
                latency => self.events.push(latency, Event::Called(worker)),
            }
        }
        let order = self.work.microbatch_order();
        for microbatch in (0..self.work.microbatches).map(|turn| order.at(turn)) {
            for (stage, bytes) in &self.costs.from_boss {
                let stage = stage.0 as usize;
                let to = self.taker(stage, microbatch);
                let need = Need::Forward(stage, microbatch);
                let parcel = Parcel { link: self.costs.boss_link(to), bytes: *bytes, need };
                self.post(0, Process::Boss, to, parcel);
            }
        }
    }

    fn send(&mut self, now: u64, from: WorkerId, to: WorkerId, bytes: u64, need: Need) {
        if from == to {
            return self.arrived(now, need);
        }
        let parcel = Parcel { link: self.costs.link(from, to), bytes, need };
        self.post(now, Process::Worker(from), to, parcel);
    }

    fn post(&mut self, now: u64, from: Process, to: WorkerId, parcel: Parcel<Need>) {
        let line = LineId::between(from, Process::Worker(to), self.costs);
        if self.lines.put(line, from, parcel) {
            self.leave(now, line);
        }
    }

    /// The line's next tensor leaves.
    fn leave(&mut self, now: u64, line: LineId) {
        if let Some(parcel) = self.lines.next(line) {
            let left = now + parcel.link.occupied(parcel.bytes);
            self.events.push(left, Event::Left(line));
            self.events.push(left + parcel.link.latency, Event::Arrived(parcel.need));
        }
    }

    /// The longest latency between the boss and a worker.
    fn boss_latency(&self) -> u64 {
        let workers = (0..self.workers.len()).map(|worker| WorkerId(worker as u16));
        workers.map(|worker| self.costs.boss_link(worker).latency).max().unwrap_or(0)
    }

    fn finish(self) -> Result<Timeline, Deadlock> {
        let numbered = || (0..).map(WorkerId).zip(&self.workers);
        let next = |(id, worker): (WorkerId, &Worker)| Some((id, worker.picker.first()?));
        let stuck: Vec<_> = numbered().filter_map(next).collect();
        if !stuck.is_empty() {
            return Err(Deadlock { stuck });
        }
        let answered = |(id, worker): (WorkerId, &Worker)| {
            let latency = self.costs.boss_link(id).latency;
            worker.intervals.last().map_or(2 * latency, |last| last.end + latency)
        };
        let step_time = numbered().map(answered).max().unwrap_or(0);
        let workers = self.workers.into_iter().map(|worker| worker.intervals).collect();
        Ok(Timeline { workers, step_time })
    }
}
