//! BossMan trains a neural network that does not fit one device across the machines people have lying
//! around: a boss cuts the model into stages, gives each to a worker over QUIC, and drives activations
//! forward and gradients back.
//!
//! ```
//! use bossman::{BossMan, Model, Optimizer, Variables};
//! use tch::{Device, Kind, Reduction, Tensor};
//!
//! # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let model = Model::from_file("../examples/models/residual.yaml")?;
//! let workers = BossMan::setup_local(2).await?; // or setup_host(2): workers on other machines
//! let mut boss = BossMan::new(workers, model)?;
//! boss.distribute_model().await?;
//! boss.send_optimizer(Optimizer::adam(3e-3)).await?;
//! for _ in 0..3 {
//!     let x = Tensor::rand([32, 1], (Kind::Float, Device::Cpu)) * std::f64::consts::PI;
//!     let y = x.sin();
//!     let prediction = boss.forward(&x, Variables::new()).await?; // a leaf that requires grad
//!     let loss = prediction.mse_loss(&y, Reduction::Mean);
//!     loss.backward();
//!     boss.backward(&prediction.grad()).await?;
//!     boss.optim_step().await?;
//! }
//! boss.shutdown().await;
//! # Ok(()) }
//! ```
//!
//! [`BossMan::train_step`] does the same in one call, with microbatches and a schedule, and the
//! loss computed on the last stage's worker.

mod bleu;
mod boss;
mod by_hand;
pub mod checkpoint;
mod choosing;
mod collective;
mod comparing;
mod counts;
pub mod data;
mod disk;
mod epochs;
mod error;
mod evaluate;
mod export;
mod fixed_batch;
pub mod fleet;
mod gathered;
mod generate;
mod guards;
mod host;
mod inputs;
mod layer_file;
mod local;
mod look;
pub mod metrics;
mod microbatch_assignment;
mod model;
mod observed;
mod open_data;
pub mod output;
mod payload;
pub mod plan;
mod pool;
mod predict;
mod probing;
mod progress;
mod ready;
mod recovery;
mod redundancy;
pub mod rename;
mod replaced;
mod replay;
mod resume;
pub mod run_file;
mod sampling;
mod scheduling;
mod score;
mod settings;
mod state_dict;
mod step;
pub mod trace;
pub mod train;
mod train_settings;
mod translate;
mod translations;
mod under_way;
mod weight_files;

pub use ::data::{Batch, Variables};
pub use bleu::bleu;
pub use boss::{BossMan, Builder};
pub use epochs::best_path;
pub use error::BossManError;
pub use evaluate::Evaluation;
pub use export::{export, ExportSettings};
pub use generate::{Generated, Generation, Generator};
pub use guards::{Guards, NonFinite};
pub use host::{Host, Workers};
pub use layerspec::{Precision, Recompute};
pub use link::Transport;
pub use look::{look, Look};
pub use model::Model;
pub use pipeline::loss::Classes;
pub use pipeline::lr_schedule::{LrDecay, LrSchedule, Warmup};
pub use pipeline::replicas::{Collective, Compress, Replicas, Sharding};
pub use pipeline::{Cuts, LossSpec as Loss, OptimizerSpec as Optimizer, ScheduleKind};
pub use pool::{Status, WorkerStatus};
pub use predict::{Predicted, Predictions};
pub use redundancy::Redundancy;
pub use sampling::Sampling;
pub use scheduling::{Candidates, Timelines};
pub use score::Score;
pub use state_dict::StateDict;
pub use step::StepReport;
pub use translate::{Search, Translator};
pub use translations::{Translating, Translations};
pub use under_way::BatchId;

/// README's Rust code, compiled and run with the doc tests.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

/// The pool's Rust code, likewise.
#[cfg(doctest)]
#[doc = include_str!("../../docs/pool.md")]
struct PoolPage;
