//! A training run: steps, epochs, validation, metrics and checkpoints.
//!
//! ```text
//! run -> outputs, placed            what it writes, and its folder
//!  |  -> prepared (Prepared)        what needs no workers
//!  |  -> receipt_writer             at the end
//!  +-> attempts (Attempts) -> memory_saving    after a run was out of memory
//!       |                  -> growth_warnings  of what pipeline's RunGrowth decides
//!       |                  -> recovery: policy, rejoin, resume;  start_patience
//!       +-> attempt (Attempt) -> epochs -> validation -> validation_result (a value)
//!            +-> checkpoint_writer, digests
//!            +-> Event -> metrics, trace, and the observers of the caller
//! ```

mod attempt;
mod attempts;
pub(crate) mod checkpoint_writer;
mod digests;
pub(crate) mod epochs;
mod growth_warnings;
mod memory_saving;
pub mod metrics;
mod outcome;
mod outputs;
mod placed;
mod prepared;
mod receipt_writer;
pub(crate) mod run;
pub(crate) mod settings;
mod start_patience;
mod stop;
pub mod trace;
pub(crate) mod validation;
pub(crate) mod validation_result;

pub use outcome::{describe_steps, Interruption, Outcome};
pub use run::{run, run_with};
pub use settings::TrainOptions;
pub use stop::StopSignal;
