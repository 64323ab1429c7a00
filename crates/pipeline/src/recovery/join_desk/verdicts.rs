//! The verdicts on unfit workers.

use crate::recovery::Applicant;

/// The most unfit workers that are refused with a verdict until a worker joins or leaves. The
/// others get none, because each verdict takes a plan.
pub(super) const MOST_JUDGED: usize = 8;

/// The unfit workers that do not fit beside the present ones.
pub(super) struct Verdicts<W> {
    denied: Vec<W>,
}

impl<W: Applicant> Verdicts<W> {
    pub(super) fn new() -> Self {
        Verdicts { denied: Vec::new() }
    }

    /// Whether a worker gets no place without another verdict.
    pub(super) fn are_against(&self, worker: &W) -> bool {
        self.denied.len() >= MOST_JUDGED
            || self.denied.iter().any(|one| one.is_same_process(worker))
    }

    /// A worker does not fit beside the present ones.
    pub(super) fn deny(&mut self, worker: W) {
        self.denied.push(worker);
    }

    /// This worker came or went, so the others have other company. Its own is the same.
    pub(super) fn company_changed(&mut self, by: &W) {
        self.denied.retain(|one| one.is_same_process(by));
    }
}
