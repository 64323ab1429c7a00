//! The time of each action, under given costs.

use super::{Action, Layout, StageBytes};
use crate::ids::{StageId, WorkerId};
use std::fmt;

/// An action with its start and end.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Interval {
    /// The action.
    pub action: Action,
    /// The start.
    pub start: u64,
    /// The end.
    pub end: u64,
}

/// Every action of every worker with its time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Timeline {
    /// The actions of every worker, in order.
    pub workers: Vec<Vec<Interval>>,
    /// The time from the call to its answer: the command's way to the workers, all actions, and the
    /// answer's way back.
    pub step_time: u64,
}

impl Timeline {
    /// The start of the first action. Until then the command and the batch are in flight.
    pub fn begin(&self) -> u64 {
        self.workers.iter().flatten().map(|i| i.start).min().unwrap_or(0)
    }

    /// The end of the last action.
    pub fn end(&self) -> u64 {
        self.workers.iter().flatten().map(|i| i.end).max().unwrap_or(0)
    }

    /// The same timeline, with the first action's start at 0.
    pub fn from_begin(&self) -> Timeline {
        let begin = self.begin();
        let moved = |i: &Interval| Interval { start: i.start - begin, end: i.end - begin, ..*i };
        let workers = self.workers.iter().map(|list| list.iter().map(moved).collect()).collect();
        Timeline { workers, step_time: self.step_time }
    }

    /// The same timeline, with every time divided by `unit`.
    pub fn in_units(&self, unit: u64) -> Timeline {
        let unit = unit.max(1);
        let scaled = |i: &Interval| Interval { start: i.start / unit, end: i.end / unit, ..*i };
        let workers = self.workers.iter().map(|list| list.iter().map(scaled).collect()).collect();
        Timeline { workers, step_time: self.step_time / unit }
    }

    /// For every worker, the share of the whole time in which it waits, from 0 to 1.
    pub fn bubble(&self) -> Vec<f64> {
        let end = self.end().max(1) as f64;
        let busy = |list: &Vec<Interval>| list.iter().map(|i| i.end - i.start).sum::<u64>() as f64;
        self.workers.iter().map(|list| 1.0 - busy(list) / end).collect()
    }

    /// The most microbatches that a stage holds at one time, also those between the halves of their
    /// backward pass.
    pub fn peak_held(&self, stage: StageId) -> usize {
        let (mut held, mut peak) = (0usize, 0);
        for interval in self.workers.iter().flatten().filter(|i| i.action.stage() == stage) {
            match interval.action {
                Action::Forward { .. } => held += 1,
                Action::Backward { .. } | Action::BackwardWeight { .. } => {
                    held = held.saturating_sub(1)
                }
                _ => {}
            }
            peak = peak.max(held);
        }
        peak
    }

    /// For every worker, the most bytes that it holds at one time: permanent memory, and that of
    /// its microbatches. Tensors in flight are not counted.
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
                    Action::BackwardInput { .. } => {
                        held = held.saturating_sub(bytes.held) + bytes.held_between
                    }
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
    /// The next action of each worker that is stuck.
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
