//! `log.txt`: the lines of the console, with their times.

use crate::events::{Console, Event, Observer};
use crate::output::safe;
use crate::BossManError;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Appends what the console shows without a bar. A full disk does not end the run; the log of
/// events warns of it.
pub(crate) struct TextLog {
    console: Console,
    file: File,
    began: Instant,
}

impl TextLog {
    /// Opens the file, or continues it.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn open(path: PathBuf) -> Result<Self, BossManError> {
        let file = File::options().append(true).create(true).open(&path);
        let file = file.map_err(|e| BossManError::io(Path::new(&path), &e))?;
        Ok(TextLog { console: Console::without_bar(), file, began: Instant::now() })
    }
}

impl Observer for TextLog {
    fn on_event(&mut self, event: &Event) -> Result<(), BossManError> {
        // The lines of an invitation hold the join ticket.
        if matches!(event, Event::Waiting { invitation: Some(_), .. }) {
            return Ok(());
        }
        let now = Instant::now();
        let seconds = (now - self.began).as_secs_f64();
        for line in self.console.lines(event, now) {
            writeln!(self.file, "{seconds:9.1} s  {}", safe(line.text())).ok();
        }
        Ok(())
    }
}
