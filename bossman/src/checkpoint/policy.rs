//! The policy of checkpoints: when one is made, and which are kept.

use super::manifest::{MadeFor, Manifest, RunRecord};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The checkpoint settings of a run file.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// The folder of the checkpoints. `None`: `checkpoints` in the run's folder.
    pub dir: Option<String>,
    /// The interval between checkpoints.
    pub every: Every,
    /// The number of last checkpoints to keep.
    pub keep: usize,
    /// The measure of the best checkpoint, which is kept, too. A checkpoint is then made after each
    /// validation that is better than those before.
    pub keep_best: Option<KeepBest>,
    /// The number of checkpoints to keep for an audit, drawn evenly from all of the run.
    pub audit: usize,
}

/// When a checkpoint is due.
#[derive(Copy, Clone, Debug, PartialEq)]
pub enum Every {
    /// After this number of steps.
    Steps(u64),
    /// After the first step that ends this many minutes after the last checkpoint.
    Minutes(f64),
}

/// The measure of the best checkpoint.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum KeepBest {
    /// The lowest validation loss.
    Loss,
    /// The highest accuracy.
    Accuracy,
}

/// Counts towards the next checkpoint. Clones count together, so that the sessions of a run do.
#[derive(Clone)]
pub(crate) struct DueTimer {
    every: Every,
    last: Arc<Mutex<Instant>>,
}

impl DueTimer {
    pub(crate) fn start(every: Every) -> Self {
        DueTimer { every, last: Arc::new(Mutex::new(Instant::now())) }
    }

    /// Whether one is due after this step.
    pub(crate) fn is_due(&self, step: u64) -> bool {
        let mut last = self.last.lock();
        let due = match self.every {
            Every::Steps(steps) => step.is_multiple_of(steps.max(1)),
            Every::Minutes(minutes) => last.elapsed() >= Duration::from_secs_f64(minutes * 60.0),
        };
        if due {
            *last = Instant::now();
        }
        due
    }
}

impl Policy {
    /// The steps of the existing checkpoints that are not kept any more.
    pub(super) fn superfluous(&self, there: &[Manifest]) -> Vec<u64> {
        let mut steps: Vec<u64> = there.iter().map(|manifest| manifest.counters.step).collect();
        steps.sort();
        // One that was made for its score alone takes no place of those to resume from.
        let made_for = |to| there.iter().filter(move |manifest| manifest.run.made_for == to);
        let regular: BTreeSet<u64> =
            made_for(MadeFor::Resuming).map(|manifest| manifest.counters.step).collect();
        let last: BTreeSet<u64> = regular.iter().rev().take(self.keep.max(1)).copied().collect();
        let best = self.keep_best.and_then(|by| best(there, by));
        let audited = self.audited(made_for(MadeFor::Resuming));
        let is_kept = |step| last.contains(&step) || audited.contains(&step) || best == Some(step);
        steps.into_iter().filter(|step| !is_kept(*step)).collect()
    }

    /// The steps that are kept for an audit: those with the lowest lots. All that were deleted had
    /// higher ones, so these are drawn from all checkpoints that the run made.
    fn audited<'a>(&self, there: impl Iterator<Item = &'a Manifest>) -> BTreeSet<u64> {
        if self.audit == 0 {
            return BTreeSet::new();
        }
        let mut lots: Vec<_> = there.map(|of| (lot(of), of.counters.step)).collect();
        lots.sort();
        lots.into_iter().take(self.audit).map(|(_, step)| step).collect()
    }
}

/// The lot of a checkpoint: a hash of what identifies its run, and of its step.
fn lot(manifest: &Manifest) -> [u8; 32] {
    let mut hash = Sha256::new();
    for (name, value) in manifest.run.settings() {
        hash.update(format!("{name}: {value}\n"));
    }
    hash.update(manifest.counters.step.to_le_bytes());
    hash.finalize().into()
}

/// The checkpoint with the best validation, or the first of equally good ones.
fn best(there: &[Manifest], by: KeepBest) -> Option<u64> {
    let step = |manifest: &Manifest| manifest.counters.step;
    let rated = there
        .iter()
        .filter_map(|manifest| Some((step(manifest), rate(&manifest.run, step(manifest), by)?)));
    rated.max_by(|(a, one), (b, other)| one.total_cmp(other).then(b.cmp(a))).map(|(step, _)| step)
}

/// Rates the weights after this step by their validation, if there was one. More is better.
pub(crate) fn rate(run: &RunRecord, step: u64, by: KeepBest) -> Option<f64> {
    let validation = run.validation.filter(|validation| validation.step == step)?;
    match by {
        KeepBest::Loss => validation.loss.map(|loss| -loss),
        KeepBest::Accuracy => validation.accuracy,
    }
}

#[cfg(test)]
mod tests {
    use super::super::manifest::ScoreAtStep;
    use super::*;
    use crate::session::position::Counters;

    fn at(step: u64, loss: Option<f64>) -> Manifest {
        let validation =
            loss.map(|loss| ScoreAtStep { step, loss: Some(loss), accuracy: Some(1.0 - loss) });
        let (counters, run) = (
            Counters { step, ..Counters::default() },
            RunRecord { validation, ..RunRecord::default() },
        );
        Manifest::new(counters, run, Vec::new()).unwrap()
    }

    #[test]
    fn the_last_ones_and_the_best_are_kept() {
        let policy = |keep, keep_best| Policy {
            dir: None,
            every: Every::Steps(1),
            keep,
            keep_best,
            audit: 0,
        };
        let there = [
            at(10, Some(0.5)),
            at(30, None),
            at(20, Some(0.25)),
            at(40, Some(0.25)),
            at(50, Some(0.75)),
        ];
        assert_eq!(policy(2, None).superfluous(&there), [10, 20, 30]);
        assert_eq!(policy(2, Some(KeepBest::Loss)).superfluous(&there), [10, 30]);
        assert_eq!(policy(1, Some(KeepBest::Accuracy)).superfluous(&there), [10, 30, 40]);
        assert_eq!(policy(0, None).superfluous(&there), [10, 20, 30, 40]);
        assert!(policy(9, None).superfluous(&there).is_empty());
    }

    /// A run that validates more often than it makes checkpoints would keep none to resume from.
    #[test]
    fn a_checkpoint_for_its_score_pushes_no_other_out() {
        let policy = Policy {
            dir: None,
            every: Every::Steps(1),
            keep: 2,
            keep_best: Some(KeepBest::Loss),
            audit: 0,
        };
        let for_best = |step, loss| {
            let Manifest { counters, run, .. } = at(step, Some(loss));
            let run = RunRecord { made_for: MadeFor::Best, ..run };
            Manifest::new(counters, run, Vec::new()).unwrap()
        };
        let mut there =
            vec![at(10, None), at(20, None), for_best(21, 0.5), for_best(22, 0.25), at(30, None)];
        assert_eq!(policy.superfluous(&there), [10, 21]);
        there.push(at(40, Some(0.125)));
        assert_eq!(policy.superfluous(&there), [10, 20, 21, 22]);
    }

    /// Pruned after each checkpoint, the drawn ones are those of all with the lowest lots.
    #[test]
    fn an_audit_draws_from_all_checkpoints() {
        let policy =
            Policy { dir: None, every: Every::Steps(1), keep: 1, keep_best: None, audit: 3 };
        let mut there: Vec<Manifest> = Vec::new();
        for step in 1..=40 {
            there.push(at(step, None));
            let superfluous = policy.superfluous(&there);
            there.retain(|manifest| !superfluous.contains(&manifest.counters.step));
        }
        let mut all: Vec<_> = (1..=40).map(|step| (lot(&at(step, None)), step)).collect();
        all.sort();
        let mut expected: Vec<u64> = all.iter().take(3).map(|(_, step)| *step).collect();
        expected.push(40);
        expected.sort();
        expected.dedup();
        let kept: Vec<u64> = there.iter().map(|manifest| manifest.counters.step).collect();
        assert_eq!(kept, expected);
        // Another run draws others.
        let run = RunRecord { seed: 1, ..RunRecord::default() };
        let counters = Counters { step: 1, ..Counters::default() };
        let other = Manifest::new(counters, run, Vec::new()).unwrap();
        assert_ne!(lot(&other), lot(&at(1, None)));
    }

    #[test]
    fn one_is_due_after_so_many_steps() {
        let due = DueTimer::start(Every::Steps(3));
        assert_eq!((1..=7).filter(|step| due.is_due(*step)).collect::<Vec<_>>(), [3, 6]);
        let due = DueTimer::start(Every::Minutes(1e9));
        assert!(!due.is_due(3));
        let due = DueTimer::start(Every::Minutes(0.0));
        assert!(due.is_due(3));
    }
}
