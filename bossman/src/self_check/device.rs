//! The worker program's own self-check, which finds the devices.

use crate::self_check::report::{Figures, Findings, Problem, Report};
use crate::self_check::section::Section;
use crate::self_check::settings::{threads, Settings};
use crate::workers::local_processes::worker_program;
use crate::BossManError;
use serde::Deserialize;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

/// A little longer than the worker program waits for one of its sections.
const LIMIT: Duration = Duration::from_secs(330);

/// The section in which the worker program finds its device. Without it the others have no sense.
const DRIVER: &str = "driver";

/// The devices of the runs.
#[derive(Clone, Debug, Default)]
pub(super) struct Devices {
    /// The device of every run on one device.
    pub(super) first: String,
    /// Others that the user named.
    others: Vec<String>,
    /// Whether the user named devices, so that no other may be used.
    are_named: bool,
    /// The number of GPUs of the machine.
    gpus: usize,
    /// The bytes of the memory of the first device, if it is a GPU.
    pub(super) memory: Option<u64>,
}

impl Devices {
    /// The CPU alone.
    #[cfg(test)]
    pub(super) fn cpu() -> Self {
        Devices { first: "cpu".into(), ..Devices::default() }
    }

    /// Whether the runs are on the CPU.
    pub(super) fn is_cpu(&self) -> bool {
        self.first == "cpu"
    }

    /// The names of two GPUs, if there are two that may be used.
    pub(super) fn two_gpus(&self) -> Option<[String; 2]> {
        let is_gpu = |name: &String| name != "cpu" && name != "mps";
        let second = match self.are_named {
            true => self.others.iter().find(|name| **name != self.first).cloned(),
            false => (self.gpus > 1 && self.first == "cuda:0").then(|| "cuda:1".into()),
        };
        let second = second.filter(is_gpu)?;
        is_gpu(&self.first).then(|| [self.first.clone(), second])
    }

    /// What the driver's section found.
    fn of(figures: &Figures, are_named: bool) -> Option<Self> {
        let first = figures.get("device")?.as_str()?.to_string();
        let gpus = figures.get("gpus").and_then(|gpus| gpus.as_array()).map_or(0, Vec::len);
        let memory = figures.get("memory_total").and_then(|bytes| bytes.as_u64());
        let memory = memory.filter(|_| first != "cpu");
        Some(Devices { first, others: Vec::new(), are_named, gpus, memory })
    }
}

/// Lets the worker program check each device, and hands on its results. Without this section it
/// only finds the devices. `None`: there is no device for the other sections.
pub(super) async fn check(settings: &Settings, report: &mut Report<'_>) -> Option<Devices> {
    let mut found: Option<Devices> = None;
    let named = settings.devices.iter().map(|name| Some(name.as_str()));
    let default = settings.devices.is_empty().then_some(None);
    for name in named.chain(default) {
        let prefix = match (&found, name) {
            (Some(_), Some(name)) => format!("device.{name}"),
            _ => "device".into(),
        };
        let checked = check_one(name, &prefix, report).await;
        let one = checked.unwrap_or_else(|problem| {
            report.add(prefix, Duration::ZERO, Err(problem));
            None
        })?;
        match &mut found {
            Some(found) => found.others.push(one.first),
            None => found = Some(one),
        }
    }
    found
}

/// Checks one device. `None`: its section says why there is none.
async fn check_one(
    name: Option<&str>,
    prefix: &str,
    report: &mut Report<'_>,
) -> Result<Option<Devices>, Problem> {
    let is_wanted = report.wants(Section::Device);
    let mut worker = WorkerCheck::start(name)?;
    let (mut found, mut has_failed) = (None, false);
    while let Some(line) = worker.next().await? {
        let is_driver = line.section == DRIVER;
        if is_driver && line.ok {
            found = Devices::of(&line.figures, name.is_some());
            // A worker that is told a UUID sees that GPU alone, as `cuda:0`.
            if let (Some(found), Some(name)) = (&mut found, name) {
                found.first = name.to_string();
            }
        }
        has_failed |= !line.ok;
        if is_wanted || !line.ok {
            let time = Duration::try_from_secs_f64(line.seconds).unwrap_or_default();
            report.add(format!("{prefix}.{}", line.section), time, line.result());
        }
        if !is_wanted && is_driver {
            // Dropping it ends the program.
            return Ok(found);
        }
    }
    let status = worker.process.wait().await.map_err(|error| worker_problem(&error))?;
    match has_failed || (status.success() && found.is_some()) {
        true => Ok(found),
        false => Err(Problem::new(format!(
            "the worker program ended without checking all: {status}; run `worker --self-check`"
        ))),
    }
}

/// A line of the worker program.
#[derive(Debug, Deserialize)]
struct Line {
    section: String,
    ok: bool,
    seconds: f64,
    text: Option<String>,
    figures: Figures,
    problem: Option<String>,
}

impl Line {
    fn result(self) -> Result<Findings, Problem> {
        let findings = Findings::of_worker(self.text.unwrap_or_default(), self.figures);
        match self.ok {
            true => Ok(findings),
            false => Err(Problem::new(self.problem.unwrap_or_default()).with(findings)),
        }
    }
}

/// The worker program that checks a device.
struct WorkerCheck {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl WorkerCheck {
    fn start(device: Option<&str>) -> Result<Self, Problem> {
        let program = worker_program(None)?;
        let mut command = Command::new(&program);
        command.arg("--self-check").args(device).arg("--json");
        command.arg("--threads").arg(threads().to_string());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
        let failed = |error: &dyn std::fmt::Display| {
            let text = format!("cannot start {}: {error}", program.display());
            Problem::from(BossManError::LocalWorkers(text))
        };
        let mut process = command.spawn().map_err(|error| failed(&error))?;
        let output = process.stdout.take().ok_or_else(|| failed(&"it has no output"))?;
        Ok(WorkerCheck { process, lines: BufReader::new(output).lines() })
    }

    /// The next line. `None` at the end.
    async fn next(&mut self) -> Result<Option<Line>, Problem> {
        let next = tokio::time::timeout(LIMIT, self.lines.next_line()).await.map_err(|_| {
            Problem::new(format!(
                "the worker program has not said anything for {} s, so the device or its driver \
                 hangs; look for `Xid` in dmesg, and restart the machine",
                LIMIT.as_secs()
            ))
        })?;
        let Some(text) = next.map_err(|error| worker_problem(&error))? else { return Ok(None) };
        let line = serde_json::from_str(&text).map_err(|error| {
            Problem::new(format!(
                "the worker program wrote what this program cannot read ({error}); install both \
                 from one archive"
            ))
        })?;
        Ok(Some(line))
    }
}

fn worker_problem(error: &std::io::Error) -> Problem {
    Problem::new(format!("the worker program cannot be followed: {error}; check again"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn devices(figures: &str, are_named: bool) -> Option<Devices> {
        Devices::of(&serde_json::from_str(figures).unwrap(), are_named)
    }

    #[test]
    fn the_section_of_the_driver_tells_the_devices() {
        let two = r#"{"device": "cuda:0", "gpus": ["a", "b"], "memory_total": 1024}"#;
        let found = devices(two, false).unwrap();
        assert_eq!((found.memory, found.is_cpu()), (Some(1024), false));
        assert_eq!(found.two_gpus(), Some(["cuda:0".into(), "cuda:1".into()]));
        // The user named the first GPU alone.
        let named = devices(two, true).unwrap();
        assert_eq!(named.two_gpus(), None);
        let named = Devices { others: vec!["cuda:3".into()], ..named };
        assert_eq!(named.two_gpus(), Some(["cuda:0".into(), "cuda:3".into()]));
        let cpu = devices(r#"{"device": "cpu", "memory_total": null}"#, false).unwrap();
        assert!(cpu.is_cpu() && cpu.memory.is_none() && cpu.two_gpus().is_none());
        assert!(devices("{}", false).is_none());
    }

    #[test]
    fn a_line_of_the_worker_becomes_a_result() {
        let line = |ok: bool, problem: &str| {
            let text = format!(
                r#"{{"section": "memory", "ok": {ok}, "seconds": 0.5, "text": null, "figures": {{}},
                "problem": {problem}}}"#
            );
            serde_json::from_str::<Line>(&text).unwrap().result()
        };
        assert!(line(true, "null").is_ok());
        assert!(line(false, r#""full""#).is_err());
    }
}
