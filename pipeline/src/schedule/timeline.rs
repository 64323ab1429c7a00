//! When each action runs, under given costs: the sessions in small, with times in place of tensors.
//!
//! The boss's command reaches each worker, and the batch those that use it. Each worker takes the action that its
//! [`Picker`] names once it is free; what an action makes goes over the lines ([`super::lines`]) to the workers that use
//! it.

use super::costs::Process;
use super::lines::{LineId, Lines, Parcel};
use super::{Action, Costs, Layout, Picker, Schedule, StageBytes};
use crate::ids::{StageId, WorkerId};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;

/// An action with its start and end.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Interval {
    /// What runs.
    pub action: Action,
    /// From when.
    pub start: u64,
    /// Until when.
    pub end: u64,
}

/// Every action of every worker with its time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Timeline {
    /// For every worker its actions in order.
    pub workers: Vec<Vec<Interval>>,
    /// From the call to its answer: the command's way to the workers, all actions, and the answer's way back.
    pub step_time: u64,
}

impl Timeline {
    /// When the first action begins: the command is on its way till then, and so is the batch.
    pub fn begin(&self) -> u64 {
        self.workers.iter().flatten().map(|i| i.start).min().unwrap_or(0)
    }

    /// When the last action ends.
    pub fn end(&self) -> u64 {
        self.workers.iter().flatten().map(|i| i.end).max().unwrap_or(0)
    }

    /// The same with the first action's beginning at 0.
    pub fn from_begin(&self) -> Timeline {
        let begin = self.begin();
        let moved = |i: &Interval| Interval { start: i.start - begin, end: i.end - begin, ..*i };
        let workers = self.workers.iter().map(|list| list.iter().map(moved).collect()).collect();
        Timeline { workers, step_time: self.step_time }
    }

    /// The same with every time in so many of the units that it has now.
    pub fn in_units(&self, unit: u64) -> Timeline {
        let unit = unit.max(1);
        let scaled = |i: &Interval| Interval { start: i.start / unit, end: i.end / unit, ..*i };
        let workers = self.workers.iter().map(|list| list.iter().map(scaled).collect()).collect();
        Timeline { workers, step_time: self.step_time / unit }
    }

    /// For every worker the share of the whole time, from 0 to 1, in which it waits.
    pub fn bubble(&self) -> Vec<f64> {
        let end = self.end().max(1) as f64;
        let busy = |list: &Vec<Interval>| list.iter().map(|i| i.end - i.start).sum::<u64>() as f64;
        self.workers.iter().map(|list| 1.0 - busy(list) / end).collect()
    }

    /// The most microbatches that a stage holds at one time, wholly or from one half of backward to the other.
    pub fn peak_held(&self, stage: StageId) -> usize {
        let (mut held, mut peak) = (0usize, 0);
        for interval in self.workers.iter().flatten().filter(|i| i.action.stage() == stage) {
            match interval.action {
                Action::Forward { .. } => held += 1,
                Action::Backward { .. } | Action::BackwardWeight { .. } => held = held.saturating_sub(1),
                _ => {}
            }
            peak = peak.max(held);
        }
        peak
    }

    /// For every worker the most bytes it holds at one time: what is always there, and what its microbatches hold.
    /// Tensors on their way are not counted.
    pub fn peak_bytes(&self, layout: &Layout, stages: &[StageBytes]) -> Vec<u64> {
        let of = |stage: StageId| stages.get(stage.0 as usize).copied().unwrap_or_default();
        let peak = |(worker, list): (usize, &Vec<Interval>)| {
            let fixed = layout.stages_of(WorkerId(worker as u16)).map(|s| of(s).fixed).sum::<u64>();
            let (mut held, mut peak) = (0u64, 0);
            for interval in list {
                let bytes = of(interval.action.stage());
                match interval.action {
                    Action::Forward { .. } => held += bytes.held,
                    Action::Backward { .. } => held = held.saturating_sub(bytes.held),
                    Action::BackwardInput { .. } => held = held.saturating_sub(bytes.held) + bytes.held_between,
                    Action::BackwardWeight { .. } => held = held.saturating_sub(bytes.held_between),
                    _ => {}
                }
                peak = peak.max(held);
            }
            fixed.saturating_add(peak)
        };
        self.workers.iter().enumerate().map(peak).collect()
    }
}

/// Workers that wait for each other for ever.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Deadlock {
    /// What each stuck worker waits to do.
    pub stuck: Vec<(WorkerId, Action)>,
}

impl fmt::Display for Deadlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("workers wait for each other:")?;
        for (worker, action) in &self.stuck {
            write!(f, " {worker} for the {} of {}", action.verb(), action.stage())?;
            if let Some(microbatch) = action.microbatch() {
                write!(f, ", microbatch {microbatch}")?;
            }
            f.write_str(";")?;
        }
        Ok(())
    }
}

/// Plays a schedule.
pub fn timeline(schedule: &Schedule, costs: &Costs) -> Result<Timeline, Deadlock> {
    let awaited = |stage| schedule.layout.is_awaited(stage);
    let pickers = schedule.workers.iter().map(|list| Picker::new(list, &schedule.order, awaited)).collect();
    play(&schedule.layout, schedule.microbatches, pickers, costs)
}

/// Plays what the pickers hold.
pub(super) fn play(
    layout: &Layout,
    microbatches: u32,
    pickers: Vec<Picker>,
    costs: &Costs,
) -> Result<Timeline, Deadlock> {
    let mut player = Player::new(layout, microbatches, pickers, costs);
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
    TiedGrads(usize),
    TiedValues(usize),
}

struct Player<'a> {
    layout: &'a Layout,
    costs: &'a Costs,
    microbatches: u32,
    pickers: Vec<Picker>,
    users: Vec<Vec<usize>>,
    makers: Vec<Vec<usize>>,
    /// For every stage and microbatch how many tensors are missing.
    forward: Vec<u32>,
    backward: Vec<u32>,
    forward_done: Vec<bool>,
    input_done: Vec<bool>,
    /// For every stage how many microbatches are not yet wholly back.
    left: Vec<u32>,
    tied_grads: Vec<u32>,
    tied_values: Vec<u32>,
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
    fn new(layout: &'a Layout, microbatches: u32, pickers: Vec<Picker>, costs: &'a Costs) -> Self {
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
        let (mut tied_grads, mut tied_values) = (vec![0; stages], vec![0; stages]);
        for (owner, user) in &layout.ties {
            tied_grads[owner.0 as usize] += 1;
            tied_values[user.0 as usize] += 1;
        }
        let each = |counts: Vec<u32>| counts.into_iter().flat_map(|n| (0..microbatches).map(move |_| n)).collect();
        let all = stages * microbatches as usize;
        let norms = pickers.iter().map(|p| p.norms()).sum();
        Player {
            layout,
            costs,
            microbatches,
            users,
            makers,
            forward: each(inputs),
            backward: each(grads),
            forward_done: vec![false; all],
            input_done: vec![false; all],
            left: vec![microbatches; stages],
            tied_grads,
            tied_values,
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

    fn at(&self, stage: usize, microbatch: u32) -> usize {
        stage * self.microbatches as usize + microbatch as usize
    }

    fn ready(&self, action: &Action) -> bool {
        let stage = action.stage().0 as usize;
        let at = action.microbatch().map_or(0, |m| self.at(stage, m));
        match action {
            Action::Forward { .. } => self.forward[at] == 0,
            Action::Backward { .. } | Action::BackwardInput { .. } => self.forward_done[at] && self.backward[at] == 0,
            Action::BackwardWeight { .. } => self.input_done[at],
            Action::ReduceTied { .. } => self.left[stage] == 0,
            Action::GradNorm { .. } => self.left[stage] == 0 && self.tied_grads[stage] == 0,
            Action::OptimStep { .. } => self.left[stage] == 0 && self.tied_grads[stage] == 0 && self.norm_known,
            Action::UpdateTied { .. } => self.tied_values[stage] == 0,
        }
    }

    fn start_all(&mut self) {
        for worker in 0..self.pickers.len() {
            if self.busy[worker] {
                continue;
            }
            let Some(action) = self.pickers[worker].pick(|action| self.ready(action)) else { continue };
            self.pickers[worker].start(&action);
            self.busy[worker] = true;
            let end = self.now + self.costs.of(&action);
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
                self.ended(now, action);
            }
            Event::Arrived(need) => self.arrived(need),
            Event::Left(line) => self.leave(now, line),
            Event::Called(worker) => self.busy[worker] = false,
            Event::Norm => self.norm_known = true,
        }
    }

    fn arrived(&mut self, need: Need) {
        let count = match need {
            Need::Forward(stage, microbatch) => {
                let at = self.at(stage, microbatch);
                &mut self.forward[at]
            }
            Need::Backward(stage, microbatch) => {
                let at = self.at(stage, microbatch);
                &mut self.backward[at]
            }
            Need::TiedGrads(stage) => &mut self.tied_grads[stage],
            Need::TiedValues(stage) => &mut self.tied_values[stage],
        };
        *count = count.saturating_sub(1);
    }

    fn ended(&mut self, now: u64, action: Action) {
        let stage = action.stage().0 as usize;
        match action {
            Action::Forward { microbatch, .. } => {
                let at = self.at(stage, microbatch);
                self.forward_done[at] = true;
                for user in self.users[stage].clone() {
                    self.send(now, stage, user, self.bytes(stage, user), Need::Forward(user, microbatch));
                }
            }
            Action::Backward { microbatch, .. } | Action::BackwardInput { microbatch, .. } => {
                let at = self.at(stage, microbatch);
                self.input_done[at] = true;
                if let Action::Backward { .. } = action {
                    self.left[stage] = self.left[stage].saturating_sub(1);
                }
                for maker in self.makers[stage].clone() {
                    self.send(now, stage, maker, self.bytes(maker, stage), Need::Backward(maker, microbatch));
                }
            }
            Action::BackwardWeight { .. } => self.left[stage] = self.left[stage].saturating_sub(1),
            Action::ReduceTied { .. } => {
                for (owner, user) in self.layout.ties.iter().filter(|(_, user)| user.0 as usize == stage) {
                    let bytes = self.costs.tied_bytes.get(&(*owner, *user)).copied().unwrap_or(0);
                    self.send(now, stage, owner.0 as usize, bytes, Need::TiedGrads(owner.0 as usize));
                }
            }
            Action::OptimStep { .. } => {
                for (owner, user) in self.layout.ties.iter().filter(|(owner, _)| owner.0 as usize == stage) {
                    let bytes = self.costs.tied_bytes.get(&(*owner, *user)).copied().unwrap_or(0);
                    self.send(now, stage, user.0 as usize, bytes, Need::TiedValues(user.0 as usize));
                }
            }
            Action::GradNorm { .. } => {
                self.norms = self.norms.saturating_sub(1);
                if self.norms == 0 {
                    self.push(now + 2 * self.boss_latency(), Event::Norm);
                }
            }
            Action::UpdateTied { .. } => {}
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
        for microbatch in 0..self.microbatches {
            for (stage, bytes) in &self.costs.from_boss {
                let stage = stage.0 as usize;
                let to = self.layout.homes[stage];
                let parcel =
                    Parcel { link: self.costs.boss_link(to), bytes: *bytes, need: Need::Forward(stage, microbatch) };
                self.post(0, Process::Boss, to, parcel);
            }
        }
    }

    fn send(&mut self, now: u64, from: usize, to: usize, bytes: u64, need: Need) {
        let (from, to) = (self.layout.homes[from], self.layout.homes[to]);
        if from == to {
            return self.arrived(need);
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
