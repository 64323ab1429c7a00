//! Chooses among the workers that wait those with which a run can go on.

use super::{Applicant, FitsBeside};
use std::cmp::Reverse;
use std::slice::from_ref;

/// The most waiting workers that are checked one by one, before the others are chosen from anew.
const MOST_CHECKED_ALONE: usize = 8;

/// A worker process that may join a run. Its device decides whether a session can start on it.
pub trait Candidate: Applicant + PartialEq {
    /// Whether both compute on devices of one kind.
    fn is_device_alike(&self, other: &Self) -> bool;
    /// The memory of its device in bytes, if known.
    fn memory_bytes(&self) -> Option<u64>;
    /// One more worker like this one, on a device of its own. The number tells it from others.
    fn another(&self, number: usize) -> Self;
}

/// Whether a session can start on certain workers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Check {
    /// It can.
    Fits,
    /// There is no plan for this number of workers, which is no worker's fault.
    NoPlan,
    /// There is a plan, but not with these workers, for this reason.
    Unfit(String),
}

/// Why waiting workers are not taken in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Problem<W> {
    /// A session with this worker as its worker `number` would not fit.
    Unfit {
        /// The worker that waits.
        worker: W,
        /// The number that it would have.
        number: usize,
        /// The reason that the check gave.
        reason: String,
    },
    /// A session with all of these would not fit, and no worker by itself is at fault.
    AllUnfit {
        /// The workers that wait.
        workers: Vec<W>,
        /// The number that the first of them would have.
        from: usize,
        /// The reason that the check gave.
        reason: String,
    },
    /// There is no plan for a session with these few.
    TooFew {
        /// The number of workers that wait.
        waiting: usize,
        /// The number of workers for which there is a plan.
        workers: usize,
    },
}

/// Judges a worker beside others, for a session of at most `most` workers.
pub fn fits_beside<W: Candidate>(
    most: usize,
    check: impl Fn(&[W]) -> Check + Send + Sync + 'static,
) -> FitsBeside<W> {
    Box::new(move |worker: &W, others: &[W]| {
        smallest_session(worker, others, most, &check).is_some()
    })
}

/// The workers of the smallest session that could start on the others and this worker. If there is
/// no plan for so many, or too little memory, more like this one are to come. `None` if they would
/// not fit, or if the others make a session that this worker would prevent.
fn smallest_session<W: Candidate>(
    worker: &W,
    others: &[W],
    most: usize,
    check: impl Fn(&[W]) -> Check,
) -> Option<usize> {
    let others_fit = !others.is_empty() && check(others) == Check::Fits;
    let mut members = others.to_vec();
    let mut next = worker.clone();
    while members.len() < most {
        members.push(next);
        next = worker.another(members.len());
        match check(&members) {
            Check::Fits => return Some(members.len()),
            Check::Unfit(_) if others_fit => return None,
            Check::NoPlan | Check::Unfit(_) => {}
        }
    }
    None
}

/// The workers of a run, and those that could join it.
pub(super) struct Candidates<W> {
    /// Those of the run, and behind them the others, the best first.
    members: Vec<W>,
    /// The numbers of them on which a larger session can start, ascending.
    fitting: Vec<usize>,
    /// The workers beside which no session can start.
    pub(super) unfit: Vec<W>,
    /// Why workers are not taken in.
    pub(super) problems: Vec<Problem<W>>,
}

impl<W: Candidate> Candidates<W> {
    /// Chooses from those that wait, for a run of at most `most` workers.
    pub(super) fn choose(
        known: &[W],
        waiting: &[&W],
        most: usize,
        check: impl Fn(&[W]) -> Check,
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
                    Some(reason) => chosen.note_problem_of_all(known.len(), reason),
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
    pub(super) fn newcomers(self, present: usize, workers: usize) -> Vec<W> {
        let newcomers = workers.saturating_sub(present);
        self.members.into_iter().skip(present).take(newcomers).collect()
    }

    /// Finds the numbers that fit. Returns why the largest that does not fit does not.
    fn find_fitting(
        &mut self,
        present: usize,
        most: usize,
        check: impl Fn(&[W]) -> Check,
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
    fn remove_unfit(&mut self, fit: usize, check: impl Fn(&[W]) -> Check) -> bool {
        let others = self.members.split_off(fit.min(self.members.len()));
        let (first, rest) = others.split_at(others.len().min(MOST_CHECKED_ALONE));
        let (mut left, before) = (Vec::new(), self.unfit.len());
        for worker in first {
            let session = [&self.members[..], from_ref(worker)].concat();
            let Check::Unfit(reason) = check(&session) else {
                left.push(worker.clone());
                continue;
            };
            let number = self.members.len();
            self.problems.push(Problem::Unfit { worker: worker.clone(), number, reason });
            self.unfit.push(worker.clone());
        }
        self.members.extend(left);
        self.members.extend_from_slice(rest);
        self.unfit.len() > before
    }

    /// Notes why the run does not grow, if no worker by itself is at fault.
    fn note_problem_of_all(&mut self, present: usize, reason: String) {
        if !self.fitting.is_empty() || !self.unfit.is_empty() {
            return;
        }
        let workers = self.members.iter().skip(present).cloned().collect();
        self.problems.push(Problem::AllUnfit { workers, from: present, reason });
    }

    /// Notes how many workers the run needs, if so few of those that wait make no larger session.
    fn note_missing(&mut self, present: usize, most: usize, check: impl Fn(&[W]) -> Check) {
        let waiting = self.members.len().saturating_sub(present);
        let Some(last) = self.members.last().filter(|_| self.fitting.is_empty() && waiting > 0)
        else {
            return;
        };
        let next = last.another(self.members.len());
        let Some(workers) = smallest_session(&next, &self.members, most, check) else { return };
        self.problems.push(Problem::TooFew { waiting, workers });
    }
}

/// Those first that are most likely to fit: with a device as the run has it, then with more memory.
fn best_first<'a, W: Candidate>(known: &[W], waiting: &[&'a W]) -> Vec<&'a W> {
    let mut sorted = waiting.to_vec();
    sorted.sort_by_cached_key(|worker| {
        let is_unlike = !known.iter().any(|one| one.is_device_alike(worker));
        (is_unlike, Reverse(worker.memory_bytes()))
    });
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[derive(Clone, PartialEq, Debug)]
    struct Process {
        process: u32,
        kind: &'static str,
        memory: u64,
        device: String,
    }

    impl Applicant for Process {
        fn is_same_process(&self, other: &Self) -> bool {
            self.process == other.process
        }

        fn instance(&self) -> u64 {
            u64::from(self.process)
        }
    }

    impl Candidate for Process {
        fn is_device_alike(&self, other: &Self) -> bool {
            self.kind == other.kind
        }

        fn memory_bytes(&self) -> Option<u64> {
            Some(self.memory)
        }

        fn another(&self, number: usize) -> Self {
            Process { device: format!("{}/{number}", self.device), ..self.clone() }
        }
    }

    fn worker(process: u32, memory: u64) -> Process {
        Process { process, kind: "cpu", memory, device: format!("device {process}") }
    }

    fn gpu(process: u32, memory: u64) -> Process {
        Process { kind: "cuda", ..worker(process, memory) }
    }

    fn processes<'a>(workers: impl IntoIterator<Item = &'a Process>) -> Vec<u32> {
        workers.into_iter().map(|info| info.process).collect()
    }

    /// The process of a problem that is about one worker.
    fn unfit_alone(problem: &Problem<Process>) -> Option<u32> {
        match problem {
            Problem::Unfit { worker, number: 2.., .. } => Some(worker.process),
            _ => None,
        }
    }

    /// Chooses from those that wait for a run of two workers that had five.
    fn choose(waiting: &[Process], check: impl Fn(&[Process]) -> Check) -> Candidates<Process> {
        let known = [worker(1, 8), worker(2, 8)];
        let waiting: Vec<_> = waiting.iter().collect();
        Candidates::choose(&known, &waiting, 5, check)
    }

    /// Every worker has a CPU and eight bytes or more.
    fn alike(workers: &[Process]) -> Check {
        match workers.iter().position(|info| info.kind != "cpu" || info.memory < 8) {
            Some(place) => Check::Unfit(format!("worker {place} is unlike")),
            None => Check::Fits,
        }
    }

    /// The same, for an even number of workers.
    fn pairs(workers: &[Process]) -> Check {
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
        let cases: [(&[Process], Expected<'_>); 6] = [
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
            let told: Vec<u32> = chosen.problems.iter().filter_map(unfit_alone).collect();
            assert_eq!((told.as_slice(), chosen.problems.len()), (unfit, unfit.len()));
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
        assert_eq!(chosen.problems, [Problem::TooFew { waiting: 1, workers: 4 }]);
        let chosen = choose(&[worker(7, 8), gpu(3, 99)], pairs);
        assert!(chosen.fitting.is_empty() && chosen.unfit.is_empty());
        let (workers, reason) = (vec![worker(7, 8), gpu(3, 99)], "worker 3 is unlike".into());
        assert_eq!(chosen.problems, [Problem::AllUnfit { workers, from: 2, reason }]);
    }

    /// The worker was unfit beside others.
    #[test]
    fn a_worker_is_judged_beside_those_that_are_here() {
        fn fits(worker: Process, others: &[Process], check: impl Fn(&[Process]) -> Check) -> bool {
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

    /// With fewer workers each one would need more memory than it has.
    #[test]
    fn a_worker_fits_if_more_like_it_make_a_session() {
        let memory = |workers: &[Process]| match workers.iter().map(|one| one.memory).sum() {
            32u64.. => Check::Fits,
            _ => Check::Unfit("too little memory".into()),
        };
        let cpus = [worker(1, 8), worker(2, 8)];
        assert_eq!(smallest_session(&worker(7, 8), &cpus, 4, memory), Some(4));
        assert_eq!(smallest_session(&worker(7, 16), &cpus, 4, memory), Some(3));
        assert_eq!(smallest_session(&worker(7, 8), &cpus, 3, memory), None);
        assert_eq!(smallest_session(&worker(7, 4), &cpus, 5, memory), None);
        // These two fit by themselves, and it must not keep them waiting for a fourth one.
        let large = [worker(1, 16), worker(2, 16)];
        let even = |workers: &[Process]| match workers.len().is_multiple_of(2) {
            true => memory(workers),
            false => Check::Unfit("an odd number".into()),
        };
        assert_eq!(smallest_session(&worker(7, 16), &large, 4, even), None);
    }

    /// Workers of one device share its memory.
    #[test]
    fn those_that_are_to_come_have_devices_of_their_own() {
        let apart = |workers: &[Process]| {
            let devices: BTreeSet<_> = workers.iter().map(|info| &info.device).collect();
            match devices.len() == workers.len() {
                true => pairs(workers),
                false => Check::Unfit("two share a device".into()),
            }
        };
        let problems = choose(&[worker(7, 8)], apart).problems;
        assert_eq!(problems, [Problem::TooFew { waiting: 1, workers: 4 }]);
        let cpus = [worker(1, 8), worker(2, 8)];
        assert_eq!(smallest_session(&worker(7, 8), &cpus, 4, apart), Some(4));
    }

    /// The user learns how many are missing, unless no number helps.
    #[test]
    fn so_few_that_there_is_no_plan_learn_for_how_many_there_is_one() {
        let fives = |workers: &[Process]| match workers.len() {
            5 => alike(workers),
            _ => Check::NoPlan,
        };
        let chosen = choose(&[worker(7, 8), worker(8, 8)], fives);
        assert_eq!(chosen.problems, [Problem::TooFew { waiting: 2, workers: 5 }]);
        assert!(choose(&[worker(7, 8)], |_| Check::NoPlan).problems.is_empty());
        assert!(choose(&[], fives).problems.is_empty());
        // Nobody like this one helps.
        assert!(choose(&[gpu(7, 99)], fives).problems.is_empty());
    }

    #[test]
    fn many_unfit_workers_do_not_keep_out_a_fit_one() {
        // They sort first, because they have more memory.
        let check = |workers: &[Process]| match workers.iter().all(|info| info.process < 10) {
            true => Check::Fits,
            false => Check::Unfit("too old".into()),
        };
        let waiting: Vec<_> = (10..40).map(|n| worker(n, 99)).chain([worker(7, 8)]).collect();
        let chosen = choose(&waiting, check);
        assert_eq!((&chosen.fitting[..], chosen.unfit.len()), (&[3][..], 30));
        assert_eq!(processes(&chosen.newcomers(2, 3)), [7]);
    }
}
