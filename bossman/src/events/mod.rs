//! The events of a run: the source of everything that is shown or recorded.
//!
//! ```text
//! workers, session, pool, train, recovery, checkpoint
//!   -> Events (events) -> Console, Metrics, TraceRecorder, observers of the caller
//! ```
//!
//! Whoever works emits an [`Event`]. An [`Observer`] sees every event in order, and cannot touch
//! the run. The [`Console`] alone prints.

mod console;
mod event;
#[allow(clippy::module_inception, reason = "it is the main type of the folder")]
mod events;
pub(crate) mod formats;
mod observer;
mod remark;
#[cfg(test)]
pub(crate) mod tests;
mod transfer;

pub use console::{Console, Line, Stream};
pub use event::{
    CheckpointOutcome, Completed, Event, Invitation, PlannedStage, SnapshotOutcome, WaitReason,
};
pub use events::Events;
pub use observer::Observer;
pub use pipeline::membership::Notice;
pub use pipeline::recovery::{RecoveryCost, ResumeReport, StateSource};
pub use remark::Remark;
pub use transfer::{Direction, Transfer};
