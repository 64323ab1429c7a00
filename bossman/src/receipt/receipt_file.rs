//! `receipt.json`.

use super::{Change, End, Hashed, History, Inputs, MetricsRead, Session};
use crate::data::atomic_file;
use crate::run_file::{RunFile, TABLE};
use crate::runs::{EventReader, TrainedWeights, BEST_WEIGHTS, LAST_WEIGHTS};
use crate::{BossManError, Model};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

/// The name of the file in a run's folder.
pub const RECEIPT: &str = "receipt.json";
/// The version of the format. Raise it with every change of the format.
const VERSION: u32 = 1;
/// The largest receipt: about a quarter of a million digests.
const MAX_BYTES: u64 = 64 << 20;
/// The files of a run's folder that a receipt hashes as they are.
pub(crate) const FILES: [&str; 5] = ["run.yaml", "model.yaml", TABLE, LAST_WEIGHTS, BEST_WEIGHTS];
pub(crate) const WEIGHTS: [&str; 2] = [LAST_WEIGHTS, BEST_WEIGHTS];
pub(crate) const METRICS: &str = "metrics.jsonl";

/// What a run did, in hashes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Receipt {
    /// The version of the format.
    pub version: u32,
    /// The version of the program that wrote it.
    pub bossman: String,
    /// The version of the protocol between boss and workers.
    pub protocol: u32,
    /// The version of libtorch.
    pub libtorch: String,
    /// The seed of weights, dropout and the order of samples.
    pub seed: u64,
    /// The last step that is done.
    pub steps: u64,
    /// How the run ended.
    pub end: End,
    /// The hashes of files in the run's folder, by name.
    pub files: BTreeMap<String, Hashed>,
    /// The steps that made the weights in these files.
    pub weights: BTreeMap<String, u64>,
    /// The SHA-256s of the files that layers are built from.
    pub model_files: Vec<String>,
    /// The hashes of data and initial weights. `None` if the run ended before they were known.
    pub inputs: Option<Inputs>,
    /// The sessions, in their order.
    pub sessions: Vec<Session>,
    /// The changes of workers during sessions, in their order.
    pub changes: Vec<Change>,
    /// The digests of the training state, by ascending steps.
    pub digests: Vec<StepDigest>,
    /// The SHA-256 of everything before it, in hexadecimal digits.
    pub sha256: String,
}

/// A digest of the training state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepDigest {
    /// The step after which it is.
    pub step: u64,
    /// The digest; see [`StateDigest`](crate::StateDigest).
    pub digest: String,
    /// The metrics of all steps up to it. `None` if there are none.
    pub metrics: Option<Hashed>,
}

/// The steps that made the weights in these files, by the events of the run.
pub(crate) fn made_weights(
    history: &History,
    files: &BTreeMap<String, Hashed>,
) -> BTreeMap<String, u64> {
    let made = [(LAST_WEIGHTS, history.last_weights), (BEST_WEIGHTS, history.best_weights)];
    let made = made.into_iter().filter(|(name, _)| files.contains_key(*name));
    made.filter_map(|(name, step)| Some((name.to_string(), step?))).collect()
}

/// The only part of a receipt that every version has.
#[derive(Deserialize)]
struct Versioned {
    version: u64,
}

impl Receipt {
    /// The receipt of the run in this folder. `None` if training has not begun.
    ///
    /// # Errors
    /// A file in the folder cannot be read.
    pub(crate) fn of_folder(folder: &Path) -> Result<Option<Self>, BossManError> {
        let Some(history) = History::of_folder(folder)?.filter(|of| !of.sessions.is_empty()) else {
            return Ok(None);
        };
        let file = RunFile::from_folder(folder)?;
        let mut files = BTreeMap::new();
        for name in FILES {
            files.extend(Hashed::of_file(&folder.join(name))?.map(|hash| (name.to_string(), hash)));
        }
        // A link may lead to weights of another run.
        let saved = TrainedWeights::in_folder(folder);
        let saved = [saved.last, saved.best].into_iter().flatten();
        for replaced in saved.filter(|saved| saved.is_replaced) {
            files.retain(|name, _| !replaced.path.ends_with(name));
        }
        let weights = made_weights(&history, &files);
        files.retain(|name, _| !WEIGHTS.contains(&name.as_str()) || weights.contains_key(name));
        let History { sessions, changes, digests, step, end, inputs, .. } = history;
        let steps: Vec<u64> = digests.keys().copied().collect();
        let metrics = MetricsRead::of(&folder.join(METRICS), &steps)?.unwrap_or_default();
        let mut metrics = metrics.up_to.into_iter();
        let digests = digests.into_iter().map(|(step, digest)| StepDigest {
            step,
            digest,
            metrics: metrics.next(),
        });
        let receipt = Receipt {
            version: VERSION,
            bossman: env!("CARGO_PKG_VERSION").into(),
            protocol: pipeline::message::PROTOCOL_VERSION,
            libtorch: tensor::libtorch_version(),
            seed: file.seed,
            steps: step,
            end,
            files,
            weights,
            model_files: Model::from_file(&file.model)?
                .files()
                .map(|(hash, _)| hash.clone())
                .collect(),
            inputs,
            sessions,
            changes,
            digests: digests.collect(),
            sha256: String::new(),
        };
        Ok(Some(receipt))
    }

    /// Writes it into a run's folder, with its hash.
    ///
    /// # Errors
    /// It is too large, or cannot be written.
    pub fn write(self, folder: &Path) -> Result<(), BossManError> {
        let path = folder.join(RECEIPT);
        let fault = |e: serde_json::Error| BossManError::file(&path, e);
        let signed = Receipt { sha256: self.hash().map_err(fault)?, ..self };
        let mut text = serde_json::to_vec_pretty(&signed).map_err(fault)?;
        text.push(b'\n');
        if text.len() as u64 > MAX_BYTES {
            let problem = format!("would have {} bytes, above the limit {MAX_BYTES}", text.len());
            return Err(BossManError::file(&path, problem));
        }
        let mut file = atomic_file::create(&path)?;
        file.write_all(&text).map_err(|e| BossManError::io(&path, &e))?;
        atomic_file::commit(&path, file)
    }

    /// Reads the receipt in a run's folder.
    ///
    /// # Errors
    /// There is none, or it is not as it was written.
    pub fn read(folder: &Path) -> Result<Self, BossManError> {
        let path = folder.join(RECEIPT);
        if !path.is_file() {
            let problem = "is not there; a run writes it when it ends, is interrupted or fails. A \
                           run that crashed gets one if it goes on with --resume";
            return Err(BossManError::file(&path, problem));
        }
        let mut bytes = Vec::new();
        let file = File::open(&path).map_err(|e| BossManError::io(&path, &e))?;
        file.take(MAX_BYTES + 1)
            .read_to_end(&mut bytes)
            .map_err(|e| BossManError::io(&path, &e))?;
        Self::parse(&bytes).map_err(|problem| BossManError::file(&path, problem))
    }

    /// Parses a receipt, which may have any content. An error says what is wrong.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, String> {
        if bytes.len() as u64 > MAX_BYTES {
            return Err(format!("has more than {MAX_BYTES} bytes"));
        }
        let no_receipt = |e: serde_json::Error| format!("is no receipt: {e}");
        let Versioned { version } = serde_json::from_slice(bytes).map_err(no_receipt)?;
        if version != u64::from(VERSION) {
            return Err(format!(
                "is of version {version}; this program reads version {VERSION}, take another \
                 BossMan"
            ));
        }
        let receipt: Receipt = serde_json::from_slice(bytes).map_err(no_receipt)?;
        if receipt.hash().map_err(no_receipt)? != receipt.sha256 {
            return Err("was changed: its content does not have the SHA-256 at its end".into());
        }
        let is_written = |name: &String| WEIGHTS.contains(&name.as_str());
        if let Some(name) = receipt.weights.keys().find(|name| !is_written(name)) {
            return Err(format!("names the weights {name:?}, which no run writes into its folder"));
        }
        let ascends = receipt.digests.windows(2).all(|pair| pair[0].step < pair[1].step);
        if !ascends || receipt.digests.iter().any(|digest| digest.step > receipt.steps) {
            return Err("has digests out of their order".into());
        }
        Ok(receipt)
    }

    /// The SHA-256 of its content, which is compact JSON with an empty hash.
    fn hash(&self) -> Result<String, serde_json::Error> {
        let text = serde_json::to_vec(&Receipt { sha256: String::new(), ..self.clone() })?;
        Ok(Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

impl History {
    /// The course of the run in this folder. `None` if it has no events.
    ///
    /// # Errors
    /// The events cannot be read.
    pub(crate) fn of_folder(folder: &Path) -> Result<Option<Self>, BossManError> {
        let Some(mut events) = EventReader::open(folder)? else { return Ok(None) };
        let mut history = History::default();
        while let Some(logged) = events.next_change()? {
            history.follow(logged.event);
        }
        Ok(Some(history))
    }
}

/// A receipt with every part.
#[cfg(test)]
pub(crate) fn example() -> Receipt {
    use super::{ChangeKind, SessionPlan, SessionWorker};
    use crate::events::PlannedStage;
    use pipeline::ids::WorkerId;
    let hashed = || Hashed { bytes: 5, sha256: "00ff".into() };
    let worker = WorkerId(1);
    let (device, processor) = ("cpu".into(), "x86_64".into());
    Receipt {
        version: VERSION,
        bossman: "0.1.0".into(),
        protocol: 1,
        libtorch: "2.11.0".into(),
        seed: 7,
        steps: 9,
        end: End::Ended,
        files: BTreeMap::from([("run.yaml".into(), hashed())]),
        weights: BTreeMap::from([(LAST_WEIGHTS.into(), 9)]),
        model_files: vec!["ab".into()],
        inputs: Some(Inputs::default()),
        sessions: vec![Session {
            from: 0,
            microbatches: 4,
            pool: false,
            workers: vec![SessionWorker { worker, device, processor, threads: 2 }],
            plans: vec![SessionPlan {
                from: 0,
                schedule: "1f1b".into(),
                stages: vec![PlannedStage { first_layer: "a".into(), workers: vec![worker] }],
            }],
        }],
        changes: vec![Change { session: 0, after: 3, worker: None, change: ChangeKind::Lost }],
        digests: vec![StepDigest { step: 9, digest: "00".into(), metrics: Some(hashed()) }],
        sha256: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Verification reads the files that it names.
    #[test]
    fn a_receipt_names_no_files_elsewhere() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["../../x.safetensors", "/dev/zero", "run.yaml"] {
            let weights = BTreeMap::from([(name.to_string(), 9)]);
            Receipt { weights, ..example() }.write(folder.path()).unwrap();
            let refused = Receipt::read(folder.path()).unwrap_err().to_string();
            let problem = format!("receipt.json: names the weights {name:?}");
            assert!(refused.contains(&problem), "{refused}");
        }
    }
}
