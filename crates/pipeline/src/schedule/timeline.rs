//! When each action runs, under given costs.

use super::player::play;
use super::work::Work;
use super::{Action, Costs, Layout, Picker, Schedule, StageBytes};
use crate::ids::{StageId, WorkerId};
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
                    Action::Share { .. } => held = held.saturating_add(bytes.gathered),
                    Action::Reshard { .. } => held = held.saturating_sub(bytes.gathered),
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
    let work = Work {
        layout: &schedule.layout,
        microbatch_assignment: &schedule.microbatch_assignment,
        microbatches: schedule.microbatches,
    };
    let microbatch_order = work.microbatch_order();
    let pickers =
        schedule.workers.iter().map(|list| Picker::new(list, &schedule.order, &microbatch_order, awaited)).collect();
    play(&work, pickers, costs)
}
