//! A training run: steps, epochs, validation, metrics and checkpoints.
//!
//! ```text
//! run (Attempts) -> placed                the run's folder
//!  |             -> prepared (Prepared)   what needs no workers
//!  +-> attempt (Attempt) -> epochs -> validation
//!       +-> checkpoint_writer
//!       +-> Event -> metrics, trace, and the observers of the caller
//! ```

mod attempt;
pub(crate) mod checkpoint_writer;
pub(crate) mod epochs;
pub mod metrics;
mod placed;
mod prepared;
pub(crate) mod run;
pub(crate) mod settings;
mod stop;
pub mod trace;
pub(crate) mod validation;

pub use run::{run, run_with, Interruption, Outcome};
pub use settings::TrainOptions;
pub use stop::StopSignal;
