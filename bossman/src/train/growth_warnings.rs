//! Warns of workers that wait and are not taken in. `RunGrowth` of `pipeline` decides the growth of
//! a run.

use crate::events::Events;
use crate::output;
use crate::tuning::replica_devices::device_kind;
use link::WorkerInfo;
use pipeline::recovery::Problem;
use std::collections::VecDeque;

/// The most characters of a machine's name.
const MAX_NAME: usize = 100;
/// The most warnings that are remembered, so that they are not repeated.
const MOST_TOLD: usize = 16;

/// The warnings that workers wait and are not taken in.
#[derive(Default)]
pub(super) struct GrowthWarnings {
    /// The last ones that the user was told.
    told: VecDeque<String>,
}

impl GrowthWarnings {
    /// Warns of these problems, unless the user was told the same lately. An unfit worker may be
    /// started again and again.
    pub(super) fn tell(&mut self, problems: &[Problem<WorkerInfo>], events: &Events) {
        for warning in problems.iter().map(warning) {
            if self.is_news(&warning) {
                events.warn(warning);
            }
        }
    }

    fn is_news(&mut self, warning: &str) -> bool {
        if self.told.iter().any(|told| told == warning) {
            return false;
        }
        self.told.push_back(warning.to_string());
        let older = self.told.len().saturating_sub(MOST_TOLD);
        self.told.drain(..older);
        true
    }
}

/// The warning that workers wait and are not taken in.
fn warning(problem: &Problem<WorkerInfo>) -> String {
    match problem {
        Problem::Unfit { worker, number, reason } => format!(
            "{} waits and is not taken in: as worker {number} of a larger session it would not \
             fit: {reason}",
            name(worker)
        ),
        Problem::AllUnfit { workers, from, reason } => {
            let names: Vec<_> = workers.iter().map(name).collect();
            format!(
                "{} wait and are not taken in: with them, from worker {from} on, a session would \
                 not fit: {reason}",
                names.join(", ")
            )
        }
        Problem::TooFew { waiting: 1, workers } => {
            format!("1 worker waits; the run can continue with {workers}")
        }
        Problem::TooFew { waiting, workers } => {
            format!("{waiting} workers wait; the run can continue with {workers}")
        }
    }
}

/// Names a worker that has no number yet.
fn name(worker: &WorkerInfo) -> String {
    let host = output::printable(&worker.host, MAX_NAME);
    format!("the worker on {host} ({})", device_kind(worker))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(host: &str, device: &str) -> WorkerInfo {
        WorkerInfo { host: host.into(), device: device.into(), ..WorkerInfo::default() }
    }

    #[test]
    fn a_warning_tells_why_workers_are_not_taken_in() {
        let (cpu, gpu) = (worker("host7", "cpu"), worker("host\n3", "cuda:0"));
        let reason = || "worker 3 is unlike".to_string();
        let alone = Problem::Unfit { worker: gpu.clone(), number: 2, reason: reason() };
        let all = Problem::AllUnfit { workers: vec![cpu, gpu], from: 2, reason: reason() };
        for (problem, text) in [
            (
                alone,
                "the worker on host 3 (cuda) waits and is not taken in: as worker 2 of a larger \
                 session it would not fit: worker 3 is unlike",
            ),
            (
                all,
                "the worker on host7 (cpu), the worker on host 3 (cuda) wait and are not taken \
                 in: with them, from worker 2 on, a session would not fit: worker 3 is unlike",
            ),
            (
                Problem::TooFew { waiting: 1, workers: 4 },
                "1 worker waits; the run can continue with 4",
            ),
            (
                Problem::TooFew { waiting: 2, workers: 5 },
                "2 workers wait; the run can continue with 5",
            ),
        ] {
            assert_eq!(warning(&problem), text);
        }
    }
    #[test]
    fn a_warning_is_told_once_and_few_are_remembered() {
        let mut warnings = GrowthWarnings::default();
        assert!(warnings.is_news("a") && !warnings.is_news("a"));
        assert!((0..1000).all(|n| warnings.is_news(&n.to_string())));
        assert_eq!(warnings.told.len(), MOST_TOLD);
        assert!(!warnings.is_news("999") && warnings.is_news("a"));
    }

    #[test]
    fn a_worker_that_is_started_again_and_again_is_told_of_once() {
        let mut warnings = GrowthWarnings::default();
        let news = (1..4).map(|process| {
            let worker = WorkerInfo { process, ..worker("host7", "cpu") };
            let unfit = Problem::Unfit { worker, number: 1, reason: "too little memory".into() };
            warnings.is_news(&warning(&unfit))
        });
        assert_eq!(news.collect::<Vec<_>>(), [true, false, false]);
    }
}
