//! How work is cut and ordered: plans, schedules, frames and both sessions, without I/O.
//!
//! The route: a [`layerspec::LayerGraph`] is cut into a [`plan::Plan`], whose [`schedule::Schedule`]
//! lists every worker's actions; the [`boss::BossSession`] hands both out, and each worker's
//! [`stage::StageSession`] carries its part out. Sessions hold no tensors, read no clock and touch no
//! socket: time is an argument, tensors are slot numbers, and effects are drained by a driver.

mod assignment;
pub mod auto;
pub mod boss;
pub mod cached;
pub mod cut;
pub mod effect;
mod evaluation;
mod failure;
pub mod fleet;
pub mod frame;
pub mod ids;
pub mod kept;
pub mod loss;
pub mod loss_scale;
pub mod lr_schedule;
pub mod message;
mod micros;
mod mode;
pub mod norm;
pub mod optimizer;
pub mod plan;
pub mod replicas;
pub mod samples;
pub mod schedule;
pub mod stage;
mod stage_spec;
mod state_name;
pub mod task;
pub mod tensor_meta;
mod tied;
pub mod watch;

pub use cut::Cuts;
pub use fleet::Fleet;
pub use loss::LossSpec;
pub use lr_schedule::LrSchedule;
pub use optimizer::OptimizerSpec;
pub use plan::Plan;
pub use schedule::{Placement, Schedule, ScheduleKind};
pub use state_name::StateName;
pub use tensor_meta::TensorMeta;
