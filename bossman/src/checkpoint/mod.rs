//! Checkpoints: all that a run needs to go on from a step as if it had never stopped.
//!
//! A checkpoint is a folder `step-00000100` with a safetensors file for each layer's weights, one
//! for what the optimizer keeps for them, and `manifest.json`, which names them with their sizes
//! and SHA-256 and is written last: without it, or where a file is not as it says, there is no
//! checkpoint. Workers copy their state between two steps; it is gathered (`snapshot.rs`) and
//! written (`store.rs`, `place.rs`) while training goes on. Only what is proven damaged is passed
//! over or deleted (`read_error.rs`, `known.rs`); what cannot be read is an error. What is drawn at
//! random is drawn from the seed and the numbers of steps, so the random state is these numbers
//! (`manifest.rs`).

mod checkpoint_writer;
#[cfg(test)]
mod faulty;
mod folder;
mod manifest;
mod policy;
mod read_error;
#[cfg_attr(not(feature = "object-stores"), path = "no_remote_store.rs")]
mod remote_store;
mod snapshot;
mod store;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod unreadable;
mod verified_steps;

#[cfg(test)]
use crate::BossManError;
pub(crate) use checkpoint_writer::CheckpointWriter;
pub use manifest::Counters;
pub(crate) use manifest::{RunRecord, ScoreAtStep};
pub(crate) use policy::DueTimer;
pub use policy::{Every, KeepBest, Policy};
pub use read_error::ReadError;
pub use snapshot::TrainingState;
pub(crate) use store::{is_checkpoint, load_weights};
pub use store::{CheckpointEntry, Checkpoints};
