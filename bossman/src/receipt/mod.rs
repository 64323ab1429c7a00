//! Receipts: what a run did, in hashes that anyone can check with `bossman verify`.
//!
//! ```text
//! run folder: events.jsonl -> History ---------------------+
//!             run.yaml, model.yaml, weights, metrics.jsonl |
//!                  -> file_hashes -------------------------+-> Receipt -> receipt.json
//! ```
//!
//! A receipt follows from the folder alone, so it also covers what earlier processes of the run
//! did. It names no host, address or path of the user.

mod file_hashes;
#[cfg(test)]
mod fuzz_tests;
mod history;
mod input_hashes;
mod inputs;
mod receipt_file;

pub use file_hashes::Hashed;
pub(crate) use file_hashes::MetricsRead;
pub(crate) use history::History;
pub use history::{Change, ChangeKind, End, Session, SessionPlan, SessionWorker};
pub(crate) use input_hashes::parts_with_files;
pub use inputs::Inputs;
#[cfg(test)]
pub(crate) use receipt_file::example;
pub(crate) use receipt_file::{made_weights, FILES, METRICS, WEIGHTS};
pub use receipt_file::{Receipt, StepDigest, RECEIPT};
