//! A line of JSON for every step.

use crate::data::disk;
use crate::events::{Event, Observer};
use crate::session::step_report::StepReport;
use crate::BossManError;
use parking_lot::Mutex;
use serde::Serialize;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Metrics that observe a run, and that the run asks for their length.
pub(crate) type SharedMetrics = Arc<Mutex<Metrics>>;

/// A file with a line for each step:
/// `{"step":1,"loss":0.69,"samples":32,"step_ms":3.1,"lr":0.003}`, and one for each validation:
/// `{"step":469,"epoch":1,"validation":{"loss":0.05,"accuracy":0.98}}`, with `bleu` if texts were
/// translated.
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
    /// Opens the file, and changes nothing in it. A run that resumes needs its first `resumed`
    /// bytes.
    ///
    /// # Errors
    /// It cannot be written, or it has fewer bytes.
    pub fn open(path: &Path, resumed: u64) -> Result<Self, BossManError> {
        let file = File::options().append(true).create(resumed == 0).open(path);
        let file = file.map_err(|e| BossManError::io(path, &e))?;
        let metrics = Metrics { path: path.to_path_buf(), file, complete_bytes: 0 };
        metrics.check_length(resumed).map(|_| metrics)
    }

    /// Continues the file after its first `bytes` bytes. The rest belongs to steps that are
    /// repeated, or to another run.
    fn rewind(&mut self, bytes: u64) -> Result<(), BossManError> {
        // A device or a pipe has no length to set.
        if self.check_length(bytes)? > bytes {
            self.file.set_len(bytes).map_err(|e| BossManError::io(&self.path, &e))?;
        }
        self.complete_bytes = bytes;
        Ok(())
    }

    fn check_length(&self, bytes: u64) -> Result<u64, BossManError> {
        let path = &self.path;
        let there = self.file.metadata().map_err(|e| BossManError::io(path, &e))?.len();
        if there < bytes {
            let problem = format!(
                "has {there} bytes, but had {bytes} when the checkpoint was made; name that run's \
                 metrics"
            );
            return Err(BossManError::file(path, problem));
        }
        Ok(there)
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

impl Observer for Metrics {
    /// Writes each line to the file at once, so that other programs can follow it.
    fn on_event(&mut self, event: &Event) -> Result<(), BossManError> {
        match event {
            Event::Started { metrics_bytes, .. } => self.rewind(*metrics_bytes),
            Event::Step { report, .. } => self.line(&Line::of(report)),
            Event::Validated { step, epoch, validation, .. } => {
                let validation = validation.to_json();
                let line = serde_json::json!({
                    "step": step, "epoch": epoch, "validation": validation
                });
                self.line(&line)
            }
            _ => Ok(()),
        }
    }
}

impl Line {
    fn of(report: &StepReport) -> Self {
        Line {
            step: report.step,
            loss: report.loss,
            samples: report.samples,
            step_ms: (report.time.as_secs_f64() * 1e6).round() / 1e3,
            lr: report.lr,
        }
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
        let mut metrics = Metrics::open(Path::new("/dev/full"), 0).unwrap();
        let event = Event::Step { report, timelines: None };
        let error = metrics.on_event(&event).unwrap_err().to_string();
        assert!(
            error.starts_with("/dev/full: No space left on device")
                && error.ends_with("name another place"),
            "{error}"
        );
    }
}
