//! The last session of a run, whose workers join again.

use link::WorkerInfo;

/// The last session of a run, and the workers that the next one is to have.
pub(crate) struct LastSession {
    /// The number of its workers.
    pub(crate) workers: usize,
    /// Those of them that may not come again.
    pub(crate) lost: usize,
    /// The waiting workers that the run takes in.
    pub(crate) newcomers: Vec<WorkerInfo>,
    /// The places that are kept for `known` and `newcomers`.
    pub(crate) kept: KeptPlaces,
    /// The workers that may hold state of the run.
    pub(crate) known: Vec<WorkerInfo>,
    /// Workers beside which no session of the run could start. They get no place, until too few
    /// others remain.
    pub(crate) unfit: Vec<WorkerInfo>,
}

/// Tells whether a session of the run could start on a worker and these others.
pub(crate) type FitsBeside = Box<dyn Fn(&WorkerInfo, &[WorkerInfo]) -> bool + Send + Sync>;

/// The places that other workers do not get, as long as those that know the run may come again.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeptPlaces {
    /// None: the first that ask get a place.
    None,
    /// One for each worker that may remain.
    Remaining,
    /// All.
    All,
}
