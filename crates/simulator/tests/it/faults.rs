//! The faults of a run, and their results.

use crate::math::Fake;
use pipeline::ids::WorkerId;
use pipeline::message::Failure;
use pipeline::task::Task;

/// The message of a failing task.
pub const MESSAGE: &str = "out of memory; use more microbatches";

/// The faults to inject, each once.
#[derive(Copy, Clone, Default)]
pub struct Faults {
    /// The event at which this worker vanishes.
    pub lose: Option<(u64, WorkerId)>,
    /// The event after which the first direct link breaks.
    pub break_link: Option<u64>,
    /// The number of the task that fails, counted from 1 over all workers.
    pub fail_task: Option<u64>,
}

/// Workers that are lost at any moment.
#[derive(Default)]
pub struct RandomFaults {
    /// The mean number of events between two losses of one or two workers.
    pub one_in: u64,
    /// The most losses that may still follow.
    pub left: u64,
    /// The results.
    pub losses: Vec<Loss>,
}

/// A moment at which workers were lost.
#[derive(Copy, Clone)]
pub struct Loss {
    pub at: u64,
    /// The number of lost workers, and of those that only fell silent.
    pub workers: usize,
    pub silent: usize,
    /// How often a stage had updated its parameters.
    pub updates: u64,
}

/// The faults so far.
#[derive(Default)]
pub struct Trouble {
    faults: Faults,
    pub lost: Option<WorkerId>,
    /// When the boss learned of it.
    pub known_lost: Option<u64>,
    pub broken: Option<(WorkerId, WorkerId)>,
    /// The failure that the user must read, except for the number of the step.
    pub failed: Option<Failure>,
    /// How often a stage updated its parameters.
    pub updates: u64,
    /// Tasks so far that could have failed.
    tasks: u64,
    /// The worker whose task failed, until it has cleaned up.
    void: Option<WorkerId>,
}

impl Trouble {
    pub fn new(faults: Faults) -> Self {
        Trouble { faults, ..Trouble::default() }
    }

    /// Ends all faults that have not happened yet.
    pub fn end_faults(&mut self) {
        self.faults = Faults::default();
    }

    /// The worker that vanishes at this event.
    pub fn lose_at(&mut self, event: u64) -> Option<WorkerId> {
        self.faults.lose.take_if(|(at, _)| *at == event).map(|(_, worker)| worker)
    }

    /// Whether a link is due to break.
    pub fn break_due(&self, event: u64) -> bool {
        self.broken.is_none() && self.faults.break_link.is_some_and(|at| at <= event)
    }

    /// The failure of a read, if it must fail.
    pub fn fail_read(&mut self, worker: WorkerId, microbatch: u32) -> Option<Failure> {
        self.tasks += 1;
        self.faults.fail_task.take_if(|at| *at == self.tasks)?;
        let action = Some("reading samples".to_string());
        let failure = Failure { action, microbatch: Some(microbatch), ..Failure::new(MESSAGE) };
        self.failed = Some(failure.on(worker));
        Some(Failure::new(MESSAGE))
    }

    /// The failure of this task, if it must fail.
    pub fn fail(&mut self, worker: WorkerId, task: &Task<Fake>) -> Option<Failure> {
        let (stage, action, microbatch) = match task {
            Task::Forward { stage, key, .. } => (Some(*stage), "forward", Some(key.index)),
            Task::Backward { stage, key, .. } => (Some(*stage), "backward", Some(key.index)),
            Task::BackwardWeight { stage, key, .. } => {
                (Some(*stage), "backward for weights", Some(key.index))
            }
            Task::Reduce { stage, .. } | Task::AllReduce { stage, .. } => {
                (Some(*stage), "reduction of gradients", None)
            }
            Task::TiedGrads { stage } => (Some(*stage), "handing over of tied gradients", None),
            Task::GradNorm { stage, .. } => (Some(*stage), "gradient norm", None),
            Task::OptimStep { stage, .. } => (Some(*stage), "optimizer step", None),
            Task::AllGather { stage, .. } => (Some(*stage), "gathering of parameters", None),
            Task::EmitShard { stage } => (Some(*stage), "sharing of parameters", None),
            Task::Reshard { stage } => (Some(*stage), "letting go of parameters", None),
            Task::UpdateTied { stage, .. } => (Some(*stage), "update of tied parameters", None),
            Task::Discard { .. } => {
                self.void.take_if(|void| *void == worker);
                return None; // clearing up cannot fail
            }
            _ => (None, "its task", None),
        };
        self.tasks += 1;
        if self.faults.fail_task.take_if(|at| *at == self.tasks).is_some() {
            let failure =
                Failure { stage, action: Some(action.into()), microbatch, ..Failure::new(MESSAGE) };
            self.void = Some(worker);
            self.failed = Some(failure.clone().on(worker));
            return Some(failure);
        }
        let updates = matches!(task, Task::OptimStep { .. });
        // It was submitted before the failure was known. Parameters do not change.
        let together = matches!(task, Task::AllGather { .. } | Task::AllReduce { .. });
        if (updates || together) && self.void == Some(worker) {
            return Some(Failure::new("an earlier task of this step failed"));
        }
        self.updates += u64::from(updates);
        None
    }
}
