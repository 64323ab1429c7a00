//! A training run: steps, epochs, validation, metrics, progress and checkpoints.
//!
//! ```text
//! run -> epochs -> validation
//!  +---> metrics, progress, trace
//! ```

pub(crate) mod epochs;
pub mod metrics;
pub(crate) mod progress;
pub(crate) mod run;
pub(crate) mod settings;
pub mod trace;
pub(crate) mod validation;

pub use run::{run, run_with, Outcome};
pub use settings::TrainOptions;
