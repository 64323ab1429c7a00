//! The decision after a failure, for `train`, `serve` and calls by hand. The decision to take in
//! workers that come late.
//!
//! ```text
//! Failure -> Cause --+
//!                    +-> RecoveryPolicy::decide -> Remedy (-> ResumeReport, RecoveryCost)
//!        Situation --+
//!
//! Rebuild: LastSession (who comes again) -> JoinDesk (who gets which place)
//!              -> RejoinWait::sufficiency (with how many workers)
//!              -> StoredSteps::newest (from which state)
//!
//! Boundary (after a step) -> RunGrowth::decide -> a new session with more workers, as for Rebuild
//!                              |    |            (RunGrowth::last_session -> LastSession)
//!                              |    +-> Candidates (which of those that wait)
//!                              +-> Growth (whether to try now)
//! ```

mod candidates;
mod cause;
mod growth;
mod join_desk;
mod last_session;
mod newest;
mod policy;
mod rejoin;
mod report;
mod run_growth;

pub use candidates::{fits_beside, Candidate, Check, Problem};
pub use cause::Cause;
pub use growth::Boundary;
pub use join_desk::{Answer, JoinDesk, Next};
pub use last_session::{Applicant, FitsBeside, KeptPlaces, LastSession};
pub use newest::StoredSteps;
pub use policy::{RecoveryPolicy, Remedy, Situation, StopReason, MAX_ATTEMPTS, POOL_ATTEMPTS};
pub use rejoin::{FailedSession, RejoinWait, Rejoined, Sufficiency};
pub use report::{seconds, RecoveryCost, Repeated, ResumeReport, StateSource};
pub use run_growth::{GrowthDecision, RunGrowth};
