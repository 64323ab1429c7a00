//! Measures layers and links, and chooses the schedule, the assignment of microbatches and the collective.
//!
//! ```text
//! choose_schedule -> layer_probes (measured), observed_times (seen in steps)
//!   +-> schedule_state, microbatch_assignment, collective
//! plan_command     prints what each schedule would take
//! ```

pub(crate) mod choose_schedule;
pub(crate) mod collective;
pub(crate) mod layer_probes;
pub(crate) mod microbatch_assignment;
pub(crate) mod observed_times;
pub mod plan_command;
pub(crate) mod schedule_state;
