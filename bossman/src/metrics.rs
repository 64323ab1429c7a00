//! A line of JSON for every step.

use crate::step::StepReport;
use crate::BossManError;
use serde::Serialize;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// A file that gets a line a step: `{"step":1,"loss":0.69,"samples":32,"step_ms":3.1}`.
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
}

impl Metrics {
    /// Makes the file, in place of one that is there.
    pub fn create(path: &Path) -> Result<Self, BossManError> {
        let file = File::create(path).map_err(|e| BossManError::file(path, e))?;
        Ok(Metrics { path: path.to_path_buf(), file: BufWriter::new(file) })
    }

    /// Writes the line of a step, through to the file, so that others can follow it.
    pub fn write(&mut self, report: &StepReport) -> Result<(), BossManError> {
        let step_ms = (report.time.as_secs_f64() * 1e6).round() / 1e3;
        let line = Line { step: report.step, loss: report.loss, samples: report.samples, step_ms };
        let written = serde_json::to_writer(&mut self.file, &line).map_err(std::io::Error::from);
        let written = written.and_then(|()| self.file.write_all(b"\n")).and_then(|()| self.file.flush());
        written.map_err(|e| BossManError::file(&self.path, e))
    }
}
