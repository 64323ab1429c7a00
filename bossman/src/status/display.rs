//! The status of a run as text: two lines, or the table of a pool.

use super::value::{MemberStatus, Phase, Status, Wait, WorkerStatus, MAX_TEXT};
use crate::events::WaitReason;
use crate::output::printable;
use std::fmt;

/// The most workers that the line about workers names.
const MAX_NAMED: usize = 8;

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.workers.iter().any(|worker| worker.member.is_some()) {
            return table(self, f);
        }
        writeln!(f, "{}{}", line(self), transfer(self))?;
        match self.workers.is_empty() {
            true => Ok(()),
            false => writeln!(f, "workers: {}", names(self)),
        }
    }
}

fn line(status: &Status) -> String {
    let with = |phase: &str, facts: Vec<String>| match facts.is_empty() {
        true => phase.to_string(),
        false => format!("{phase}: {}", facts.join(", ")),
    };
    let (done, loss) = (done(status), loss(status));
    let workers =
        status.initial_workers.map(|initial| format!("{} of {initial} workers", status.present()));
    let facts = |facts: [Option<String>; 4]| facts.into_iter().flatten().collect::<Vec<_>>();
    match status.phase {
        Phase::Starting => "starting".into(),
        Phase::Waiting => waiting(status.wait.as_ref(), done),
        Phase::Ready => with("ready", facts([done, None, None, workers])),
        Phase::Training => {
            let rate = status.samples_per_second.map(|rate| format!("{rate:.1} samples/s"));
            with("training", facts([done, loss, rate, workers]))
        }
        Phase::Recovering => with("recovering", facts([done, None, None, workers])),
        Phase::Growing => with("taking in workers that wait", facts([done, None, None, workers])),
        Phase::Ended => with("the run has ended", facts([done, loss, None, None])),
        Phase::Interrupted => with("the run was interrupted", facts([done, loss, None, None])),
        Phase::Failed => {
            let error = status.error.as_ref().map(|error| printable(error, MAX_TEXT));
            with("the run failed", facts([done, loss, error, None]))
        }
        Phase::Crashed => {
            with("the run's process ended without a word", facts([done, loss, None, None]))
        }
    }
}

fn waiting(wait: Option<&Wait>, done: Option<String>) -> String {
    let Some(Wait { missing, workers, reason, seconds }) = wait else { return "waiting".into() };
    let whom = match reason {
        WaitReason::Start => format!("waiting for {missing} of {workers} workers"),
        WaitReason::Rejoin => {
            format!("recovering: waiting for {missing} of {workers} workers to join again")
        }
        WaitReason::Grow => {
            format!("taking in workers: waiting for {missing} of {workers} to join again")
        }
        WaitReason::TooFewRemain => format!(
            "recovering: too few workers remain, waiting for {missing} of {workers} workers"
        ),
    };
    let done = done.map(|done| format!(", after {done}")).unwrap_or_default();
    format!("{whom}, for {}{done}", rounded(*seconds))
}

fn rounded(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 120.0 => format!("{seconds:.0} s"),
        seconds if seconds < 7200.0 => format!("{:.0} min", seconds / 60.0),
        seconds => format!("{:.0} h", seconds / 3600.0),
    }
}

fn done(status: &Status) -> Option<String> {
    match (status.step, status.steps) {
        (0, None) => None,
        (step, Some(steps)) => Some(format!("step {step} of {steps}")),
        (step, None) => Some(format!("step {step}")),
    }
}

fn transfer(status: &Status) -> String {
    status.transfer.map(|transfer| format!("; {transfer}")).unwrap_or_default()
}

fn loss(status: &Status) -> Option<String> {
    status.loss.map(|loss| format!("loss {loss:.4}"))
}

fn names(status: &Status) -> String {
    let shown = status.workers.iter().take(MAX_NAMED);
    let mut names: Vec<_> = shown
        .map(|WorkerStatus { worker, host, device, .. }| {
            let (host, device) = (printable(host, MAX_TEXT), printable(device, MAX_TEXT));
            format!("{worker} on {host} ({device})")
        })
        .collect();
    match status.present().saturating_sub(names.len()) {
        0 => {}
        more => names.push(format!("and {more} more")),
    }
    names.join(", ")
}

/// The table of a pool's workers.
fn table(status: &Status, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let Status { step, loss, samples_per_second, more, workers, .. } = status;
    let loss = loss.map_or("-".into(), |loss| format!("{loss:.4}"));
    let rate = samples_per_second.unwrap_or_default();
    writeln!(f, "step {step}, loss {loss}, {rate:.1} samples/s{}", transfer(status))?;
    writeln!(
        f,
        "{:>6}  {:12} {:8} {:11} {:>5} {:>7} {:>9} {:>9} {:>10} {:>9}",
        "worker",
        "host",
        "device",
        "state",
        "share",
        "steps",
        "samples",
        "ms/mb",
        "link MB/s",
        "seen s"
    )?;
    for worker in workers {
        if let Some(member) = &worker.member {
            row(worker, member, f)?;
        }
    }
    match more {
        0 => Ok(()),
        more => writeln!(f, "and {more} more"),
    }
}

fn row(worker: &WorkerStatus, member: &MemberStatus, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let number = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.1}"));
    writeln!(
        f,
        "{:>6}  {:12} {:8} {:11} {:>4.0}% {:>7} {:>9} {:>9} {:>10} {:>9.1}{}",
        worker.worker,
        printable(&worker.host, MAX_TEXT),
        printable(&worker.device, MAX_TEXT),
        printable(&member.state, MAX_TEXT),
        member.share * 100.0,
        member.steps,
        member.samples,
        number(member.milliseconds),
        number(member.link_bytes_per_second.map(|rate| rate as f64 / 1e6)),
        member.last_seen_seconds,
        member
            .reason
            .as_ref()
            .map_or(String::new(), |reason| format!("  {}", printable(reason, MAX_TEXT))),
    )
}
