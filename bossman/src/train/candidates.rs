//! Checks whether a session can start on certain workers, and tells the user why not.

use crate::output;
use crate::tuning::replica_devices::device_kind;
use crate::Builder;
use link::WorkerInfo;
use pipeline::recovery::{self, Check, FitsBeside, Problem};

/// The most characters of a machine's name.
const MAX_NAME: usize = 100;

/// Checks with the settings of a session.
pub(super) fn check(builder: &Builder, members: &[WorkerInfo]) -> Check {
    if builder.check(members.len()).is_err() {
        return Check::NoPlan;
    }
    let checked = builder.check_on(members);
    checked.map_or_else(|problem| Check::Unfit(problem.to_string()), |()| Check::Fits)
}

/// Judges a worker beside others, with the settings of a session of at most `most` workers.
pub(super) fn fits_beside(builder: Builder, most: usize) -> FitsBeside<WorkerInfo> {
    recovery::fits_beside(most, move |members: &[WorkerInfo]| check(&builder, members))
}

/// The warning that workers wait and are not taken in.
pub(super) fn warning(problem: &Problem<WorkerInfo>) -> String {
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
}
