//! A line of JSON for every step.

use crate::look::Look;
use crate::step::StepReport;
use crate::BossManError;
use serde::Serialize;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// A file that gets a line a step: `{"step":1,"loss":0.69,"samples":32,"step_ms":3.1,"lr":0.003}`.
///
/// The loss is the shortest decimal that reads back as the same f32; `null` where it is not a number.
pub struct Metrics {
    path: PathBuf,
    file: BufWriter<File>,
}

#[derive(Serialize)]
struct Line {
    step: u64,
    loss: f32,
    samples: u64,
    step_ms: f64,
    /// Left out where the step changed no parameter.
    #[serde(skip_serializing_if = "Option::is_none")]
    lr: Option<f64>,
}

impl Metrics {
    /// Makes the file, in place of one that is there.
    pub fn create(path: &Path) -> Result<Self, BossManError> {
        let file = File::create(path).map_err(|e| BossManError::file(path, e))?;
        Ok(Metrics { path: path.to_path_buf(), file: BufWriter::new(file) })
    }

    /// Writes a line of a look at the model after an epoch:
    /// `{"step":469,"epoch":1,"validation":{"loss":0.05,"accuracy":0.98}}`, with `bleu` where texts were translated.
    pub fn write_look(&mut self, step: u64, epoch: u64, look: &Look) -> Result<(), BossManError> {
        self.line(&serde_json::json!({"step": step, "epoch": epoch, "validation": look.to_json()}))
    }

    /// Writes the line of a step, through to the file, so that others can follow it.
    pub fn write(&mut self, report: &StepReport) -> Result<(), BossManError> {
        let step_ms = (report.time.as_secs_f64() * 1e6).round() / 1e3;
        let line = Line { step: report.step, loss: report.loss, samples: report.samples, step_ms, lr: report.lr };
        self.line(&line)
    }

    fn line(&mut self, line: &impl Serialize) -> Result<(), BossManError> {
        let written = serde_json::to_writer(&mut self.file, line).map_err(std::io::Error::from);
        let written = written.and_then(|()| self.file.write_all(b"\n")).and_then(|()| self.file.flush());
        written.map_err(|e| BossManError::file(&self.path, e))
    }
}
