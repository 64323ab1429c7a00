//! Reads `events.jsonl`, also while it grows.

use super::event_log::VERSION;
use super::files::open;
use crate::events::Event;
use crate::BossManError;
use serde::Deserialize;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// The most bytes of a line. A longer one is not ours.
const MAX_LINE: u64 = 1 << 20;

/// The events of a run, in their order.
pub struct EventReader {
    path: PathBuf,
    file: BufReader<File>,
    /// The beginning of a line that is not yet whole.
    partial: Vec<u8>,
    /// A line that was read to find the end of a row of steps.
    ahead: Option<String>,
}

/// A line of the file.
#[derive(Clone, Debug, Deserialize)]
pub struct LoggedEvent {
    /// Seconds since 1970, UTC.
    pub time: f64,
    version: u32,
    /// The event.
    #[serde(flatten)]
    pub event: Event,
}

impl LoggedEvent {
    /// Parses a line. Returns `None` if it is torn, no event, or of a later version.
    pub fn parse(line: &str) -> Option<Self> {
        let logged: LoggedEvent = serde_json::from_str(line).ok()?;
        (logged.version <= VERSION).then_some(logged)
    }
}

impl EventReader {
    /// Opens the events of the run in this folder. `None` if there are none.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn open(folder: &Path) -> Result<Option<Self>, BossManError> {
        let path = folder.join("events.jsonl");
        let Some(file) = open(&path)? else { return Ok(None) };
        let (file, partial) = (BufReader::new(file), Vec::new());
        Ok(Some(EventReader { path, file, partial, ahead: None }))
    }

    /// The next whole line. `None` at the end so far; later there may be more.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn next_line(&mut self) -> Result<Option<String>, BossManError> {
        let fault = |e: std::io::Error| BossManError::io(&self.path, &e);
        loop {
            let room = MAX_LINE.saturating_sub(self.partial.len() as u64);
            let read = (&mut self.file).take(room).read_until(b'\n', &mut self.partial);
            let read = read.map_err(fault)?;
            if self.partial.ends_with(b"\n") {
                let line = std::mem::take(&mut self.partial);
                return Ok(Some(String::from_utf8_lossy(&line).trim_end().to_string()));
            }
            if read == 0 && room > 0 {
                return Ok(None);
            }
            if room == 0 {
                // The rest of a line that is too long becomes lines that are no events.
                self.partial.clear();
            }
        }
    }

    /// The next event, without the steps that another one follows at once. They say nothing that it
    /// does not replace, and to parse a million of them takes seconds.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn next_change(&mut self) -> Result<Option<LoggedEvent>, BossManError> {
        let mut steps = [None, None];
        loop {
            let line = match self.ahead.take() {
                Some(line) => Some(line),
                None => self.next_line()?,
            };
            match line {
                Some(line) if is_step(&line) => steps = [steps[1].take(), Some(line)],
                line => {
                    // The last line of a process that was killed may be torn.
                    let last = steps.iter_mut().rev().filter_map(Option::take);
                    let last = last.filter_map(|line| LoggedEvent::parse(&line)).next();
                    let event = line.as_deref().and_then(LoggedEvent::parse);
                    match (last, line) {
                        (Some(step), line) => {
                            self.ahead = line;
                            return Ok(Some(step));
                        }
                        (None, None) => return Ok(None),
                        (None, Some(_)) if event.is_some() => return Ok(event),
                        (None, Some(_)) => steps = [None, None],
                    }
                }
            }
        }
    }

    /// The next event. Skips lines that are torn, or of a later version.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn next_event(&mut self) -> Result<Option<LoggedEvent>, BossManError> {
        while let Some(line) = self.next_line()? {
            if let Some(event) = LoggedEvent::parse(&line) {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }
}

/// Whether a line is that of a step, by its beginning.
fn is_step(line: &str) -> bool {
    let rest = line.strip_prefix("{\"time\":").and_then(|line| line.split_once(','));
    let rest = rest.and_then(|(_, rest)| rest.strip_prefix("\"version\":"));
    rest.and_then(|rest| rest.split_once(',')).is_some_and(|(version, rest)| {
        version.parse() == Ok(VERSION) && rest.starts_with("\"event\":\"step\",")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn warning(text: &str) -> String {
        format!("{{\"time\":1.5,\"version\":1,\"event\":\"warning\",\"message\":\"{text}\"}}\n")
    }

    /// EVENT-2, EVENT-5, EVENT-6.
    #[test]
    fn torn_foreign_and_long_lines_are_skipped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events.jsonl");
        let long = "x".repeat(3 << 20);
        let later = warning("later").replace("\"version\":1", "\"version\":2");
        let torn = "{\"time\":1.0,\"ev";
        let text = [warning("a"), later, format!("{torn}\n{long}\n\u{0}\n"), warning("b")].concat();
        std::fs::write(&path, text).unwrap();
        let mut reader = EventReader::open(folder.path()).unwrap().unwrap();
        let mut seen = Vec::new();
        while let Some(logged) = reader.next_event().unwrap() {
            let Event::Warning(remark) = logged.event else { panic!("{logged:?}") };
            seen.push((logged.time, remark.message));
        }
        assert_eq!(seen, [(1.5, "a".to_string()), (1.5, "b".to_string())]);
        assert!(EventReader::open(&folder.path().join("none")).unwrap().is_none());
    }

    #[test]
    fn of_a_row_of_steps_the_last_one_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events.jsonl");
        let step = |step: u64| {
            format!(
                "{{\"time\":{step}.5,\"version\":{VERSION},\"event\":\"step\",\"step\":{step},\
                 \"loss\":0.5,\"samples\":2,\"tokens\":null,\"step_ms\":1.0,\"lr\":null,\
                 \"grad_norm\":null}}\n"
            )
        };
        let torn = "{\"time\":1.0,\"version\":1,\"event\":\"step\",\"st\n".to_string();
        let lines = [(1..=5).map(step).collect(), warning("a"), (6..=7).map(step).collect(), torn];
        std::fs::write(path, lines.concat()).unwrap();
        let mut reader = EventReader::open(folder.path()).unwrap().unwrap();
        let mut seen = Vec::new();
        while let Some(logged) = reader.next_change().unwrap() {
            seen.push(match logged.event {
                Event::Step { report, .. } => report.step,
                _ => 0,
            });
        }
        assert_eq!(seen, [5, 0, 7]);
    }

    /// EVENT-7.
    #[test]
    fn a_growing_file_is_followed() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = File::create(folder.path().join("events.jsonl")).unwrap();
        let mut reader = EventReader::open(folder.path()).unwrap().unwrap();
        let line = warning("a");
        let (begin, end) = line.split_at(20);
        for (part, whole) in [(begin, false), (end, true), ("", false)] {
            file.write_all(part.as_bytes()).unwrap();
            assert_eq!(reader.next_event().unwrap().is_some(), whole, "{part}");
        }
    }
}
