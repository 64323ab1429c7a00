//! `events.jsonl`: every event of a run, one line each.

use crate::events::{Event, Events, Observer};
use crate::BossManError;
use serde::Serialize;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// The version of the format.
pub(super) const VERSION: u32 = 1;
/// From this size on only every `THINNED`th step is written.
const MAX_BYTES: u64 = 1 << 30;
const THINNED: u64 = 100;

/// Appends events. Nothing is ever taken back, so repeated steps and recoveries stay visible.
pub(crate) struct EventLog {
    path: PathBuf,
    file: File,
    bytes: u64,
    /// The last step, if it is not written.
    skipped: Option<Event>,
    /// Sees the one warning if the disk is full.
    warnings: Events,
    has_failed: bool,
}

#[derive(Serialize)]
struct Line<'a> {
    /// Seconds since 1970, UTC.
    time: f64,
    version: u32,
    #[serde(flatten)]
    event: &'a Event,
}

impl EventLog {
    /// Opens the file, or continues it.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn open(path: PathBuf, warnings: Events) -> Result<Self, BossManError> {
        let (file, bytes) = open(&path).map_err(|e| BossManError::io(&path, &e))?;
        Ok(EventLog { path, file, bytes, skipped: None, warnings, has_failed: false })
    }

    /// Writes an event, after the step that it follows.
    fn write(&mut self, event: &Event) -> std::io::Result<()> {
        let skipped = self.skipped.take().filter(|_| !matches!(event, Event::Step { .. }));
        skipped.map_or(Ok(()), |step| self.write_line(&step))?;
        self.write_line(event)
    }

    fn write_line(&mut self, event: &Event) -> std::io::Result<()> {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let time = (time.as_secs_f64() * 1e3).round() / 1e3;
        let mut text = serde_json::to_vec(&Line { time, version: VERSION, event })?;
        text.push(b'\n');
        let written = self.file.write_all(&text);
        if written.is_err() {
            // Readers skip half a line, but the next one must begin anew.
            self.file.set_len(self.bytes).ok();
        }
        written.map(|()| self.bytes += text.len() as u64)
    }
}

/// Opens a file to append to. A line that was torn by a crash gets its end.
fn open(path: &Path) -> std::io::Result<(File, u64)> {
    let mut file = File::options().read(true).append(true).create(true).open(path)?;
    let mut bytes = file.metadata()?.len();
    if bytes > 0 {
        let mut last = [0];
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
        if last != *b"\n" {
            file.write_all(b"\n")?;
            bytes += 1;
        }
    }
    Ok((file, bytes))
}

impl Observer for EventLog {
    /// A full disk costs one warning, and training goes on.
    fn on_event(&mut self, event: &Event) -> Result<(), BossManError> {
        if let Event::Step { report, .. } = event {
            if self.bytes >= MAX_BYTES && !report.step.is_multiple_of(THINNED) {
                self.skipped = Some(event.clone());
                return Ok(());
            }
        }
        if let Err(error) = self.write(event) {
            if !std::mem::replace(&mut self.has_failed, true) {
                let error = BossManError::io(&self.path, &error);
                self.warnings.warn(format!("events are missing from the log: {error}"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use std::sync::Arc;
    use std::time::Instant;

    fn step(step: u64) -> Event {
        let report = crate::StepReport {
            step,
            loss: 0.5,
            samples: 32,
            tokens: None,
            time: std::time::Duration::from_micros(3100),
            lr: Some(0.003),
            grad_norm: None,
        };
        Event::Step { report, timelines: None }
    }

    /// EVENT-1, EVENT-2.
    #[test]
    fn a_torn_line_costs_itself_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events.jsonl");
        std::fs::write(&path, "{\"time\":1.0,\"version\":1,\"event\":\"st").unwrap();
        let mut log = EventLog::open(path.clone(), Events::unobserved()).unwrap();
        log.on_event(&step(7)).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let last: serde_json::Value = serde_json::from_str(text.lines().nth(1).unwrap()).unwrap();
        assert_eq!(
            (&last["event"], &last["step"], &last["version"]),
            (&"step".into(), &7.into(), &1.into())
        );
        assert!(last["time"].as_f64().unwrap() > 1e9);
    }

    /// EVENT-5.
    #[test]
    fn a_very_long_log_keeps_all_but_steps() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events.jsonl");
        let mut log = EventLog::open(path.clone(), Events::unobserved()).unwrap();
        log.bytes = MAX_BYTES;
        (1..=250).for_each(|number| log.on_event(&step(number)).unwrap());
        log.on_event(&Event::warning("w")).unwrap();
        log.on_event(&Event::warning("v")).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let lines = text.lines().map(serde_json::from_str::<serde_json::Value>);
        let lines = lines.map(|line| line.unwrap());
        // What is said about a step follows it.
        let told: Vec<_> =
            lines.map(|line| [&line["step"], &line["message"]].map(ToString::to_string)).collect();
        let null = || "null".to_string();
        let step = |step: u64| [step.to_string(), null()];
        let warning = |text: &str| [null(), format!("\"{text}\"")];
        assert_eq!(told, [step(100), step(200), step(250), warning("w"), warning("v")]);
    }

    /// EVENT-4.
    #[test]
    #[cfg(target_os = "linux")]
    fn a_full_disk_costs_one_warning() {
        #[derive(Default)]
        struct Warnings(Vec<Event>);
        impl Observer for Warnings {
            fn on_event(&mut self, event: &Event) -> Result<(), BossManError> {
                self.0.push(event.clone());
                Ok(())
            }
        }
        let seen = Arc::new(Mutex::new(Warnings::default()));
        let warnings = Events::unobserved().with(seen.clone());
        let full = PathBuf::from("/dev/full");
        let file = File::options().append(true).open(&full).unwrap();
        let mut log =
            EventLog { path: full, file, bytes: 0, skipped: None, warnings, has_failed: false };
        (1..=3).for_each(|number| log.on_event(&step(number)).unwrap());
        assert_eq!(seen.lock().0.len(), 1);
    }

    /// The bound. The median of many, so that other work on the machine does not count.
    #[test]
    fn an_event_takes_less_than_20_microseconds() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events.jsonl");
        let mut log = EventLog::open(path, Events::unobserved()).unwrap();
        let mut times: Vec<_> = (1..=1001)
            .map(|number| {
                let (event, began) = (step(number), Instant::now());
                log.on_event(&event).unwrap();
                began.elapsed()
            })
            .collect();
        times.sort();
        assert!(times[500].as_micros() < 20, "{:?}", times[500]);
    }
}
