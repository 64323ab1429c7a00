//! BossMan trains a neural network across several machines. A boss cuts the model into stages and
//! gives each stage to a worker over QUIC. Activations travel forward from worker to worker, and
//! gradients travel back.
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
//!
//! ```text
//! cli -> run_file -> check -> train (epochs, metrics) -> checkpoint, recovery, pool
//!     -> import -> run_file, weights            status <- events (for `bossman status`)
//!                      |                          inference, weights
//!                      v
//!                    session (the BossMan object) -> data, tuning (measure and choose)
//!                      |
//!                    workers (local processes, waiting for others) -> runtime, link
//! cli -> self_check (whole runs on a device) -> run_file, train, session
//! ```

mod boss;
pub mod check;
pub mod checkpoint;
pub mod data;
mod error;
pub mod events;
mod file_kind;
mod import;
mod inference;
pub mod output;
mod pool;
pub mod receipt;
mod recovery;
pub mod run_file;
pub mod runs;
pub mod self_check;
mod session;
mod settings;
mod status;
pub mod train;
mod tuning;
pub mod verify;
mod weights;
mod workers;

pub use train::{metrics, trace};
pub use tuning::plan_command as plan;
pub use weights::rename_rules as rename;
pub use workers::fleet_settings as fleet;

pub use ::data::{Batch, Variables};
pub use boss::boss_man::BossMan;
pub use boss::builder::Builder;
pub use error::BossManError;
pub use file_kind::FileKind;
pub use import::{import, Head, ImportOptions, Imported};
pub use inference::bleu::bleu;
pub use inference::generate::{Generated, Generation, Generator};
pub use inference::predict::{Meaning, Predicted, Predictions};
pub use inference::sampling::Sampling;
pub use inference::score::Score;
pub use inference::search::Search;
pub use inference::translate::Translator;
pub use inference::translation_score::{TranslationSettings, Translations};
pub use layerspec::{LayerGraph, Precision, Recompute, SpecError};
pub use link::{LinkError, Ticket, Transport};
pub use pipeline::auto::{Candidate, Choice};
pub use pipeline::ids::{StageId, WorkerId};
pub use pipeline::loss::{ClassDim, Classes};
pub use pipeline::lr_schedule::{LrDecay, LrSchedule, Warmup};
pub use pipeline::message::{Failure, FailureKind, LinkReport};
pub use pipeline::optimizer::AdamArgs;
pub use pipeline::plan::PlanError;
pub use pipeline::replicas::{Collective, Compress, Replicas, Sharding};
pub use pipeline::schedule::Timeline;
pub use pipeline::{
    Cuts, Determinism, LossSpec as Loss, OptimizerSpec as Optimizer, Plan, ScheduleKind,
    StateDigest,
};
pub use recovery::recovery_source::RecoverySource;
pub use session::evaluation::Evaluation;
pub use session::position::BatchId;
pub use session::step_report::StepReport;
pub use settings::guards::{Guards, NonFinite};
pub use status::{MemberStatus, Phase, Status, Wait, WorkerStatus};
pub use tensor::TensorError;
pub use train::epochs::best_path;
pub use train::validation::validate;
pub use train::validation_result::ValidationResult;
pub use tuning::schedule_state::{Candidates, Timelines};
pub use weights::export::{export, export_files, ExportSettings};
pub use weights::huggingface::{is_huggingface, HuggingFaceExport};
pub use weights::model::Model;
pub use weights::state_dict::StateDict;
pub use workers::host::{Host, Workers};

/// The Rust code of the pages. Doc tests compile and run it.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../README.md")]
    struct Readme;

    #[doc = include_str!("../../docs/guide/rust.md")]
    struct FromRust;

    #[doc = include_str!("../../docs/reference/pool.md")]
    struct Pool;
}
