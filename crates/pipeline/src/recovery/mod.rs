//! The decision after a failure, for `train`, `serve` and calls by hand.
//!
//! ```text
//! Failure -> Cause --+
//!                    +-> RecoveryPolicy::decide -> Remedy (-> ResumeReport, RecoveryCost)
//!        Situation --+
//!
//! Rebuild: RejoinWait::sufficiency (with how many workers)
//!              -> StoredSteps::newest (from which state)
//! ```

mod cause;
mod newest;
mod policy;
mod rejoin;
mod report;

pub use cause::Cause;
pub use newest::StoredSteps;
pub use policy::{RecoveryPolicy, Remedy, Situation, StopReason, MAX_ATTEMPTS, POOL_ATTEMPTS};
pub use rejoin::{FailedSession, RejoinWait, Rejoined, Sufficiency};
pub use report::{seconds, RecoveryCost, Repeated, ResumeReport, StateSource};
