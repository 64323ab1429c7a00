//! The decision after a failure, for `train`, `serve` and calls by hand.
//!
//! ```text
//! Failure -> Cause --+
//!                    +-> RecoveryPolicy::decide -> Remedy (-> ResumeReport, RecoveryCost)
//!        Situation --+
//! ```

mod cause;
mod policy;
mod report;

pub use cause::Cause;
pub use policy::{RecoveryPolicy, Remedy, Situation, StopReason, MAX_ATTEMPTS, POOL_ATTEMPTS};
pub use report::{seconds, RecoveryCost, Repeated, ResumeReport, StateSource};
