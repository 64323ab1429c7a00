//! The `worker` program.
//!
//! ```text
//!     worker.rs -> run.rs -> options.rs     flags and environment
//!                   |-> chosen_device.rs    the device and the threads
//!                   |-> every_gpu.rs        one process for each GPU
//!                   |-> exit_code.rs        how the program ends
//!                   |-> nccl.rs             the report about NCCL for the boss
//!                   |-> output.rs           lines for the user
//!                   |-> signals.rs          the signals that end it
//!                   |-> compute/            the stages
//!                   |-> self_check/         checks a device in place of all that
//! ```

pub(crate) mod chosen_device;
pub(crate) mod every_gpu;
pub(crate) mod exit_code;
pub(crate) mod nccl;
pub(crate) mod options;
pub(crate) mod output;
pub(crate) mod run;
pub(crate) mod signals;
