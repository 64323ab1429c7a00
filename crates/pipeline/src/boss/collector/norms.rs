//! The norm of all gradients, from the sums of squares of each worker.

use crate::boss::request::RunRequest;
use crate::ids::{StageId, WorkerId};
use crate::norm::{Square, Squares};
use crate::plan::Plan;
use crate::schedule::Action;
use std::collections::BTreeSet;

/// The sums of squares that have arrived, and the workers that owe some.
pub(super) struct Norms {
    owing: BTreeSet<WorkerId>,
    squares: Squares,
    scale: f64,
    norm: Option<f64>,
    /// Whether every worker can update its parameters once all norms have arrived.
    commits: bool,
}

impl Norms {
    pub(super) fn of(run: &RunRequest, plan: &Plan, workers: &BTreeSet<WorkerId>) -> Self {
        let sends = |worker: &WorkerId| {
            let actions = run.actions.get(worker.0 as usize);
            actions.is_some_and(|list| list.iter().any(|a| matches!(a, Action::GradNorm { .. })))
        };
        Norms {
            owing: workers.iter().copied().filter(sends).collect(),
            squares: Squares::default(),
            scale: run.update.map_or(1.0, |update| update.scale),
            norm: None,
            commits: commits(run, plan),
        }
    }

    pub(super) fn is_owed_by(&self, worker: WorkerId) -> bool {
        self.owing.contains(&worker)
    }

    /// Whether the norms of every replica have arrived, and each has the data for its update.
    pub(super) fn is_committed(&self) -> bool {
        self.commits && self.norm.is_some()
    }

    /// The norm of all gradients before clipping, once it is known.
    pub(super) fn norm(&self) -> Option<f64> {
        self.norm
    }

    /// Takes a worker's sums. Returns the norm over all stages with the last of them.
    pub(super) fn take(
        &mut self,
        from: WorkerId,
        squares: Vec<Square>,
    ) -> Result<Option<f64>, String> {
        if !self.owing.remove(&from) {
            return Err("sent norms that nobody asked for".into());
        }
        self.squares.take(squares)?;
        if self.owing.is_empty() {
            self.norm = Some(self.squares.norm()? * self.scale.abs());
        }
        Ok(self.norm)
    }
}

/// Whether every replica of every stage computes the norm before its update. Tied parameters travel
/// only after that, so with them no worker can finish alone.
fn commits(run: &RunRequest, plan: &Plan) -> bool {
    let finds = |(stage, worker): (StageId, WorkerId)| {
        let list = run.actions.get(worker.0 as usize).map_or(&[][..], Vec::as_slice);
        list.contains(&Action::GradNorm { stage })
    };
    let all = plan
        .stage_placement
        .iter()
        .flat_map(|(stage, workers)| workers.iter().map(move |worker| (stage, *worker)));
    // Sharded parameters are updated by one replica, and the others depend on it.
    let alone =
        plan.sharding.is_none() && plan.stages.iter().all(|stage| stage.tied_copies.is_empty());
    alone && all.into_iter().all(finds)
}
