//! Checkpoints: the state with which a run resumes from a step as if it had never stopped.
//!
//! ```text
//! policy (when, which are kept) <- train's checkpoint_writer
//!   +-> snapshot (state out of the workers and into them) -> training_state (whole, in memory)
//!   +-> store -> folder -> local_file, remote_store (object stores), store_answers
//!   |     +-> manifest, verified_steps, read_error
//!   |     +-> stored_state (whole, in files) -> state_fit
//!   +-> writer -> layout -> arrivals (which tensors belong where, and what has come)
//!         +-> draft (a file that is not complete), background_thread, store
//! weights_file (weights alone) -> arrivals, draft
//! ```
//!
//! A checkpoint is a folder `step-00000100`. It has a safetensors file for each layer's weights,
//! one for its optimizer state, and `manifest.json`, which names them with their sizes and SHA-256.
//! The files are filled while their tensors arrive, in any order. The manifest is written last:
//! without it, or if a file differs from it, there is no checkpoint. Workers copy their state
//! between two steps, and it is collected and written during training. Only a checkpoint that is
//! proven damaged is skipped or deleted. A checkpoint that cannot be read is an error. Random
//! numbers come from the seed and the numbers of steps, so the random state is these numbers.

mod arrivals;
mod background_thread;
mod draft;
mod folder;
mod layout;
mod local_file;
mod manifest;
mod policy;
mod read_error;
#[cfg_attr(not(feature = "object-stores"), path = "no_remote_store.rs")]
mod remote_store;
mod snapshot;
mod state_fit;
mod store;
mod store_answers;
mod stored_state;
#[cfg(test)]
mod tests;
mod training_state;
mod verified_steps;
mod weights_file;
mod writer;

pub use crate::session::position::Counters;
#[cfg(test)]
use crate::BossManError;
pub(crate) use manifest::{folder_of_step, MadeFor, RunRecord, ScoreAtStep};
pub(crate) use policy::{rate, DueTimer};
pub use policy::{Every, KeepBest, Policy};
pub use read_error::ReadError;
pub(crate) use snapshot::{
    begin_snapshot, request_snapshots, restore, restore_stored, resume_from, state_by_stage,
};
pub(crate) use store::{is_checkpoint, load_weights, weight_headers};
pub use store::{CheckpointEntry, Checkpoints};
pub(crate) use stored_state::StoredState;
pub use training_state::TrainingState;
pub(crate) use weights_file::WeightsFile;
