//! `bossman verify`: compares a run's folder with its receipt, and repeats parts of the run.
//!
//! ```text
//! Verification -> compare (files, metrics, data, events, checkpoints against the receipt)
//!              -> exactness (what a repetition here can show)
//!              -> windows (which parts can be repeated) -> repeat (on local workers)
//! ```
//!
//! It writes nothing into the folder.

mod compare;
mod exactness;
mod repeat;
mod windows;

pub use exactness::Exactness;
pub use repeat::{RepeatSettings, Repeated};
pub use windows::{draw, Origin, Window};

use crate::checkpoint::Checkpoints;
use crate::receipt::{MetricsRead, Receipt, METRICS};
use crate::run_file::RunFile;
use crate::BossManError;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

/// The largest metrics and events: those of some ten million steps.
const MAX_BYTES: u64 = 2 << 30;

/// Something that is not as the receipt says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The file, or the step of the run.
    pub place: String,
    /// What was found there, and what the receipt has.
    pub problem: String,
}

impl Difference {
    fn new(place: impl ToString, problem: impl Into<String>) -> Self {
        Difference { place: place.to_string(), problem: problem.into() }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.problem)
    }
}

/// A run's folder under verification.
pub struct Verification {
    folder: PathBuf,
    file: RunFile,
    receipt: Receipt,
    checkpoints: Option<Checkpoints>,
    /// The steps of the checkpoints that have the digests of the receipt.
    proven: Vec<u64>,
    /// The loss of each step, from the metrics. `None` if it was no number.
    losses: BTreeMap<u64, Option<f32>>,
}

impl Verification {
    /// Reads the receipt of a run. `file` is the run file of the folder, with the places where its
    /// files are now.
    ///
    /// # Errors
    /// There is no receipt, or a file cannot be read.
    pub fn open(folder: &Path, file: RunFile) -> Result<Self, BossManError> {
        let receipt = Receipt::read(folder)?;
        for name in [METRICS, "events.jsonl"] {
            check_size(&folder.join(name))?;
        }
        let inside = folder.join("checkpoints").to_string_lossy().into_owned();
        let dir = file.checkpoint.as_ref().map(|policy| policy.dir.clone().unwrap_or(inside));
        let exists = |dir: &String| dir.contains("://") || Path::new(dir).is_dir();
        let checkpoints =
            dir.filter(exists).map(|dir| Checkpoints::open(&dir, false)).transpose()?;
        let metrics = MetricsRead::of(&folder.join(METRICS), &[])?.unwrap_or_default();
        Ok(Verification {
            folder: folder.to_path_buf(),
            file: file.with_data_at_boss(),
            receipt,
            checkpoints,
            proven: Vec::new(),
            losses: metrics.losses.into_iter().collect(),
        })
    }

    /// The receipt.
    pub fn receipt(&self) -> &Receipt {
        &self.receipt
    }

    /// What a repetition of this run can show.
    pub fn exactness(&self) -> Exactness {
        Exactness::of(&self.file, &self.receipt)
    }

    /// The parts of the run that can be repeated, and those that cannot. Call it after
    /// [`Verification::compare`], which proves the checkpoints.
    pub fn windows(&self) -> Vec<Window> {
        let digests: Vec<u64> = self.receipt.digests.iter().map(|digest| digest.step).collect();
        let weights: Vec<u64> = self.receipt.weights.values().copied().collect();
        windows::windows(&digests, &weights, &self.proven, self.unknown_start())
    }

    /// Whether the run left metrics, with a line for each step.
    fn has_metrics(&self) -> bool {
        let has_some = |of: &crate::receipt::Hashed| of.bytes > 0;
        let mut digests = self.receipt.digests.iter();
        !self.losses.is_empty() || digests.any(|of| of.metrics.as_ref().is_some_and(has_some))
    }

    /// Why the run cannot be repeated from its beginning.
    fn unknown_start(&self) -> Option<String> {
        let first = self.receipt.sessions.first()?;
        if first.from > 0 {
            return Some(format!("the run's events begin after step {}", first.from));
        }
        let inputs = self.receipt.inputs.as_ref();
        let hash = inputs.and_then(|inputs| inputs.initial_weights.as_ref());
        let is_known = hash.is_some() || self.file.weights.is_none();
        (!is_known).then(|| "the hash of the initial weights is not known".into())
    }
}

fn check_size(path: &Path) -> Result<(), BossManError> {
    match path.metadata() {
        Ok(there) if there.len() > MAX_BYTES => {
            let problem = format!("has {} bytes; at most {MAX_BYTES} are read", there.len());
            Err(BossManError::file(path, problem))
        }
        // What is missing is a difference.
        _ => Ok(()),
    }
}
