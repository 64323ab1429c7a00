//! Chooses among the workers that wait those with which a run can go on.

use crate::output;
use crate::tuning::replica_devices::device_kind;
use crate::Builder;
use link::{Nccl, WorkerInfo};
use pipeline::recovery::FitsBeside;
use std::cmp::Reverse;
use std::slice::from_ref;

/// The most waiting workers that are checked one by one, before the others are chosen from anew.
const MOST_CHECKED_ALONE: usize = 8;
/// The most characters of a machine's name.
const MAX_NAME: usize = 100;

/// Whether a session can start on certain workers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Check {
    Fits,
    /// There is no plan for so many workers, which is no worker's fault.
    NoPlan,
    /// There is a plan, but not with these workers, for this reason.
    Unfit(String),
}

impl Check {
    /// Checks with the settings of a session.
    pub(super) fn of(builder: &Builder, members: &[WorkerInfo]) -> Self {
        if builder.check(members.len()).is_err() {
            return Check::NoPlan;
        }
        let checked = builder.check_on(members);
        checked.map_or_else(|problem| Check::Unfit(problem.to_string()), |()| Check::Fits)
    }
}

/// Judges a worker beside others, with the settings of a session of at most `most` workers.
pub(super) fn fits_beside(builder: Builder, most: usize) -> FitsBeside<WorkerInfo> {
    Box::new(move |worker: &WorkerInfo, others: &[WorkerInfo]| {
        smallest_session(worker, others, most, |members| Check::of(&builder, members)).is_some()
    })
}

/// The workers of the smallest session that could start on the others and this worker. If there is
/// no plan for so many, more like this one are to come. `None` if they would not fit.
fn smallest_session(
    worker: &WorkerInfo,
    others: &[WorkerInfo],
    most: usize,
    check: impl Fn(&[WorkerInfo]) -> Check,
) -> Option<usize> {
    let mut members = others.to_vec();
    let mut next = worker.clone();
    while members.len() < most {
        members.push(next);
        next = another(worker, members.len());
        match check(&members) {
            Check::NoPlan => {}
            Check::Fits => return Some(members.len()),
            Check::Unfit(_) => return None,
        }
    }
    None
}

/// One more worker like this one, on a device of its own.
fn another(like: &WorkerInfo, number: usize) -> WorkerInfo {
    let mut info = WorkerInfo { host: format!("{}/{number}", like.host), ..like.clone() };
    if let Nccl::Here(nccl) = &mut info.nccl {
        nccl.gpu = format!("{}/{number}", nccl.gpu);
    }
    info
}

/// The workers of a run, and those that could join it.
pub(super) struct Candidates {
    /// Those of the run, and behind them the others, the best first.
    members: Vec<WorkerInfo>,
    /// The numbers of them on which a larger session can start, ascending.
    fitting: Vec<usize>,
    /// The workers beside which no session can start.
    pub(super) unfit: Vec<WorkerInfo>,
    /// Why workers are not taken in, for the user.
    pub(super) problems: Vec<String>,
}

impl Candidates {
    /// Chooses from those that wait, for a run of at most `most` workers.
    pub(super) fn choose(
        known: &[WorkerInfo],
        waiting: &[&WorkerInfo],
        most: usize,
        check: impl Fn(&[WorkerInfo]) -> Check,
    ) -> Self {
        let members = known.iter().chain(best_first(known, waiting)).cloned().collect();
        let (fitting, unfit, problems) = (Vec::new(), Vec::new(), Vec::new());
        let mut chosen = Candidates { members, fitting, unfit, problems };
        loop {
            let problem = chosen.find_fitting(known.len(), most, &check);
            let fit = chosen.fitting.last().copied().unwrap_or(known.len());
            let is_whole = fit >= most.min(chosen.members.len());
            if is_whole || !chosen.remove_unfit(fit, &check) {
                match problem {
                    Some(problem) => chosen.note_problem_of_all(known.len(), &problem),
                    None => chosen.note_missing(known.len(), most, &check),
                }
                return chosen;
            }
        }
    }

    /// Whether a session can start on this number of workers.
    pub(super) fn fits(&self, workers: usize) -> bool {
        self.fitting.contains(&workers)
    }

    /// Those that join a run of `present` workers, so that it has this number.
    pub(super) fn newcomers(self, present: usize, workers: usize) -> Vec<WorkerInfo> {
        let newcomers = workers.saturating_sub(present);
        self.members.into_iter().skip(present).take(newcomers).collect()
    }

    /// Finds the numbers that fit. Returns why the largest that does not fit does not.
    fn find_fitting(
        &mut self,
        present: usize,
        most: usize,
        check: impl Fn(&[WorkerInfo]) -> Check,
    ) -> Option<String> {
        self.fitting.clear();
        let mut problem = None;
        for workers in present + 1..=most.min(self.members.len()) {
            match self.members.get(..workers).map(&check) {
                Some(Check::Fits) => self.fitting.push(workers),
                Some(Check::Unfit(reason)) => problem = Some(reason),
                Some(Check::NoPlan) | None => {}
            }
        }
        problem
    }

    /// Removes workers beside which the first `fit` of them cannot go on. Returns whether there
    /// were any.
    fn remove_unfit(&mut self, fit: usize, check: impl Fn(&[WorkerInfo]) -> Check) -> bool {
        let others = self.members.split_off(fit.min(self.members.len()));
        let (first, rest) = others.split_at(others.len().min(MOST_CHECKED_ALONE));
        let (mut left, before) = (Vec::new(), self.unfit.len());
        for worker in first {
            let session = [&self.members[..], from_ref(worker)].concat();
            let Check::Unfit(reason) = check(&session) else {
                left.push(worker.clone());
                continue;
            };
            let (name, number) = (name(worker), self.members.len());
            self.problems.push(format!(
                "{name} waits and is not taken in: as worker {number} of a larger session it would \
                 not fit: {reason}"
            ));
            self.unfit.push(worker.clone());
        }
        self.members.extend(left);
        self.members.extend_from_slice(rest);
        self.unfit.len() > before
    }

    /// Notes why the run does not grow, if no worker by itself is at fault.
    fn note_problem_of_all(&mut self, present: usize, problem: &str) {
        if !self.fitting.is_empty() || !self.unfit.is_empty() {
            return;
        }
        let names: Vec<_> = self.members.iter().skip(present).map(name).collect();
        self.problems.push(format!(
            "{} wait and are not taken in: with them, from worker {present} on, a session would \
             not fit: {problem}",
            names.join(", ")
        ));
    }

    /// Notes how many workers the run needs, if so few of those that wait make no larger session.
    fn note_missing(
        &mut self,
        present: usize,
        most: usize,
        check: impl Fn(&[WorkerInfo]) -> Check,
    ) {
        let waiting = self.members.len().saturating_sub(present);
        let Some(last) = self.members.last().filter(|_| self.fitting.is_empty() && waiting > 0)
        else {
            return;
        };
        let next = another(last, self.members.len());
        let Some(workers) = smallest_session(&next, &self.members, most, check) else { return };
        let wait = match waiting {
            1 => "1 worker waits".to_string(),
            _ => format!("{waiting} workers wait"),
        };
        self.problems.push(format!("{wait}; the run can continue with {workers}"));
    }
}

/// Those first that are most likely to fit: with a device as the run has it, then with more memory.
fn best_first<'a>(known: &[WorkerInfo], waiting: &[&'a WorkerInfo]) -> Vec<&'a WorkerInfo> {
    let mut sorted = waiting.to_vec();
    sorted.sort_by_cached_key(|worker| {
        let kind = device_kind(worker);
        let is_unlike = !known.iter().any(|one| device_kind(one) == kind);
        (is_unlike, Reverse(worker.memory_bytes))
    });
    sorted
}

/// Names a worker that has no number yet.
fn name(worker: &WorkerInfo) -> String {
    let host = output::printable(&worker.host, MAX_NAME);
    format!("the worker on {host} ({})", device_kind(worker))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn worker(process: u32, memory: u64) -> WorkerInfo {
        let (host, memory_bytes) = (format!("host{process}"), Some(memory));
        WorkerInfo { process, host, memory_bytes, ..WorkerInfo::default() }
    }

    fn gpu(process: u32, memory: u64) -> WorkerInfo {
        WorkerInfo { device: "cuda:0".into(), ..worker(process, memory) }
    }

    fn processes<'a>(workers: impl IntoIterator<Item = &'a WorkerInfo>) -> Vec<u32> {
        workers.into_iter().map(|info| info.process).collect()
    }

    /// Chooses from those that wait for a run of two workers that had five.
    fn choose(waiting: &[WorkerInfo], check: impl Fn(&[WorkerInfo]) -> Check) -> Candidates {
        let known = [worker(1, 8), worker(2, 8)];
        let waiting: Vec<_> = waiting.iter().collect();
        Candidates::choose(&known, &waiting, 5, check)
    }

    /// Every worker has a CPU and eight bytes or more.
    fn alike(workers: &[WorkerInfo]) -> Check {
        match workers.iter().position(|info| info.device != "cpu" || info.memory_bytes < Some(8)) {
            Some(place) => Check::Unfit(format!("worker {place} is unlike")),
            None => Check::Fits,
        }
    }

    /// The same, for an even number of workers.
    fn pairs(workers: &[WorkerInfo]) -> Check {
        if workers.len().is_multiple_of(2) {
            alike(workers)
        } else {
            Check::NoPlan
        }
    }

    type Expected<'a> = (&'a [usize], &'a [u32], &'a [u32]);

    #[test]
    fn an_unfit_worker_does_not_keep_out_a_fit_one() {
        let (fit, other) = (worker(7, 8), worker(8, 16));
        let cases: [(&[WorkerInfo], Expected<'_>); 6] = [
            (&[], (&[], &[], &[])),
            (&[fit.clone(), other.clone()], (&[3, 4], &[8, 7], &[])),
            (&[gpu(3, 99), fit.clone()], (&[3], &[7], &[3])),
            (&[worker(3, 1), fit.clone(), other.clone()], (&[3, 4], &[8, 7], &[3])),
            (&[worker(3, 1), gpu(4, 8)], (&[], &[], &[3, 4])),
            // The run needs no more than three.
            (&[worker(3, 8), worker(4, 8), worker(5, 8), gpu(6, 8)], (&[3, 4, 5], &[3, 4, 5], &[])),
        ];
        for (waiting, (fitting, newcomers, unfit)) in cases {
            let chosen = choose(waiting, alike);
            assert_eq!(chosen.fitting, fitting);
            assert_eq!(processes(&chosen.unfit), unfit);
            assert_eq!(chosen.problems.len(), unfit.len(), "{:?}", chosen.problems);
            let most = chosen.fitting.last().copied().unwrap_or(2);
            assert_eq!(processes(&chosen.newcomers(2, most)), newcomers);
        }
    }

    #[test]
    fn a_number_without_a_plan_is_no_workers_fault() {
        let chosen = choose(&[gpu(3, 99), worker(7, 8), worker(8, 8)], pairs);
        assert_eq!((&chosen.fitting[..], chosen.unfit.len()), (&[4][..], 0));
        assert!(chosen.fits(4) && !chosen.fits(3) && !chosen.fits(5));
        assert_eq!(processes(&chosen.newcomers(2, 4)), [7, 8]);
        let chosen = choose(&[worker(7, 8)], pairs);
        assert!(chosen.fitting.is_empty() && chosen.unfit.is_empty());
        assert_eq!(chosen.problems, ["1 worker waits; the run can continue with 4"]);
        let chosen = choose(&[worker(7, 8), gpu(3, 99)], pairs);
        assert!(chosen.fitting.is_empty() && chosen.unfit.is_empty());
        assert_eq!(
            chosen.problems,
            ["the worker on host7 (cpu), the worker on host3 (cuda) wait and are not taken in: \
              with them, from worker 2 on, a session would not fit: worker 3 is unlike"]
        );
    }

    /// The worker was unfit beside others.
    #[test]
    fn a_worker_is_judged_beside_those_that_are_here() {
        fn fits(
            worker: WorkerInfo,
            others: &[WorkerInfo],
            check: impl Fn(&[WorkerInfo]) -> Check,
        ) -> bool {
            smallest_session(&worker, others, 4, check).is_some()
        }
        let (cpu, cpus) = (worker(1, 8), [worker(1, 8), worker(2, 8)]);
        assert!(fits(worker(7, 8), &cpus, alike) && !fits(worker(7, 7), &cpus, alike));
        // There is no plan for three: a fourth one would be like the third.
        assert!(fits(worker(7, 8), &cpus, pairs) && !fits(gpu(7, 99), &cpus, pairs));
        assert!(!fits(gpu(7, 99), &[cpu], pairs));
        // Nobody is here, or there is no place.
        assert!(fits(worker(7, 8), &[], pairs) && !fits(worker(7, 7), &[], pairs));
        assert!(!fits(worker(7, 8), &[&cpus[..], &cpus[..]].concat(), alike));
        assert!(!fits(worker(7, 8), &cpus, |_| Check::NoPlan));
    }

    /// Workers of one device share its memory.
    #[test]
    fn those_that_are_to_come_have_devices_of_their_own() {
        let apart = |workers: &[WorkerInfo]| {
            let hosts: BTreeSet<_> = workers.iter().map(|info| &info.host).collect();
            match hosts.len() == workers.len() {
                true => pairs(workers),
                false => Check::Unfit("two share a device".into()),
            }
        };
        let problems = choose(&[worker(7, 8)], apart).problems;
        assert_eq!(problems, ["1 worker waits; the run can continue with 4"]);
        let cpus = [worker(1, 8), worker(2, 8)];
        assert_eq!(smallest_session(&worker(7, 8), &cpus, 4, apart), Some(4));
    }

    /// The user learns how many are missing, unless no number helps.
    #[test]
    fn so_few_that_there_is_no_plan_learn_for_how_many_there_is_one() {
        let fives = |workers: &[WorkerInfo]| match workers.len() {
            5 => alike(workers),
            _ => Check::NoPlan,
        };
        let chosen = choose(&[worker(7, 8), worker(8, 8)], fives);
        assert_eq!(chosen.problems, ["2 workers wait; the run can continue with 5"]);
        assert!(choose(&[worker(7, 8)], |_| Check::NoPlan).problems.is_empty());
        assert!(choose(&[], fives).problems.is_empty());
        // Nobody like this one helps.
        assert!(choose(&[gpu(7, 99)], fives).problems.is_empty());
    }

    #[test]
    fn many_unfit_workers_do_not_keep_out_a_fit_one() {
        // They sort first, because they have more memory.
        let check = |workers: &[WorkerInfo]| match workers.iter().all(|info| info.process < 10) {
            true => Check::Fits,
            false => Check::Unfit("too old".into()),
        };
        let waiting: Vec<_> = (10..40).map(|n| worker(n, 99)).chain([worker(7, 8)]).collect();
        let chosen = choose(&waiting, check);
        assert_eq!((&chosen.fitting[..], chosen.unfit.len()), (&[3][..], 30));
        assert_eq!(processes(&chosen.newcomers(2, 3)), [7]);
    }
}
