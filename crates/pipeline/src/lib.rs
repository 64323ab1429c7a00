//! How work is cut and ordered: plans, schedules, frames and both sessions, without I/O.
//!
//! A [`layerspec::LayerGraph`] is cut into a [`plan::Plan`]. Its [`schedule::Schedule`] lists the
//! actions of every worker. The [`boss::BossSession`] sends both to the workers, and the
//! [`stage::StageSession`] of each worker executes its part.
//!
//! ```text
//! layerspec::LayerGraph -> cut -> plan::Plan -> schedule::Schedule (lists of actions)
//!                                   ^  replicas, tied     |
//!    auto, fleet: predict, choose --+                     v
//!    membership: who takes part                  boss::BossSession
//!    recovery: what to do after a failure                 |  frame, message
//!    peer_snapshot: who stores what, and what comes back  |
//!                                                         v
//!                                                stage::StageSession -> task, effect
//! ```
//!
//! Sessions hold no tensors, read no clock and touch no socket. Time is an argument, tensors are
//! slot numbers, and a driver drains the effects.

mod assignment;
pub mod auto;
pub mod boss;
pub mod cut;
mod determinism;
pub mod effect;
mod evaluation;
mod failure;
pub mod fleet;
pub mod frame;
pub mod ids;
mod initialization;
pub mod kv_cache_step;
mod layer_times;
pub mod loss;
pub mod loss_scale;
pub mod lr_schedule;
mod map_tensors;
pub mod membership;
pub mod message;
mod micros;
mod mode;
mod model_parameters;
pub mod norm;
pub mod optimizer;
pub mod peer_snapshot;
pub mod plan;
mod plan_memory;
pub mod recovery;
pub mod replicas;
pub mod room;
pub mod round_outputs;
pub mod samples;
mod saved_memory;
pub mod schedule;
mod slot_ledger;
pub mod stage;
mod stage_spec;
mod state_digest;
mod state_name;
mod state_slices;
pub mod task;
mod task_error;
mod tensor_head;
pub mod tensor_meta;
mod tied;
pub mod watch;
mod worker_span;

pub use cut::Cuts;
pub use determinism::Determinism;
pub use fleet::Fleet;
pub use initialization::Initialization;
pub use loss::LossSpec;
pub use lr_schedule::LrSchedule;
pub use model_parameters::ModelParameters;
pub use optimizer::OptimizerSpec;
pub use plan::Plan;
pub use schedule::{Placement, Schedule, ScheduleKind};
pub use state_digest::{hash_tensor, StateDigest, StateForm, TensorHasher};
pub use state_name::StateName;
pub use state_slices::{slices, SlicePlace, StateHeads, StateSlice, MAX_STATE_HEADS, SLICE_BYTES};
pub use task::LoadContent;
pub use tensor_meta::TensorMeta;
