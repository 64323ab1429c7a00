//! Compares what is in a run's folder with its receipt.

use super::{Difference, Verification};
use crate::checkpoint::ReadError;
use crate::receipt::{
    made_weights, parts_with_files, Hashed, History, MetricsRead, Receipt, FILES, METRICS, RECEIPT,
    WEIGHTS,
};
use crate::run_file::Validation;
use crate::{BossManError, Model};
use ::data::{DataHash, Dataset};

impl Verification {
    /// Compares files, data, metrics, events and checkpoints with the receipt. Returns everything
    /// that differs.
    ///
    /// # Errors
    /// A file cannot be read.
    pub async fn compare(&mut self) -> Result<Vec<Difference>, BossManError> {
        let mut found = self.compare_files()?;
        found.extend(self.compare_events()?);
        found.extend(self.compare_metrics()?);
        if found.iter().any(|difference| difference.place == "run.yaml") {
            // It says what else to read.
            return Ok(found);
        }
        let model = Model::from_file(&self.file.model)?;
        if !model.files().map(|(hash, _)| hash).eq(&self.receipt.model_files) {
            found.push(Difference::new("the model", "its layers are built from other files"));
        }
        found.extend(self.compare_inputs(&model)?);
        found.extend(self.compare_checkpoints().await?);
        Ok(found)
    }

    fn compare_files(&self) -> Result<Vec<Difference>, BossManError> {
        let mut found = Vec::new();
        for name in FILES {
            let problem =
                match (Hashed::of_file(&self.folder.join(name))?, self.receipt.files.get(name)) {
                    (there, expected) if there.as_ref() == expected => continue,
                    (None, _) => "is missing".to_string(),
                    (Some(_), None) => format!("is not in {RECEIPT}"),
                    (Some(there), Some(expected)) => {
                        format!(
                            "its SHA-256 is {}, and {RECEIPT} has {}",
                            there.sha256, expected.sha256
                        )
                    }
                };
            found.push(Difference::new(name, problem));
        }
        let Receipt { files, weights, steps, .. } = &self.receipt;
        for (name, step) in weights.iter().filter(|(_, step)| !(1..=*steps).contains(*step)) {
            let problem =
                format!("{RECEIPT} says that step {step} made it, which is none of 1 to {steps}");
            found.push(Difference::new(name, problem));
        }
        let unknown = |name: &&str| files.contains_key(*name) && !weights.contains_key(*name);
        for name in WEIGHTS.into_iter().filter(unknown) {
            let problem = format!("{RECEIPT} has no step that made it, so nothing repeats it");
            found.push(Difference::new(name, problem));
        }
        Ok(found)
    }

    fn compare_events(&self) -> Result<Vec<Difference>, BossManError> {
        let differs = |problem: String| vec![Difference::new("events.jsonl", problem)];
        let receipt = &self.receipt;
        let Some(history) = History::of_folder(&self.folder)? else {
            return Ok(differs("is missing".into()));
        };
        for digest in &receipt.digests {
            match history.digests.get(&digest.step) {
                Some(there) if *there == digest.digest => {}
                there => {
                    let there = there.map_or("missing".into(), |there| format!("{there:?}"));
                    return Ok(differs(format!(
                        "the digest of step {} is {there}, and {RECEIPT} has {:?}",
                        digest.step, digest.digest
                    )));
                }
            }
        }
        let same = [
            ("last step", history.step == receipt.steps),
            ("end of the run", history.end == receipt.end),
            ("number of digests", history.digests.len() == receipt.digests.len()),
            ("sessions", history.sessions == receipt.sessions),
            ("changes of workers", history.changes == receipt.changes),
            ("hashes of data and initial weights", history.inputs == receipt.inputs),
            ("steps of the weights", made_weights(&history, &receipt.files) == receipt.weights),
        ];
        if let Some((what, _)) = same.into_iter().find(|(_, same)| !same) {
            return Ok(differs(format!("its {what} is not as {RECEIPT} has it")));
        }
        let metrics = MetricsRead::of(&self.folder.join(METRICS), &[])?.unwrap_or_default();
        let in_metrics = |step: &u64| metrics.validations.get(step);
        let mut validations = history.validations.iter();
        let other = validations.find(|(step, result)| in_metrics(step) != Some(*result));
        Ok(other.map_or(Vec::new(), |(step, _)| {
            differs(format!("the validation of step {step} is not that of {METRICS}"))
        }))
    }

    fn compare_metrics(&self) -> Result<Option<Difference>, BossManError> {
        let digests = &self.receipt.digests;
        let steps: Vec<u64> = digests.iter().map(|digest| digest.step).collect();
        let read = MetricsRead::of(&self.folder.join(METRICS), &steps)?.unwrap_or_default();
        // The repetition compares one loss for each step.
        if let Some(pair) = read.losses.windows(2).find(|pair| pair[0].0 >= pair[1].0) {
            let problem = format!("step {} comes after step {}", pair[1].0, pair[0].0);
            return Ok(Some(Difference::new(METRICS, problem)));
        }
        let mut there = read.up_to.iter();
        let mut last_equal = 0;
        for digest in digests {
            if digest.metrics.as_ref() == there.next() {
                last_equal = digest.step;
                continue;
            }
            let problem = format!(
                "the lines of steps {} to {} are not those of {RECEIPT}",
                last_equal + 1,
                digest.step
            );
            return Ok(Some(Difference::new(METRICS, problem)));
        }
        Ok(None)
    }

    fn compare_inputs(&self, model: &Model) -> Result<Vec<Difference>, BossManError> {
        let Some(expected) = &self.receipt.inputs else { return Ok(Vec::new()) };
        let validation = self.file.data.as_ref().and_then(|data| data.validation.as_ref());
        let is_split = matches!(validation, Some(Validation::Split(_)));
        let mut found = Vec::new();
        for (part, data) in parts_with_files(&self.file.parts(model)?, is_split) {
            let there = data.hash()?;
            match expected.data.get(part) {
                Some(expected) if *expected == there => {}
                Some(expected) => found.push(different_data(part, &data, &there, expected)?),
                None => found.push(Difference::new(
                    format!("the {part} data"),
                    format!("is not in {RECEIPT}"),
                )),
            }
        }
        if self.file.weights.is_some() && expected.initial_weights.is_none() {
            // The process that read them ended before it had hashed them. So the window that
            // begins with them is not repeated.
            return Ok(found);
        }
        let weights = self.file.initial_weights(None, model)?;
        let there = weights.map(|of| of.digest()).transpose()?;
        if there.map(|digest| digest.to_string()) != expected.initial_weights {
            let problem = format!("are not those of {RECEIPT}");
            found.push(Difference::new("the initial weights", problem));
        }
        Ok(found)
    }

    /// Compares the states of checkpoints with the digests, and notes those that are proven.
    async fn compare_checkpoints(&mut self) -> Result<Vec<Difference>, BossManError> {
        let Some(checkpoints) = &self.checkpoints else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        for entry in checkpoints.list().await? {
            let of_step = |digest: &&crate::receipt::StepDigest| digest.step == entry.step;
            // A state without a digest proves nothing.
            let Some(expected) = self.receipt.digests.iter().find(of_step) else { continue };
            match checkpoints.compared(&entry.name).await {
                Ok(state) => {
                    let digest = state.digest()?.to_string();
                    if digest == expected.digest {
                        self.proven.push(entry.step);
                    } else {
                        let problem = format!(
                            "its state has the digest {digest}, and {RECEIPT} has {}",
                            expected.digest
                        );
                        found.push(Difference::new(&entry.name, problem));
                    }
                }
                Err(ReadError::Unfinished(_)) => {}
                Err(ReadError::Damaged(problem)) => {
                    found.push(Difference::new(&entry.name, problem.to_string()));
                }
                Err(ReadError::Unreadable(error)) => return Err(error),
            }
        }
        Ok(found)
    }
}

/// Names the first file that differs, if the receipt has the hash of each.
fn different_data(
    part: &str,
    data: &Dataset,
    there: &DataHash,
    expected: &DataHash,
) -> Result<Difference, BossManError> {
    let files = data.files()?;
    let other = there.each.iter().zip(&expected.each).position(|(there, other)| there != other);
    let file = other.filter(|_| there.files == expected.files).and_then(|place| files.get(place));
    Ok(match file {
        Some(file) => Difference::new(
            file.display(),
            format!("is not the file of the {part} data that the run read"),
        ),
        None => Difference::new(
            format!("the {part} data"),
            format!(
                "has {} files with {} bytes and other contents; the run read {} files with {} \
                 bytes",
                there.files, there.bytes, expected.files, expected.bytes
            ),
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_file::RunFile;
    use std::collections::BTreeMap;

    /// Otherwise a receipt without the step would pass off any weights as the run's.
    #[test]
    fn weights_of_no_step_are_a_difference() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(WEIGHTS[0]);
        std::fs::write(&path, "of another run").unwrap();
        let hashed = Hashed::of_file(&path).unwrap().unwrap();
        let mut verification = Verification {
            folder: folder.path().into(),
            file: RunFile::from_file("../examples/digits/run.yaml").unwrap(),
            receipt: crate::receipt::example(),
            checkpoints: None,
            proven: Vec::new(),
            losses: BTreeMap::new(),
        };
        verification.receipt.files = BTreeMap::from([(WEIGHTS[0].into(), hashed)]);
        assert_eq!(verification.compare_files().unwrap(), []);
        verification.receipt.weights.clear();
        let found = verification.compare_files().unwrap();
        assert_eq!(found.len(), 1);
        assert!(found[0].to_string().starts_with("weights.safetensors: receipt.json has no step"));
    }
}
