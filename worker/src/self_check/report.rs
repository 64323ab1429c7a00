//! The results of the sections of a self-check, and the line of each.

use crate::program::exit_code::{exit_now, FAILURE};
use crate::program::output;
use anyhow::{bail, Result};
use serde_json::{json, Map, Value as Json};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use tensor::TensorError;

/// The facts of a section, by name.
pub(crate) type Figures = Map<String, Json>;

/// What a section found.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    text: String,
    figures: Figures,
    skipped: bool,
}

impl Findings {
    /// The end of the section's line.
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Findings { text: text.into(), ..Findings::default() }
    }

    /// A section that this device does not need, and why.
    pub(crate) fn skipped(reason: impl Into<String>) -> Self {
        let text: String = reason.into();
        let skipped = Findings::default().figure("skipped", text.as_str());
        Findings { text, skipped: true, ..skipped }
    }

    /// Adds a fact.
    pub(crate) fn figure(mut self, name: &str, value: impl Into<Json>) -> Self {
        self.figures.insert(name.into(), value.into());
        self
    }
}

/// Why a section failed.
#[derive(Debug)]
pub(crate) struct Problem {
    /// The problem, and what to do.
    text: String,
    figures: Figures,
    /// Whether later sections would fail, too.
    is_last: bool,
}

impl Problem {
    /// A problem that leaves later sections their sense.
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Problem { text: text.into(), figures: Figures::new(), is_last: false }
    }

    /// A problem after which nothing else can be checked.
    pub(crate) fn last(text: impl Into<String>) -> Self {
        Problem { is_last: true, ..Problem::new(text) }
    }

    /// An error of libtorch at some place, with what to do.
    pub(crate) fn at(place: &str, error: &TensorError) -> Self {
        const BROKEN: &str = "the device is broken for this process: check again, and if it fails \
                              again, look for `Xid` in dmesg, update the driver, and test the GPU \
                              with nvidia-smi";
        const FULL: &str = "other programs may have the memory: nvidia-smi shows them";
        const OTHER: &str = "check again with an updated driver, and report this if it stays";
        let (remedy, is_last) = match error {
            error if error.is_device_broken() => (BROKEN, true),
            error if error.is_out_of_memory() => (FULL, false),
            _ => (OTHER, false),
        };
        Problem { is_last, ..Problem::new(format!("{place}{error}; {remedy}")) }
    }

    /// Adds the facts that were found nevertheless.
    pub(crate) fn with(self, findings: Findings) -> Self {
        Problem { figures: findings.figures, ..self }
    }
}

impl From<TensorError> for Problem {
    fn from(error: TensorError) -> Self {
        Problem::at("", &error)
    }
}

/// Ends the process if a section never ends: a device or a driver that hangs reports no error.
/// Dropping it ends the watch.
struct Watch(#[allow(dead_code, reason = "dropping it wakes the thread")] mpsc::Sender<()>);

impl Watch {
    /// Far longer than any section takes.
    const LIMIT: Duration = Duration::from_secs(300);

    fn start(section: &'static str) -> Self {
        let (section_end, ended) = mpsc::channel();
        std::thread::spawn(move || {
            if ended.recv_timeout(Self::LIMIT) == Err(mpsc::RecvTimeoutError::Timeout) {
                let seconds = Self::LIMIT.as_secs();
                output::warn(&format!(
                    "worker: --self-check: {section} has not ended after {seconds} s, so the \
                     device or its driver hangs; look for `Xid` in dmesg, and restart the machine"
                ));
                exit_now(FAILURE);
            }
        });
        Watch(section_end)
    }
}

/// The sections so far.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// Whether lines are JSON.
    json: bool,
    failed: Vec<&'static str>,
    unchecked: Vec<&'static str>,
    /// Why the first line that is missing was not written.
    unwritten: Option<std::io::Error>,
    stopped: bool,
}

impl Report {
    pub(crate) fn new(json: bool) -> Self {
        Report { json, ..Report::default() }
    }

    /// Runs a section and prints its line, unless an earlier one has left it no sense.
    pub(crate) fn section(
        &mut self,
        name: &'static str,
        check: impl FnOnce() -> Result<Findings, Problem>,
    ) {
        if self.stopped {
            self.unchecked.push(name);
            return;
        }
        let begin = Instant::now();
        let _watch = Watch::start(name);
        let result = tensor::panics::catch(check).unwrap_or_else(|error| Err(error.into()));
        let seconds = begin.elapsed().as_secs_f64();
        if let Err(problem) = &result {
            self.failed.push(name);
            self.stopped = problem.is_last;
        }
        let written = output::result(&match self.json {
            true => json_line(name, &result, seconds),
            false => text_line(name, &result, seconds),
        });
        self.unwritten = self.unwritten.take().or(written.err());
    }

    /// The result of all sections.
    ///
    /// # Errors
    /// A section failed, or the report is incomplete.
    pub(crate) fn end(self) -> Result<()> {
        let mut problems = Vec::new();
        if !self.failed.is_empty() {
            problems.push(format!("{} failed", self.failed.join(", ")));
        }
        if !self.unchecked.is_empty() {
            problems.push(format!("not checked: {}", self.unchecked.join(", ")));
        }
        if let Some(error) = self.unwritten {
            problems.push(format!("standard output: {error}"));
        }
        match problems.is_empty() {
            true => Ok(()),
            false => bail!("--self-check: {}", problems.join("; ")),
        }
    }
}

fn text_line(name: &str, result: &Result<Findings, Problem>, seconds: f64) -> String {
    match result {
        Ok(Findings { text, skipped: true, .. }) => format!("{name} ... skipped: {text}"),
        Ok(Findings { text, .. }) => format!("{name} ... ok ({seconds:.1} s): {text}"),
        Err(Problem { text, .. }) => format!("{name} ... failed ({seconds:.1} s): {text}"),
    }
}

fn json_line(name: &str, result: &Result<Findings, Problem>, seconds: f64) -> String {
    let (text, figures, problem) = match result {
        Ok(Findings { text, figures, .. }) => (Some(text), figures, None),
        Err(Problem { text, figures, .. }) => (None, figures, Some(text)),
    };
    let line = json!({
        "section": name,
        "ok": problem.is_none(),
        "seconds": seconds,
        "text": text,
        "figures": figures,
        "problem": problem,
    });
    line.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(result: &Result<Findings, Problem>) -> (String, Json) {
        let json = serde_json::from_str(&json_line("memory", result, 0.5)).unwrap();
        (text_line("memory", result, 0.5), json)
    }

    #[test]
    fn a_section_has_a_line_for_people_and_one_for_programs() {
        let (text, json) = lines(&Ok(Findings::new("all of it").figure("bytes", 64)));
        assert_eq!(text, "memory ... ok (0.5 s): all of it");
        let expected = json!({"section": "memory", "ok": true, "seconds": 0.5,
            "text": "all of it", "figures": {"bytes": 64}, "problem": null});
        assert_eq!(json, expected);
        let (text, json) = lines(&Ok(Findings::skipped("not needed")));
        assert_eq!(text, "memory ... skipped: not needed");
        assert_eq!(json["figures"], json!({"skipped": "not needed"}));
        let problem = Problem::new("none of it").with(Findings::new("").figure("bytes", 0));
        let (text, json) = lines(&Err(problem));
        assert_eq!(text, "memory ... failed (0.5 s): none of it");
        assert_eq!(json["figures"], json!({"bytes": 0}));
        assert_eq!((&json["ok"], &json["problem"]), (&json!(false), &json!("none of it")));
    }

    #[test]
    fn what_failed_is_named_with_what_was_not_checked() {
        let mut report = Report::new(true);
        report.section("driver", || Ok(Findings::new("")));
        report.section("streams", || Err(Problem::new("late")));
        assert_eq!(report.failed, ["streams"]);
        report.section("memory", || Err(Problem::last("broken")));
        report.section("layers", || Ok(Findings::new("")));
        assert_eq!(
            report.end().unwrap_err().to_string(),
            "--self-check: streams, memory failed; not checked: layers"
        );
        assert!(Report::new(false).end().is_ok());
    }

    #[test]
    fn a_report_that_was_not_written_is_an_error() {
        let unwritten = || Some(std::io::Error::other("the disk is full"));
        let report = Report { unwritten: unwritten(), ..Report::default() };
        let said = report.end().unwrap_err().to_string();
        assert_eq!(said, "--self-check: standard output: the disk is full");
        let report = Report { unwritten: unwritten(), failed: vec!["memory"], ..Report::default() };
        let said = report.end().unwrap_err().to_string();
        assert_eq!(said, "--self-check: memory failed; standard output: the disk is full");
    }

    #[test]
    fn nothing_is_checked_on_a_broken_device() {
        let text = "CUDA error: an illegal memory access was encountered";
        let problem = Problem::from(TensorError::Libtorch {
            attempted: "a copy".into(),
            message: text.into(),
        });
        assert!(problem.is_last && problem.text.contains(text), "{}", problem.text);
        assert!(!Problem::from(TensorError::invalid("a copy", "no")).is_last);
    }
}
