//! Everything that can go wrong on the user's side.

use crate::data::DataError;
use pipeline::message::FailureKind;
use thiserror::Error;

/// An error of the BossMan API: what, where, what was expected and what to do.
///
/// ```
/// use bossman::{BossManError, Failure, FailureKind};
///
/// fn worker_was_out_of_memory(error: &BossManError) -> bool {
///     matches!(error, BossManError::Worker(failure) if failure.kind == FailureKind::OutOfMemory)
/// }
/// let other = BossManError::Worker(Failure::new("no reason"));
/// assert!(!worker_was_out_of_memory(&other));
/// ```
#[derive(Debug, Error)]
pub enum BossManError {
    /// The model file is wrong.
    #[error(transparent)]
    Model(#[from] layerspec::SpecError),
    /// The model cannot be cut as asked.
    #[error(transparent)]
    Plan(#[from] pipeline::plan::PlanError),
    /// Connections, keys or ports.
    #[error(transparent)]
    Link(#[from] link::LinkError),
    /// A worker failed or is lost.
    #[error(transparent)]
    Worker(#[from] pipeline::message::Failure),
    /// libtorch refused a tensor here, on the boss.
    #[error(transparent)]
    Tensor(#[from] tensor::TensorError),
    /// A tensor given to the model does not fit it.
    #[error("input `{name}`: {problem}")]
    Input {
        /// The model's input.
        name: String,
        /// The expectation and the actual value.
        problem: String,
    },
    /// Replicas of a stage have come apart: a machine computes wrongly, or not as the others do.
    /// The step is done.
    #[error(
        "`{parameter}` of {stage} is not the same on {} as on {} after {updates} optimizer steps: \
         replicas must compute alike, so take machines with the same kind of processor and as many \
         threads, or leave one out", workers.1, workers.0
    )]
    ReplicasDiffer {
        /// The stage.
        stage: pipeline::ids::StageId,
        /// The first of its parameters that differs: layer and name.
        parameter: String,
        /// Two workers that differ.
        workers: (pipeline::ids::WorkerId, pipeline::ids::WorkerId),
        /// The number of optimizer steps.
        updates: u64,
    },
    /// Called in the wrong order, or with something missing.
    #[error("{0}")]
    Usage(String),
    /// By prediction no schedule fits the workers' memory.
    #[error("{0}")]
    NoSchedule(String),
    /// Gradients are no finite numbers. The text tells whether weights have changed by them.
    #[error("{0}")]
    NotFinite(String),
    /// Weights do not fit the model. Holds every difference; the text shows the first few.
    #[error("the weights do not fit the model:\n  {}", first_of(.0))]
    StateDict(Vec<String>),
    /// A file cannot be read or written.
    #[error("{path}: {problem}")]
    File {
        /// Which file.
        path: String,
        /// The problem.
        problem: String,
    },
    /// The local worker processes cannot be started, or ended.
    #[error("{0}")]
    LocalWorkers(String),
}

/// The first differences, one a line, and a count of the rest.
fn first_of(differences: &[String]) -> String {
    const SHOWN: usize = 5;
    match differences.split_at_checked(SHOWN) {
        Some((first, rest)) if !rest.is_empty() => {
            format!("{}\n  and {} more", first.join("\n  "), rest.len())
        }
        _ => differences.join("\n  "),
    }
}

impl BossManError {
    /// Whether the request was refused before the workers received it, so that their state is
    /// unchanged.
    pub(crate) fn was_refused(&self) -> bool {
        matches!(self, BossManError::Worker(failure) if failure.is_before_start())
    }

    /// Whether a worker or a link was lost, so that the same call may succeed with the remaining
    /// workers. To continue, drop the [`crate::BossMan`], wait for workers on the same port (they
    /// join again), and restore the last state ([`crate::BossMan::restore`]).
    pub fn workers_were_lost(&self) -> bool {
        matches!(self, BossManError::Worker(failure) if failure.is_loss())
    }

    /// Whether the loss or gradients were no finite numbers, so that training diverged or the data
    /// has such numbers. To continue, restore an earlier state ([`crate::BossMan::restore`]).
    pub fn is_not_finite(&self) -> bool {
        match self {
            BossManError::NotFinite(_) => true,
            BossManError::Worker(failure) => failure.kind == FailureKind::NotFinite,
            _ => false,
        }
    }

    /// An I/O error of a file, with a remedy.
    pub(crate) fn io(path: &std::path::Path, e: &std::io::Error) -> Self {
        DataError::io(path, e).into()
    }

    pub(crate) fn file(path: &std::path::Path, problem: impl ToString) -> Self {
        BossManError::File { path: path.display().to_string(), problem: problem.to_string() }
    }
}

impl From<DataError> for BossManError {
    fn from(error: DataError) -> Self {
        match error {
            DataError::File { path, problem } => BossManError::File { path, problem },
            DataError::Usage(problem) => BossManError::Usage(problem),
            DataError::Tensor(error) => BossManError::Tensor(error),
        }
    }
}
