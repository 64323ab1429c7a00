//! Refuses a schedule that is incomplete, out of order, would wait forever, or needs more memory
//! than there is.

use super::{
    timeline, Action, Costs, Deadlock, Layout, Placement, Schedule, ScheduleKind, StageBytes,
    Timeline,
};
use crate::ids::{StageId, WorkerId};
use crate::replicas::Reduction;
use std::collections::BTreeSet;
use std::fmt;
use thiserror::Error;

/// Why a schedule is refused.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ScheduleError {
    /// The kind does not work with this placement.
    #[error(
        "schedule {kind} wants {wanted}; the plan has {stages} stages on {workers} workers, \
         placed otherwise: choose another schedule, or cut the model for this one"
    )]
    Placement {
        /// Which kind.
        kind: ScheduleKind,
        /// The placement that it needs.
        wanted: Placement,
        /// The number of stages.
        stages: usize,
        /// The number of workers.
        workers: usize,
    },
    /// There is nothing to do.
    #[error("a batch of no microbatches; cut it into at least one")]
    NoMicrobatches,
    /// An action occurs twice, on a worker without its stage, or for a microbatch outside the
    /// batch.
    #[error(
        "the {} of {}{} is misplaced: it belongs once, on the worker of its stage",
        .0.verb(), .0.stage(), microbatch(.0)
    )]
    Misplaced(Action),
    /// A backward pass is both whole and in halves, or in halves although nothing is trained.
    #[error("the {} of {}{} does not belong there", .0.verb(), .0.stage(), microbatch(.0))]
    Mixed(Action),
    /// An action is missing.
    #[error("the {} of {} is missing{}", .0.verb(), .0.stage(), microbatch(.0))]
    Missing(Action),
    /// The gradients of a stage's parameters are not in ascending order of microbatches.
    #[error("{0} does not take its backward passes in the order of microbatches")]
    Order(StageId),
    /// Replicas that shard parameters do not take their stages in the same order.
    #[error(
        "replicas of {0} do not take their stages in the same order, in which they gather \
         parameters; take `schedule: gpipe`"
    )]
    Visits(StageId),
    /// Parameters cannot be gathered if the order of passes is open.
    #[error(
        "schedule {0} leaves the order of passes open, and parameters are gathered in an order; \
         take `schedule: gpipe`"
    )]
    Unlisted(ScheduleKind),
    /// Parameters are not gathered before they are used, or not freed afterwards.
    #[error("{0} does not gather the parameters of its stages as its passes need them")]
    Gathering(WorkerId),
    /// The schedule cannot end.
    #[error("the schedule cannot end: {0}")]
    Deadlock(Deadlock),
    /// A worker would need more memory than it has, or several on one device would.
    #[error("{0}; take more microbatches, a schedule that holds fewer of them, or more workers")]
    Memory(MemoryShortage),
}

/// The memory that workers on one device would need, and what there is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryShortage {
    /// Which workers.
    pub workers: Vec<WorkerId>,
    /// The most bytes that they would hold.
    pub needed: u64,
    /// The most bytes that they may hold.
    pub available: u64,
}

impl fmt::Display for MemoryShortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (needed, available) = (mib(self.needed), self.available >> 20);
        match &self.workers[..] {
            [worker] => write!(f, "{worker} needs {needed} MiB of memory and has {available} MiB"),
            workers => {
                let names: Vec<_> = workers.iter().map(WorkerId::to_string).collect();
                write!(
                    f,
                    "{} together need {needed} MiB of memory, and their device has {available} MiB",
                    names.join(", ")
                )
            }
        }
    }
}

/// Workers on one device, and the bytes that it has for them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceMemory {
    /// The workers.
    pub workers: Vec<WorkerId>,
    /// The bytes.
    pub bytes: u64,
}

fn microbatch(action: &Action) -> String {
    action.microbatch().map(|m| format!(" for microbatch {m}")).unwrap_or_default()
}

fn mib(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 20)
}

/// Checks that every stage does all its work once and in order, and that the schedule ends. Returns
/// the timeline with textbook costs.
pub fn check(schedule: &Schedule) -> Result<Timeline, ScheduleError> {
    let (layout, microbatch_assignment) = (&schedule.layout, &schedule.microbatch_assignment);
    if schedule.microbatches == 0 {
        return Err(ScheduleError::NoMicrobatches);
    }
    let gathers = |action: &&Action| layout.gathers(action);
    let apart: Vec<Vec<Action>> = schedule
        .workers
        .iter()
        .map(|list| list.iter().filter(|action| !gathers(action)).copied().collect())
        .collect();
    let gathered = layout.gathered(apart.clone())?;
    if let Some(worker) =
        (0..gathered.len()).find(|worker| gathered[*worker] != schedule.workers[*worker])
    {
        return Err(ScheduleError::Gathering(WorkerId(worker as u16)));
    }
    let mut seen = BTreeSet::new();
    let mut last_backward = vec![None; layout.stages()];
    for (worker, list) in apart.iter().enumerate() {
        for action in list {
            let here = WorkerId(worker as u16);
            let assigned = match action.microbatch() {
                Some(m) => {
                    m < schedule.microbatches
                        && microbatch_assignment.worker(&layout.stage_placement, action.stage(), m)
                            == Some(here)
                }
                None => layout.stage_placement.has(action.stage(), here),
            };
            if !assigned || !seen.insert((here, *action)) {
                return Err(ScheduleError::Misplaced(*action));
            }
            if let Action::Backward { stage, microbatch }
            | Action::BackwardWeight { stage, microbatch } = *action
            {
                let last = &mut last_backward[stage.0 as usize];
                if last.is_some_and(|last| last > microbatch)
                    && schedule.reduction == Reduction::Sequential
                {
                    return Err(ScheduleError::Order(stage));
                }
                *last = Some(microbatch);
            }
        }
    }
    whole(schedule, &seen)?;
    timeline(schedule, &Costs::unit(layout.stages())).map_err(ScheduleError::Deadlock)
}

/// Checks that no action is missing or superfluous.
fn whole(schedule: &Schedule, seen: &BTreeSet<(WorkerId, Action)>) -> Result<(), ScheduleError> {
    let layout = &schedule.layout;
    let mut wanted = BTreeSet::new();
    for stage in (0..layout.stages() as u16).map(StageId) {
        for microbatch in 0..schedule.microbatches {
            let Some(worker) =
                schedule.microbatch_assignment.worker(&layout.stage_placement, stage, microbatch)
            else {
                continue;
            };
            let split = seen.contains(&(worker, Action::BackwardInput { stage, microbatch }));
            let passes = [Action::Forward { stage, microbatch }].into_iter();
            let passes = passes.chain(layout.backward(stage, microbatch, split));
            wanted.extend(passes.map(|action| (worker, action)));
        }
    }
    for endings in [layout.reduction(schedule.reduction), layout.ending(schedule.ending)] {
        for (worker, list) in endings.into_iter().enumerate() {
            wanted.extend(list.into_iter().map(|action| (WorkerId(worker as u16), action)));
        }
    }
    if let Some((_, action)) = wanted.iter().find(|action| !seen.contains(action)) {
        return Err(ScheduleError::Missing(*action));
    }
    match seen.iter().find(|action| !wanted.contains(action)) {
        Some((_, action)) => Err(ScheduleError::Mixed(*action)),
        None => Ok(()),
    }
}

/// Checks that no device has less memory than its workers need together.
pub fn check_memory(
    timeline: &Timeline,
    layout: &Layout,
    stages: &[StageBytes],
    devices: &[DeviceMemory],
) -> Result<(), ScheduleError> {
    let peaks = timeline.peak_bytes(layout, stages);
    for DeviceMemory { workers, bytes } in devices {
        let of = |worker: &WorkerId| peaks.get(usize::from(worker.0)).copied().unwrap_or(0);
        let needed = workers.iter().map(of).fold(0, u64::saturating_add);
        if needed > *bytes {
            let (workers, available) = (workers.clone(), *bytes);
            return Err(ScheduleError::Memory(MemoryShortage { workers, needed, available }));
        }
    }
    Ok(())
}
