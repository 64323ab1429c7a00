//! The `BossMan` object and its calls: steps by hand, whole steps, and what they need of a batch.
//!
//! ```text
//! boss (BossMan, Builder) -> settings
//!   +-> train_step   a whole step   +-> manual_step   forward, backward, optimizer step by hand
//!   |     +-> guards, replica_check                   +-> batches_in_flight
//!   +-> accumulated_gradients, worker_data
//! ```

pub(crate) mod accumulated_gradients;
pub(crate) mod batches_in_flight;
pub(crate) mod boss;
pub(crate) mod guards;
pub(crate) mod manual_step;
pub(crate) mod replica_check;
pub(crate) mod settings;
pub(crate) mod train_step;
pub(crate) mod worker_data;
