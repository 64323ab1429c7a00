//! A session with the workers: the trainer, the calls that it runs, and the values that it owns.
//!
//! ```text
//! call (TrainingCall) <- manual_step   forward, backward, optimizer step
//!   |                 <- train_step    a whole step -> step_report (a value)
//!   v
//! trainer (Trainer)   <- manual_round, train_round      rounds of steps
//!   |                 <- evaluate      rounds without training -> evaluation (a value)
//!   |                      +-> prepared_batch (microbatches)
//!   |                 <- scheduling    measures workers, moves stages
//!   +-> position, learning_monitor, nccl_link            replica_check, weight_transfer
//!                                                          |
//!                                                          v
//!                          weights_sink (memory or a file), fetched_state (tensors out of slices)
//!                          transfer_meter (how far it is)
//! ```

pub(crate) mod call;
mod evaluate;
pub(crate) mod evaluation;
pub(crate) mod fetched_state;
pub(crate) mod learning_monitor;
mod manual_round;
pub(crate) mod manual_step;
pub(crate) mod nccl_link;
pub(crate) mod position;
mod prepared_batch;
pub(crate) mod replica_check;
pub(crate) mod scheduling;
pub(crate) mod step_report;
mod train_round;
pub(crate) mod train_step;
pub(crate) mod trainer;
mod transfer_meter;
pub(crate) mod weight_transfer;
mod weights_sink;
