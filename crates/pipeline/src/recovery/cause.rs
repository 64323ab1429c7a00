//! The causes of a failure that recovery distinguishes.

use crate::message::{Failure, FailureKind};

/// The cause of a failed step, call or start.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Cause {
    /// A worker was lost, or a link between two. The same may succeed without that worker.
    Lost,
    /// The worker is not fit for its part, for example because its compute thread panicked. Another
    /// worker may be.
    Unfit,
    /// The worker's device has too little memory for its part. Another worker's may have enough, or
    /// the run may store fewer activations.
    OutOfMemory,
    /// A local worker ended before it joined.
    LocalWorkerEnded,
    /// A number is not finite: the data or the weights are at fault, and no worker.
    NotFinite,
    /// The boss refused the request, and no worker received it.
    Refused,
    /// Anything else that a worker reports.
    Other,
}

impl Cause {
    /// The cause of a failure that a worker or the boss's session reports.
    pub fn of(failure: &Failure) -> Self {
        match failure.kind {
            FailureKind::Lost | FailureKind::WorkerMissing | FailureKind::DeviceBroken => {
                Cause::Lost
            }
            FailureKind::Refused => Cause::Refused,
            FailureKind::Unfit => Cause::Unfit,
            FailureKind::OutOfMemory => Cause::OutOfMemory,
            FailureKind::NotFinite => Cause::NotFinite,
            FailureKind::Other => Cause::Other,
        }
    }
}
