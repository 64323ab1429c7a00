//! Hashes of files of a run's folder, and of the metrics up to each digest.

use crate::BossManError;
use ::data::FileHash;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

/// The most bytes of a line of metrics. A longer one belongs to the step before it.
const MAX_LINE: u64 = 1 << 16;

/// The size and the SHA-256 of a file, or of its beginning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hashed {
    /// Its size.
    pub bytes: u64,
    /// Its SHA-256 in hexadecimal digits.
    pub sha256: String,
}

impl From<FileHash> for Hashed {
    fn from(hash: FileHash) -> Self {
        Hashed { bytes: hash.bytes, sha256: hash.hex() }
    }
}

impl Hashed {
    /// Hashes a file. `None` if it is no file, or is not there.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn of_file(path: &Path) -> Result<Option<Self>, BossManError> {
        if !path.is_file() {
            return Ok(None);
        }
        FileHash::of(path).map(|hash| Some(hash.into())).map_err(|e| BossManError::io(path, &e))
    }
}

/// The losses of steps and the hashes of metrics up to certain steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct MetricsRead {
    /// For each of the steps, the hash of the lines of all steps up to it.
    pub(crate) up_to: Vec<Hashed>,
    /// The loss of each step, with the step. `None` if it was no number.
    pub(crate) losses: Vec<(u64, Option<f32>)>,
    /// The results of validations, by their steps.
    pub(crate) validations: BTreeMap<u64, serde_json::Value>,
}

#[derive(Deserialize)]
struct Line {
    step: u64,
    #[serde(default)]
    loss: Option<f32>,
    /// Only lines of validations have it.
    #[serde(default)]
    validation: Option<serde_json::Value>,
}

impl MetricsRead {
    /// Reads metrics. `steps` ascend. `None` if there is no file.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn of(path: &Path, steps: &[u64]) -> Result<Option<Self>, BossManError> {
        // A device or a pipe has no beginning to read.
        if !path.is_file() {
            return Ok(None);
        }
        let fault = |e: std::io::Error| BossManError::io(path, &e);
        let mut file = BufReader::new(File::open(path).map_err(fault)?);
        let (mut hash, mut bytes) = (Sha256::new(), 0);
        let mut read = MetricsRead::default();
        let mut line = Vec::new();
        loop {
            line.clear();
            let length = (&mut file).take(MAX_LINE).read_until(b'\n', &mut line).map_err(fault)?;
            let parsed: Option<Line> = serde_json::from_slice(&line).ok();
            let step = parsed.as_ref().map_or(0, |line| line.step);
            while let Some(up_to) = steps.get(read.up_to.len()) {
                if length > 0 && step <= *up_to {
                    break;
                }
                read.up_to.push(hashed(&hash, bytes));
            }
            if length == 0 {
                return Ok(Some(read));
            }
            hash.update(&line);
            bytes += length as u64;
            match parsed {
                Some(Line { step, loss, validation: None }) => read.losses.push((step, loss)),
                Some(Line { step, validation: Some(result), .. }) => {
                    read.validations.insert(step, result);
                }
                None => {}
            }
        }
    }
}

fn hashed(hash: &Sha256, bytes: u64) -> Hashed {
    let sha256 = hash.clone().finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    Hashed { bytes, sha256 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_hashed_up_to_each_step() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let lines = [
            "{\"step\":1,\"loss\":0.5}\n",
            "{\"step\":2,\"loss\":null}\n",
            "{\"step\":2,\"epoch\":1,\"validation\":{\"loss\":0.25}}\n",
            "{\"step\":3,\"loss\":0.125}\n",
        ];
        std::fs::write(&path, lines.concat()).unwrap();
        let read = MetricsRead::of(&path, &[1, 2, 5]).unwrap().unwrap();
        assert_eq!(read.losses, [(1, Some(0.5)), (2, None), (3, Some(0.125))]);
        for (up_to, lines) in read.up_to.iter().zip([&lines[..1], &lines[..3], &lines[..]]) {
            let part = folder.path().join("part");
            std::fs::write(&part, lines.concat()).unwrap();
            assert_eq!(Hashed::of_file(&part).unwrap().as_ref(), Some(up_to));
        }
        assert_eq!(read.up_to.len(), 3);
        assert_eq!(MetricsRead::of(&folder.path().join("none"), &[1]).unwrap(), None);
    }

    #[test]
    fn metrics_that_are_none_do_no_harm() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let text = format!("\u{0}{}\n{{\"step\":-1}}\n{{", "x".repeat(200_000));
        std::fs::write(&path, &text).unwrap();
        let read = MetricsRead::of(&path, &[1]).unwrap().unwrap();
        assert_eq!((read.losses.len(), read.up_to[0].bytes), (0, text.len() as u64));
    }
}
