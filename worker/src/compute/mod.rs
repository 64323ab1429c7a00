//! The work of the compute thread.
//!
//! ```text
//!     runtime -> stage_compute.rs (StageCompute: each task calls one of these)
//!                  |  building.rs  passes.rs  updates.rs  state.rs -> engine/, one for each stage
//!                  |-> task_args.rs                    their arguments
//!                  |-> task_location.rs                where a task failed
//!                  |-> task_tensors.rs                 tensors as those of tasks, and back
//!                  |-> payloads.rs                     tensors as bytes
//!                  |-> failures.rs                     errors as failures of tasks
//!                  |-> device_tensor.rs                results that stay on the device
//!                  |-> state_view.rs                   state that is read where it lies
//!                  |-> live_elements.rs                copies and hashes of it
//!                  |-> late_result.rs                  numbers that the device still computes
//!                  |-> collective.rs                   sums over replicas by NCCL
//!                  |-> measure.rs                      the time and memory of a layer
//!                  |-> peak_memory.rs                  the most memory that this process took
//!     runtime's reader thread -> samples.rs            samples from files of this worker
//! ```

mod building;
mod collective;
mod device_tensor;
mod failures;
mod late_result;
mod live_elements;
pub(crate) mod measure;
mod passes;
pub(crate) mod payloads;
mod peak_memory;
pub(crate) mod samples;
pub(crate) mod stage_compute;
mod state;
mod state_view;
mod task_args;
mod task_location;
pub(crate) mod task_tensors;
mod updates;
