//! A line of JSON for every step.

use crate::data::disk;
use crate::session::train_step::StepReport;
use crate::train::validation::ValidationResult;
use crate::BossManError;
use serde::Serialize;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

/// A file with a line for each step:
/// `{"step":1,"loss":0.69,"samples":32,"step_ms":3.1,"lr":0.003}`.
///
/// The loss is the shortest decimal that reads back as the same f32, or `null` if it is not finite.
pub struct Metrics {
    path: PathBuf,
    file: File,
    /// Bytes of whole lines.
    complete_bytes: u64,
}

#[derive(Serialize)]
struct Line {
    step: u64,
    loss: f32,
    samples: u64,
    step_ms: f64,
    /// Left out if the step changed no parameter.
    #[serde(skip_serializing_if = "Option::is_none")]
    lr: Option<f64>,
}

impl Metrics {
    /// Creates the file, or replaces an existing one.
    pub fn create(path: &Path) -> Result<Self, BossManError> {
        let file = File::create(path).map_err(|e| BossManError::io(path, &e))?;
        Ok(Metrics { path: path.to_path_buf(), file, complete_bytes: 0 })
    }

    /// Continues a file after its first `bytes` bytes. The rest belongs to steps that are repeated.
    pub fn resume(path: &Path, bytes: u64) -> Result<Self, BossManError> {
        let file =
            File::options().append(true).open(path).map_err(|e| BossManError::io(path, &e))?;
        let there = file.metadata().map_err(|e| BossManError::io(path, &e))?.len();
        if there < bytes {
            let problem = format!(
                "has {there} bytes, but had {bytes} when the checkpoint was made; name that run's \
                 metrics"
            );
            return Err(BossManError::file(path, problem));
        }
        file.set_len(bytes).map_err(|e| BossManError::io(path, &e))?;
        Ok(Metrics { path: path.to_path_buf(), file, complete_bytes: bytes })
    }

    /// A function that flushes the lines to the disk, for another thread.
    pub(crate) fn flush(
        &self,
    ) -> Result<impl FnOnce() -> Result<(), BossManError> + Send + 'static, BossManError> {
        let path = self.path.clone();
        let file = self.file.try_clone().map_err(|e| BossManError::io(&path, &e))?;
        Ok(move || disk::flush(&file).map_err(|e| BossManError::io(&path, &e)))
    }

    /// Bytes of whole lines.
    pub fn bytes(&self) -> u64 {
        self.complete_bytes
    }

    /// Writes the line of a validation after an epoch:
    /// `{"step":469,"epoch":1,"validation":{"loss":0.05,"accuracy":0.98}}`, with `bleu` if texts
    /// were translated.
    pub fn write_validation(
        &mut self,
        step: u64,
        epoch: u64,
        validation: &ValidationResult,
    ) -> Result<(), BossManError> {
        self.line(
            &serde_json::json!({"step": step, "epoch": epoch, "validation": validation.to_json()}),
        )
    }

    /// Writes the line of a step to the file at once, so that other programs can follow it.
    pub fn write(&mut self, report: &StepReport) -> Result<(), BossManError> {
        let step_ms = (report.time.as_secs_f64() * 1e6).round() / 1e3;
        let line = Line {
            step: report.step,
            loss: report.loss,
            samples: report.samples,
            step_ms,
            lr: report.lr,
        };
        self.line(&line)
    }

    fn line(&mut self, line: &impl Serialize) -> Result<(), BossManError> {
        let mut text = serde_json::to_vec(line).map_err(|e| BossManError::file(&self.path, e))?;
        text.push(b'\n');
        self.file.write_all(&text).map_err(|e| {
            // Half a line would disturb the readers of the file.
            self.file.set_len(self.complete_bytes).ok();
            BossManError::io(&self.path, &e)
        })?;
        self.complete_bytes += text.len() as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes to the device that is always full.
    #[test]
    #[cfg(target_os = "linux")]
    fn a_full_disk_is_named_with_what_helps() {
        let report = StepReport {
            step: 1,
            loss: 0.5,
            samples: 3,
            tokens: None,
            time: std::time::Duration::ZERO,
            lr: None,
            grad_norm: None,
        };
        let mut metrics = Metrics::create(Path::new("/dev/full")).unwrap();
        let error = metrics.write(&report).unwrap_err().to_string();
        assert!(
            error.starts_with("/dev/full: No space left on device")
                && error.ends_with("name another place"),
            "{error}"
        );
    }
}
