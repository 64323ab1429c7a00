//! A worker's process, as the boss knows it.

use pipeline::recovery::{Applicant, Candidate, Check};

/// A worker's process.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Process {
    pub number: u64,
    /// The kind of its device. No session of two workers or more has devices of two kinds.
    pub device_kind: u64,
}

impl Applicant for Process {
    fn is_same_process(&self, other: &Self) -> bool {
        self.number == other.number
    }

    fn instance(&self) -> u64 {
        self.number
    }
}

impl Candidate for Process {
    fn is_device_alike(&self, other: &Self) -> bool {
        self.device_kind == other.device_kind
    }

    fn memory_bytes(&self) -> Option<u64> {
        None
    }

    fn another(&self, number: usize) -> Self {
        Process { number: u64::MAX - number as u64, ..*self }
    }
}

/// Whether a session can start on these processes, in a run with plans for these numbers.
pub fn check(sizes: &[usize], members: &[Process]) -> Check {
    let is_alike = |pair: &[Process]| pair[0].is_device_alike(&pair[1]);
    match sizes.contains(&members.len()) {
        false => Check::NoPlan,
        true if members.windows(2).all(is_alike) => Check::Fits,
        true => Check::Unfit("devices of two kinds".into()),
    }
}
