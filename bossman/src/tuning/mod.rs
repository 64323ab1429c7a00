//! Measures layers and links, and chooses the schedule, the assignment of microbatches and the
//! collective. Checks that replicas are alike.
//!
//! ```text
//! choose_schedule, microbatch_assignment -> schedule_state -> observed_times (seen in steps)
//!                                             +-> measured_fleet -> layer_probes (measured)
//! known_times      keeps the times of layers for the session after a loss of workers
//! collective       NCCL or QUIC
//! replica_devices  finds replicas on unlike devices
//! worker_memory    the memory that plans may use
//! plan_command     prints the predicted time of each schedule
//! ```

pub(crate) mod batch_shape;
pub(crate) mod choose_schedule;
pub(crate) mod collective;
pub(crate) mod known_times;
pub(crate) mod layer_probes;
pub(crate) mod measured_fleet;
pub(crate) mod microbatch_assignment;
pub(crate) mod observed_times;
pub mod plan_command;
pub(crate) mod replica_devices;
pub(crate) mod schedule_state;
pub(crate) mod worker_memory;
