//! Refuses a schedule that is not whole, not in order, or would wait for ever.

use super::{timeline, Action, Costs, Deadlock, Schedule};
use crate::ids::StageId;
use std::collections::BTreeSet;
use thiserror::Error;

/// Why a schedule is refused.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ScheduleError {
    /// An action is there twice, on a worker that does not have its stage, or for a microbatch that
    /// the batch does not have.
    #[error("the {} of {}{} is misplaced: it belongs once, on the worker of its stage", .0.verb(), .0.stage(), microbatch(.0))]
    Misplaced(Action),
    /// An action is missing.
    #[error("the {} of {} is missing{}", .0.verb(), .0.stage(), microbatch(.0))]
    Missing(Action),
    /// A stage's backward passes are not in ascending order of microbatches.
    #[error("{0} does not take its backward passes in the order of microbatches")]
    Order(StageId),
    /// It cannot end.
    #[error("the schedule cannot end: {0}")]
    Deadlock(Deadlock),
}

fn microbatch(action: &Action) -> String {
    action.microbatch().map(|m| format!(" for microbatch {m}")).unwrap_or_default()
}

/// Checks that every stage does all its work once, in order, and that it ends.
pub fn check(schedule: &Schedule, edges: &[(StageId, StageId)]) -> Result<(), ScheduleError> {
    let mut seen = BTreeSet::new();
    let mut last_backward = vec![None; schedule.homes.len()];
    for (worker, list) in schedule.workers.iter().enumerate() {
        for action in list {
            let home = schedule.homes.get(action.stage().0 as usize);
            let in_batch = action.microbatch().is_none_or(|m| m < schedule.microbatches);
            if home.map(|w| w.0 as usize) != Some(worker) || !in_batch || !seen.insert(*action) {
                return Err(ScheduleError::Misplaced(*action));
            }
            if let Action::Backward { stage, microbatch } = *action {
                let last = &mut last_backward[stage.0 as usize];
                if last.is_some_and(|last| last > microbatch) {
                    return Err(ScheduleError::Order(stage));
                }
                *last = Some(microbatch);
            }
        }
    }
    for stage in (0..schedule.homes.len() as u16).map(StageId) {
        let passes = (0..schedule.microbatches)
            .flat_map(|microbatch| [Action::Forward { stage, microbatch }, Action::Backward { stage, microbatch }]);
        for action in passes.chain([Action::OptimStep { stage }]) {
            if !seen.contains(&action) {
                return Err(ScheduleError::Missing(action));
            }
        }
    }
    timeline(schedule, edges, &Costs::unit(schedule.homes.len())).map_err(ScheduleError::Deadlock)?;
    Ok(())
}
