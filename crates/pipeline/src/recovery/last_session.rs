//! The last session of a run, and the workers that the next one is to have.

use super::FailedSession;

/// A worker process that asks for a place.
pub trait Applicant: Clone {
    /// Whether both are the same process.
    fn is_same_process(&self, other: &Self) -> bool;
    /// The random number of its process. The boss draws that of a local worker.
    fn instance(&self) -> u64;
}

/// Tells whether a session of the run could start on a worker and these others.
pub type FitsBeside<W> = Box<dyn Fn(&W, &[W]) -> bool + Send + Sync>;

/// The places that other workers do not get, as long as those that know the run may come again.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum KeptPlaces {
    /// One for each local worker. Otherwise the first that ask get a place.
    None,
    /// One for each worker that may remain.
    Remaining,
    /// All.
    All,
}

/// The last session of a run, and the workers that the next one is to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastSession<W> {
    /// The number of its workers.
    pub workers: usize,
    /// Those of them that may not come again.
    pub lost: usize,
    /// The waiting workers that the run takes in.
    pub newcomers: Vec<W>,
    /// The places that are kept for `known` and `newcomers`.
    pub kept: KeptPlaces,
    /// The workers that may hold state of the run.
    pub known: Vec<W>,
    /// Workers beside which no session of the run could start. They get no place, until too few
    /// others remain. Workers that are on none of these lists are strangers. They are judged when
    /// they ask.
    pub unfit: Vec<W>,
}

impl<W> LastSession<W> {
    /// A session of this many workers that has left no state with any of them, so that others are
    /// as good. But the `known` ones fit, because a session could start on them.
    pub fn without_state(workers: usize, known: Vec<W>) -> Self {
        let (newcomers, unfit) = (Vec::new(), Vec::new());
        LastSession { workers, lost: 0, newcomers, kept: KeptPlaces::None, known, unfit }
    }

    /// The facts on which the length of the wait depends. The boss starts `local` workers afresh.
    pub fn failed(&self, local: usize) -> FailedSession {
        let (workers, lost, newcomers) = (self.workers, self.lost, self.newcomers.len());
        FailedSession { workers, local, lost, newcomers }
    }

    /// The number of places that are kept in a run of `places` workers, `local` of them local.
    pub fn kept_places(&self, places: usize, local: usize) -> usize {
        match self.kept {
            KeptPlaces::None => local,
            KeptPlaces::Remaining => {
                local + self.workers.saturating_sub(local).saturating_sub(self.lost)
            }
            KeptPlaces::All => places,
        }
    }
}
