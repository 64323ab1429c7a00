//! Plays a schedule: the sessions in small, with times in place of tensors.
//!
//! The boss's command reaches each worker, and the batch those that use it. Each worker takes the action that its
//! [`Picker`] names once it is free; what an action makes goes over the lines ([`super::lines`]) to the workers that use
//! it.

use super::costs::Process;
use super::lines::{LineId, Lines, Parcel};
use super::work::Work;
use super::{Action, Costs, Deadlock, Interval, Layout, Picker, Timeline};
use crate::ids::{StageId, WorkerId};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Plays what the pickers hold.
pub(super) fn play(work: &Work<'_>, pickers: Vec<Picker>, costs: &Costs) -> Result<Timeline, Deadlock> {
    let mut player = Player::new(work, pickers, costs);
    player.call();
    player.start_all();
    while let Some(Reverse((now, ..))) = player.events.peek() {
        let now = *now;
        // All that happens at one time has happened before anybody chooses.
        while player.events.peek().is_some_and(|Reverse((time, ..))| *time == now) {
            if let Some(Reverse((_, _, event))) = player.events.pop() {
                player.happens(now, event);
            }
        }
        player.now = now;
        player.start_all();
    }
    player.finish()
}

#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A worker is done with an action.
    Ended(usize, Action),
    /// Something that an action waits for is there.
    Arrived(Need),
    /// The last byte of a tensor left; the line may have another.
    Left(LineId),
    /// The boss's command reached a worker.
    Called(usize),
    /// The norm over all stages is known everywhere.
    Norm,
}

/// An action that waits for something.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Need {
    Forward(usize, u32),
    Backward(usize, u32),
    /// By stage and replica.
    Sum(Place),
    Reduced(Place),
    TiedGrads(Place),
    TiedValues(Place),
    Shared(Place),
}

/// A stage on one of its workers: the stage, and which replica it is.
type Place = (usize, usize);

/// Something counted for every replica of every stage.
type Counts = Vec<Vec<u32>>;

struct Player<'a> {
    layout: &'a Layout,
    work: Work<'a>,
    costs: &'a Costs,
    pickers: Vec<Picker>,
    users: Vec<Vec<usize>>,
    makers: Vec<Vec<usize>>,
    /// For every stage and microbatch how many tensors are missing.
    forward: Vec<u32>,
    backward: Vec<u32>,
    forward_done: Vec<bool>,
    input_done: Vec<bool>,
    /// The number of microbatches whose backward pass is not complete.
    left: Counts,
    /// Sums of gradients that other replicas have still to send, and sums over all of them.
    sums: Counts,
    reduced: Counts,
    tied_grads: Counts,
    tied_values: Counts,
    /// Parts of parameters that others have shared and that were not yet gathered.
    shared: Counts,
    norms: u32,
    norm_known: bool,
    /// At work, or not yet called.
    busy: Vec<bool>,
    lines: Lines<Need>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    sequence: u64,
    now: u64,
    workers: Vec<Vec<Interval>>,
}

impl<'a> Player<'a> {
    fn new(work: &Work<'a>, pickers: Vec<Picker>, costs: &'a Costs) -> Self {
        let Work { layout, microbatches, .. } = *work;
        let stages = layout.stages();
        let mut users = vec![Vec::new(); stages];
        let (mut makers, mut inputs, mut grads) = (users.clone(), vec![0u32; stages], vec![0u32; stages]);
        for (maker, user) in &layout.edges {
            users[maker.0 as usize].push(user.0 as usize);
            inputs[user.0 as usize] += 1;
        }
        for (maker, user) in &layout.back {
            makers[user.0 as usize].push(maker.0 as usize);
            grads[maker.0 as usize] += 1;
        }
        for stage in costs.from_boss.keys() {
            inputs[stage.0 as usize] += 1;
        }
        let taken = |(stage, workers): (StageId, &[WorkerId])| -> Vec<u32> {
            workers.iter().map(|worker| work.taken(stage, *worker).count() as u32).collect()
        };
        let left: Counts = layout.stage_placement.iter().map(taken).collect();
        // From each other replica one sum, or one for each microbatch.
        let sums_of_others = |(stage, taken): (usize, &Vec<u32>)| -> Vec<u32> {
            let most = if layout.shards_gradients(StageId(stage as u16)) { u32::MAX } else { 1 };
            let sums: Vec<u32> = taken.iter().map(|taken| *taken.min(&most)).collect();
            let all: u32 = sums.iter().sum();
            sums.into_iter().map(|own| all - own).collect()
        };
        let sums = left.iter().enumerate().map(sums_of_others).collect();
        // Where parameters are gathered first, nothing comes back.
        let of_others = |(stage, taken): (usize, &Vec<u32>)| match layout.shards_parameters(StageId(stage as u16)) {
            true => vec![0; taken.len()],
            false => vec![taken.len() as u32 - 1; taken.len()],
        };
        let reduced = left.iter().enumerate().map(of_others).collect();
        let shared = left.iter().map(|taken| vec![0; taken.len()]).collect();
        let ties = |of: &dyn Fn(&(StageId, StageId)) -> StageId| -> Counts {
            let count = |stage: usize| layout.ties.iter().filter(|tie| of(tie).0 as usize == stage).count() as u32;
            left.iter().enumerate().map(|(stage, replicas)| vec![count(stage); replicas.len()]).collect()
        };
        let each = |counts: Vec<u32>| counts.into_iter().flat_map(|n| (0..microbatches).map(move |_| n)).collect();
        let all = stages * microbatches as usize;
        let norms = pickers.iter().map(|p| p.norms()).sum();
        Player {
            layout,
            work: *work,
            costs,
            users,
            makers,
            forward: each(inputs),
            backward: each(grads),
            forward_done: vec![false; all],
            input_done: vec![false; all],
            sums,
            reduced,
            tied_grads: ties(&|(owner, _)| *owner),
            tied_values: ties(&|(_, user)| *user),
            shared,
            left,
            norms,
            norm_known: norms == 0,
            busy: vec![true; pickers.len()],
            lines: Lines::default(),
            events: BinaryHeap::new(),
            sequence: 0,
            now: 0,
            workers: vec![Vec::new(); pickers.len()],
            pickers,
        }
    }

    /// A stage of a worker.
    fn place(&self, stage: usize, worker: usize) -> Place {
        (stage, self.layout.stage_placement.replica(StageId(stage as u16), WorkerId(worker as u16)).unwrap_or(0).into())
    }

    /// The worker of a replica of a stage.
    fn worker(&self, (stage, replica): Place) -> WorkerId {
        self.layout.stage_placement.of(StageId(stage as u16)).get(replica).copied().unwrap_or(WorkerId(0))
    }

    /// The worker that takes a microbatch through a stage.
    fn taker(&self, stage: usize, microbatch: u32) -> WorkerId {
        self.work.worker(StageId(stage as u16), microbatch).unwrap_or(WorkerId(0))
    }

    fn at(&self, stage: usize, microbatch: u32) -> usize {
        stage * self.work.microbatches as usize + microbatch as usize
    }

    fn ready(&self, worker: usize, action: &Action) -> bool {
        let stage = action.stage().0 as usize;
        let at = action.microbatch().map_or(0, |m| self.at(stage, m));
        let (_, replica) = self.place(stage, worker);
        let none = |counts: &Counts| counts[stage][replica] == 0;
        match action {
            Action::Forward { .. } => self.forward[at] == 0,
            Action::Backward { .. } | Action::BackwardInput { .. } => self.forward_done[at] && self.backward[at] == 0,
            Action::BackwardWeight { .. } => self.input_done[at],
            Action::Reduce { .. } => none(&self.left) && none(&self.sums) && none(&self.reduced),
            Action::ReduceTied { .. } => none(&self.left),
            Action::GradNorm { .. } => none(&self.left) && none(&self.tied_grads),
            Action::OptimStep { .. } => none(&self.left) && none(&self.tied_grads) && self.norm_known,
            Action::AllGather { .. } if self.layout.shards_parameters(action.stage()) => {
                self.shared[stage][replica] as usize + 1 >= self.shared[stage].len()
            }
            // What it waits for is played as if it had gone out with the sums.
            Action::AllGather { .. } | Action::Share { .. } | Action::Reshard { .. } => true,
            Action::UpdateTied { .. } => none(&self.tied_values),
        }
    }

    fn start_all(&mut self) {
        for worker in 0..self.pickers.len() {
            if self.busy[worker] {
                continue;
            }
            let Some(action) = self.pickers[worker].pick(|action| self.ready(worker, action)) else { continue };
            self.pickers[worker].start(&action);
            if let (Action::AllGather { .. }, (stage, replica)) = (action, self.place(action.stage().0.into(), worker))
            {
                let others = self.shared[stage].len() as u32 - 1;
                let shared = &mut self.shared[stage][replica];
                *shared = shared.saturating_sub(others);
            }
            self.busy[worker] = true;
            let end = self.now + self.costs.of(&action, WorkerId(worker as u16));
            self.workers[worker].push(Interval { action, start: self.now, end });
            self.push(end, Event::Ended(worker, action));
        }
    }

    fn push(&mut self, time: u64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((time, self.sequence, event)));
    }

    fn happens(&mut self, now: u64, event: Event) {
        match event {
            Event::Ended(worker, action) => {
                self.busy[worker] = false;
                self.ended(now, worker, action);
            }
            Event::Arrived(need) => self.arrived(now, need),
            Event::Left(line) => self.leave(now, line),
            Event::Called(worker) => self.busy[worker] = false,
            Event::Norm => self.norm_known = true,
        }
    }

    fn arrived(&mut self, now: u64, need: Need) {
        let of = |counts: &'_ mut Counts, (stage, replica): Place| {
            let count = &mut counts[stage][replica];
            *count = count.saturating_sub(1);
        };
        match need {
            Need::Forward(stage, microbatch) => {
                let at = self.at(stage, microbatch);
                self.forward[at] = self.forward[at].saturating_sub(1);
            }
            Need::Backward(stage, microbatch) => {
                let at = self.at(stage, microbatch);
                self.backward[at] = self.backward[at].saturating_sub(1);
            }
            Need::Sum(place) => {
                of(&mut self.sums, place);
                self.summed(now, place);
            }
            Need::Reduced(place) => of(&mut self.reduced, place),
            Need::TiedGrads(place) => of(&mut self.tied_grads, place),
            Need::TiedValues(place) => of(&mut self.tied_values, place),
            Need::Shared((stage, replica)) => self.shared[stage][replica] += 1,
        }
    }

    fn ended(&mut self, now: u64, worker: usize, action: Action) {
        let stage = action.stage().0 as usize;
        let place = self.place(stage, worker);
        match action {
            Action::Forward { microbatch, .. } => {
                let at = self.at(stage, microbatch);
                self.forward_done[at] = true;
                for user in self.users[stage].clone() {
                    let to = self.taker(user, microbatch);
                    self.send(now, worker, to, self.bytes(stage, user), Need::Forward(user, microbatch));
                }
            }
            Action::Backward { microbatch, .. } | Action::BackwardInput { microbatch, .. } => {
                let at = self.at(stage, microbatch);
                self.input_done[at] = true;
                for maker in self.makers[stage].clone() {
                    let to = self.taker(maker, microbatch);
                    self.send(now, worker, to, self.bytes(maker, stage), Need::Backward(maker, microbatch));
                }
                if let Action::Backward { .. } = action {
                    self.back(now, place);
                }
            }
            Action::BackwardWeight { .. } => self.back(now, place),
            Action::ReduceTied { .. } => {
                for (owner, user) in self.layout.ties.iter().filter(|(_, user)| user.0 as usize == stage) {
                    let bytes = self.costs.tied_bytes.get(&(*owner, *user)).copied().unwrap_or(0);
                    for to in self.tied_to(place, owner.0 as usize) {
                        self.send(now, worker, self.worker(to), bytes, Need::TiedGrads(to));
                    }
                }
            }
            Action::OptimStep { .. } => {
                for (owner, user) in self.layout.ties.iter().filter(|(owner, _)| owner.0 as usize == stage) {
                    let bytes = self.costs.tied_bytes.get(&(*owner, *user)).copied().unwrap_or(0);
                    for to in self.tied_to(place, user.0 as usize) {
                        self.send(now, worker, self.worker(to), bytes, Need::TiedValues(to));
                    }
                }
            }
            Action::GradNorm { .. } => {
                self.norms = self.norms.saturating_sub(1);
                if self.norms == 0 {
                    self.push(now + 2 * self.boss_latency(), Event::Norm);
                }
            }
            Action::Share { .. } => self.give(now, place, Need::Shared),
            Action::Reduce { .. } | Action::AllGather { .. } | Action::UpdateTied { .. } | Action::Reshard { .. } => {}
        }
    }

    /// The replicas of another stage that get what this one gives for parameters that both share.
    fn tied_to(&self, (stage, replica): Place, to: usize) -> Vec<Place> {
        let workers = self.layout.stage_placement.partners(
            StageId(stage as u16),
            self.worker((stage, replica)),
            StageId(to as u16),
        );
        workers.into_iter().map(|worker| self.place(to, worker.0.into())).collect()
    }

    /// A microbatch is wholly back. The last one of a replica lets its gradients go to the others, or each does.
    fn back(&mut self, now: u64, (stage, replica): Place) {
        let left = &mut self.left[stage][replica];
        *left = left.saturating_sub(1);
        if *left > 0 && !self.layout.shards_gradients(StageId(stage as u16)) {
            return;
        }
        let bytes = self.costs.reduced_bytes.get(&StageId(stage as u16)).copied().unwrap_or(0);
        self.exchange(now, (stage, replica), bytes, Need::Sum);
        self.summed(now, (stage, replica));
    }

    /// Once the gradients of all replicas are there, each gives the sum of its part to the others.
    fn summed(&mut self, now: u64, (stage, replica): Place) {
        let is_whole = self.left[stage][replica] == 0 && self.sums[stage][replica] == 0;
        if is_whole && !self.layout.shards_parameters(StageId(stage as u16)) {
            self.give(now, (stage, replica), Need::Reduced);
        }
    }

    /// A replica gives its part of a stage to the others.
    fn give(&mut self, now: u64, place: Place, need: fn(Place) -> Need) {
        let bytes = self.costs.returned_bytes.get(&StageId(place.0 as u16)).copied().unwrap_or(0);
        self.exchange(now, place, bytes, need);
    }

    fn exchange(&mut self, now: u64, (stage, replica): Place, all: u64, need: fn(Place) -> Need) {
        let replicas = self.left[stage].len();
        let from = self.worker((stage, replica)).0.into();
        for to in (0..replicas).filter(|to| *to != replica).map(|to| (stage, to)) {
            self.send(now, from, self.worker(to), all / replicas as u64, need(to));
        }
    }

    fn bytes(&self, maker: usize, user: usize) -> u64 {
        self.costs.bytes.get(&(StageId(maker as u16), StageId(user as u16))).copied().unwrap_or(0)
    }

    /// The boss calls every worker, and sends the batch, microbatch after microbatch.
    fn call(&mut self) {
        for worker in 0..self.pickers.len() {
            match self.costs.boss_link(WorkerId(worker as u16)).latency {
                0 => self.busy[worker] = false,
                latency => self.push(latency, Event::Called(worker)),
            }
        }
        let microbatch_order = self.work.microbatch_order();
        for microbatch in (0..self.work.microbatches).map(|turn| microbatch_order.at(turn)) {
            for (stage, bytes) in &self.costs.from_boss {
                let stage = stage.0 as usize;
                let to = self.taker(stage, microbatch);
                let parcel =
                    Parcel { link: self.costs.boss_link(to), bytes: *bytes, need: Need::Forward(stage, microbatch) };
                self.post(0, Process::Boss, to, parcel);
            }
        }
    }

    fn send(&mut self, now: u64, from: usize, to: WorkerId, bytes: u64, need: Need) {
        let from = WorkerId(from as u16);
        if from == to {
            return self.arrived(now, need);
        }
        self.post(now, Process::Worker(from), to, Parcel { link: self.costs.link(from, to), bytes, need });
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
            self.push(left, Event::Left(line));
            self.push(left + parcel.link.latency, Event::Arrived(parcel.need));
        }
    }

    /// The longest way of a message between the boss and a worker.
    fn boss_latency(&self) -> u64 {
        let workers = 0..self.pickers.len();
        workers.map(|worker| self.costs.boss_link(WorkerId(worker as u16)).latency).max().unwrap_or(0)
    }

    fn finish(self) -> Result<Timeline, Deadlock> {
        let next = |(w, picker): (usize, &Picker)| picker.first().map(|action| (WorkerId(w as u16), action));
        let stuck: Vec<_> = self.pickers.iter().enumerate().filter_map(next).collect();
        if !stuck.is_empty() {
            return Err(Deadlock { stuck });
        }
        let answer = |(w, list): (usize, &Vec<Interval>)| {
            let latency = self.costs.boss_link(WorkerId(w as u16)).latency;
            list.last().map_or(2 * latency, |last| last.end + latency)
        };
        let step_time = self.workers.iter().enumerate().map(answer).max().unwrap_or(0);
        Ok(Timeline { workers: self.workers, step_time })
    }
}
