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
        Ok(Some(EventReader { path, file, partial }))
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
            let Event::Warning { message } = logged.event else { panic!("{logged:?}") };
            seen.push((logged.time, message));
        }
        assert_eq!(seen, [(1.5, "a".to_string()), (1.5, "b".to_string())]);
        assert!(EventReader::open(&folder.path().join("none")).unwrap().is_none());
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
