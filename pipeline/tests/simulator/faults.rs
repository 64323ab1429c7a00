//! What is made to go wrong in a run, and what then did.

use crate::math::Fake;
use pipeline::ids::WorkerId;
use pipeline::message::Failure;
use pipeline::task::Task;

/// What a failing task says.
pub(crate) const MESSAGE: &str = "out of memory; use more microbatches";

/// Plans for trouble, each carried out once, and what came of them.
#[derive(Default)]
pub(crate) struct Faults {
    /// At this event this worker vanishes.
    pub(crate) lose: Option<(u64, WorkerId)>,
    /// At this event a direct link breaks.
    pub(crate) break_link: Option<u64>,
    /// The task of this number fails, counted over all workers.
    pub(crate) fail_task: Option<u64>,

    pub(crate) lost: Option<WorkerId>,
    /// When the boss learned of it.
    pub(crate) known_lost: Option<u64>,
    pub(crate) broken: Option<(WorkerId, WorkerId)>,
    /// The failure that the user must read, but for the number of the step.
    pub(crate) failed: Option<Failure>,
    /// How many tasks that can fail there were.
    pub(crate) tasks: u64,
    /// Optimizer steps that were carried out.
    pub(crate) steps: u64,
}

impl Faults {
    pub(crate) fn lose_at(&mut self, event: u64) -> Option<WorkerId> {
        self.lose.take_if(|(at, _)| *at == event).map(|(_, worker)| worker)
    }

    pub(crate) fn break_at(&mut self, event: u64) -> bool {
        self.break_link.take_if(|at| *at == event).is_some()
    }

    /// Whether this task fails.
    pub(crate) fn fail(&mut self, worker: WorkerId, task: &Task<Fake>) -> Option<Failure> {
        let (stage, action, microbatch) = match task {
            Task::Forward { stage, key, .. } => (Some(*stage), "forward", Some(key.index)),
            Task::Backward { stage, key, .. } => (Some(*stage), "backward", Some(key.index)),
            Task::OptimStep { stage } => (Some(*stage), "optimizer step", None),
            Task::Discard { gradients: true, .. } => return None, // clearing up cannot fail
            _ => (None, "its task", None),
        };
        self.tasks += 1;
        if self.fail_task.take_if(|at| *at == self.tasks).is_some() {
            let action = Some(action.to_string());
            let failure = Failure { stage, action, microbatch, ..Failure::new(MESSAGE) };
            self.failed = Some(failure.clone().on(worker));
            return Some(failure);
        }
        self.steps += u64::from(matches!(task, Task::OptimStep { .. }));
        None
    }
}
