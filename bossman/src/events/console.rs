//! The console: a bar on a terminal, plain lines elsewhere. It alone prints what a run does.

use super::{
    CheckpointOutcome, Completed, Event, Invitation, Observer, SnapshotOutcome, WaitReason,
};
use crate::output::{self, printable};
use crate::train::validation_result::ValidationResult;
use crate::{BossManError, StepReport};
use indicatif::{HumanDuration, ProgressBar, ProgressStyle};
use std::fmt::Write as _;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// The interval of lines about steps without a terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);
/// The weight of the newest step in the shown loss.
const NEWEST: f64 = 0.1;
/// The most characters of a line, which may hold text of workers and a path.
const MAX_LINE: usize = 5000;
/// The most characters of a worker's text in a line about a pool.
const MAX_POOL_LINE: usize = 200;
/// The most callers turned away to show.
const MAX_TURNED_AWAY: u32 = 10;

/// The stream for progress. Warnings always go to standard error.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error, so that standard output holds the result alone.
    Stderr,
}

/// A line, and where it goes.
#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    /// To the stream of the console.
    Progress(String),
    /// To standard error.
    Warning(String),
}

impl Line {
    /// The text.
    pub fn text(&self) -> &str {
        match self {
            Line::Progress(text) | Line::Warning(text) => text,
        }
    }
}

/// Shows the events of a run.
pub struct Console {
    stream: Stream,
    /// Whether standard error is a terminal, and shows a bar.
    has_bar: bool,
    /// The steps of the current session.
    steps: Option<Steps>,
    turned_away: u32,
}

/// The display of steps.
struct Steps {
    bar: Option<ProgressBar>,
    started: Instant,
    last_line: Instant,
    steps: u64,
    /// The steps that were done before.
    done: u64,
    /// Samples so far, or tokens if a sample has several.
    items: u64,
    loss: Option<f64>,
}

impl Console {
    /// A console that shows progress on this stream.
    pub fn new(stream: Stream) -> Self {
        let has_bar = std::io::stderr().is_terminal();
        Console { stream, has_bar, steps: None, turned_away: 0 }
    }

    /// A console that shows no bar.
    pub fn without_bar() -> Self {
        Console { has_bar: false, ..Console::new(Stream::Stdout) }
    }

    /// The lines of an event that happens now. The bar, if there is one, changes by itself.
    pub fn lines(&mut self, event: &Event, now: Instant) -> Vec<Line> {
        let line = match event {
            Event::Folder { path } => Line::Progress(format!("run folder {}", path.display())),
            Event::Waiting { missing, workers, reason, invitation, .. } => {
                return waiting(*missing, *workers, *reason, invitation.as_ref());
            }
            Event::Joined { worker, address, host, device, threads, missing, .. } => {
                let from = format!("{address} ({host}, {device}, {threads} threads)");
                joined(&format!("{worker} joined from {from}"), *missing)
            }
            Event::Left { worker, why, while_waiting: true } => {
                Line::Progress(printable(&format!("{worker} left ({why})"), MAX_LINE))
            }
            Event::Left { worker, why, while_waiting: false } => {
                Line::Warning(printable(&format!("{worker} left ({why})"), MAX_POOL_LINE))
            }
            Event::TurnedAway { address, why } => {
                self.turned_away += 1;
                if self.turned_away > MAX_TURNED_AWAY {
                    return Vec::new();
                }
                Line::Progress(printable(&format!("turned away {address}: {why}"), MAX_LINE))
            }
            Event::Pool(notice) => Line::Warning(printable(&notice.to_string(), MAX_POOL_LINE)),
            Event::Started { steps, done, from, .. } => {
                self.steps = Some(Steps::start(*steps, *done, self.has_bar, now));
                let Some(from) = from else { return Vec::new() };
                Line::Progress(format!("resuming from {from}"))
            }
            Event::Step { report, .. } => {
                let line = self.steps.as_mut().and_then(|steps| steps.step(report, now));
                return line.into_iter().map(Line::Progress).collect();
            }
            Event::Validated { step, epoch, validation, best } => {
                Line::Progress(describe(validation, *step, *epoch, *best))
            }
            Event::Digest { .. }
            | Event::PeerSnapshot { outcome: SnapshotOutcome::Stored { first: false }, .. } => {
                return Vec::new();
            }
            Event::PeerSnapshot { step, outcome } => peer_snapshot(*step, outcome),
            Event::Checkpoint { step, outcome } => checkpoint(*step, outcome),
            Event::WorkersLost { after, error, .. } => {
                self.end_steps();
                workers_lost(*after, error)
            }
            Event::Growing { after, workers, waiting, initial_workers } => {
                self.end_steps();
                let taken_in = match waiting {
                    1 => "1 waiting worker is taken in".into(),
                    count => format!("{count} waiting workers are taken in"),
                };
                let so_far = format!("{workers} of {initial_workers} so far");
                Line::Progress(format!("step {after}: {taken_in}; {so_far}"))
            }
            // As of `Recovered` below.
            Event::Transfer(transfer) if self.steps.is_none() => {
                Line::Warning(transfer.to_string())
            }
            Event::Transfer(transfer) => Line::Progress(transfer.to_string()),
            Event::Resuming(report) => Line::Warning(report.to_string()),
            // Calls by hand have no display of steps, and standard output is their program's.
            Event::Recovered(cost) if self.steps.is_none() => Line::Warning(cost.to_string()),
            Event::Recovered(cost) => Line::Progress(cost.to_string()),
            Event::Warning(remark) => Line::Warning(format!("warning: {}", remark.message)),
            Event::Notice(remark) => Line::Warning(remark.message.clone()),
            Event::Ended { .. } | Event::Interrupted { .. } => {
                self.end_steps();
                return Vec::new();
            }
            Event::Inputs(_) => return Vec::new(),
            Event::Listening { .. }
            | Event::Planned { .. }
            | Event::WeightsSaved { .. }
            | Event::Tested { .. } => return Vec::new(),
        };
        vec![line]
    }

    fn end_steps(&mut self) {
        if let Some(bar) = self.steps.take().and_then(|steps| steps.bar) {
            bar.abandon();
        }
    }

    fn print(&self, line: &Line) {
        let bar = self.steps.as_ref().and_then(|steps| steps.bar.as_ref());
        match (line, bar, self.stream) {
            (Line::Progress(text), Some(bar), Stream::Stdout) => {
                bar.suspend(|| output::print_progress(text))
            }
            (Line::Progress(text), Some(bar), Stream::Stderr) => bar.suspend(|| output::warn(text)),
            (Line::Progress(text), None, Stream::Stdout) => output::print_progress(text),
            (Line::Progress(text), None, Stream::Stderr) => output::warn(text),
            (Line::Warning(text), Some(bar), _) => bar.suspend(|| output::warn(text)),
            (Line::Warning(text), None, _) => output::warn(text),
        }
    }
}

impl Observer for Console {
    fn on_event(&mut self, event: &Event) -> Result<(), BossManError> {
        for line in self.lines(event, Instant::now()) {
            self.print(&line);
        }
        Ok(())
    }
}

impl Steps {
    fn start(steps: u64, done: u64, has_bar: bool, now: Instant) -> Self {
        let bar = has_bar.then(|| {
            let bar = ProgressBar::new(steps).with_position(done);
            let style = ProgressStyle::with_template("{bar:30} step {pos}/{len}  {msg}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar
        });
        Steps { bar, started: now, last_line: now, steps, done, items: 0, loss: None }
    }

    /// Shows a step. Returns the line that is due without a bar.
    fn step(&mut self, report: &StepReport, now: Instant) -> Option<String> {
        self.items = self.items.saturating_add(report.tokens.unwrap_or(report.samples));
        let newest = f64::from(report.loss);
        // A mean that includes NaN, for example of a skipped step, would stay NaN.
        let loss = match self.loss {
            Some(loss) if !newest.is_finite() => loss,
            Some(loss) => loss + NEWEST * (newest - loss),
            None => newest,
        };
        self.loss = Some(loss).filter(|loss| loss.is_finite());
        let elapsed = now - self.started;
        let rate = self.items as f64 / elapsed.as_secs_f64();
        let items = if report.tokens.is_some() { "tokens" } else { "samples" };
        let lr = report.lr.map(|lr| format!("  lr {lr:.2e}")).unwrap_or_default();
        let left = self.time_left(report.step, elapsed);
        let text = format!("loss {loss:.4} (running mean){lr}  {rate:.0} {items}/s  {left} left");
        if let Some(bar) = &self.bar {
            bar.set_position(report.step);
            bar.set_message(text);
            return None;
        }
        let is_due = now - self.last_line >= LINE_EVERY
            || report.step == self.done.saturating_add(1)
            || report.step == self.steps;
        if !is_due {
            return None;
        }
        self.last_line = now;
        Some(format!("step {}/{}  {text}", report.step, self.steps))
    }

    /// The time for the steps after this one, at the pace of the session. A bar of `indicatif`
    /// would count the steps before the session, too.
    fn time_left(&self, step: u64, elapsed: Duration) -> HumanDuration {
        let left = self.steps.saturating_sub(step) as f64;
        let here = step.saturating_sub(self.done).max(1) as f64;
        let left = Duration::try_from_secs_f64(elapsed.as_secs_f64() * (left / here));
        HumanDuration(left.unwrap_or(Duration::MAX))
    }
}

impl Invitation {
    /// The lines that tell the user how other machines join.
    fn lines(&self) -> Vec<String> {
        let Invitation { missing, address, port, ticket, program, is_pool, data, weights } = self;
        let host = address.map_or("<this machine's address>".into(), |ip| ip.to_string());
        let wait = match (missing, is_pool) {
            (0, _) => format!(
                "listening on port {port}; to join or leave at any moment, on each machine run"
            ),
            (_, true) => format!(
                "waiting for {missing} worker(s) on port {port}, and for more at any moment; on \
                 each machine run"
            ),
            (_, false) => {
                format!("waiting for {missing} worker(s) on port {port}; on each machine run")
            }
        };
        let line = format!("  MODEL_HOST={host} MODEL_PORT={port} MODEL_TICKET={ticket} {program}");
        let (mut line, mut lines) = (line, Vec::new());
        for (flag, word, here) in [("--data", "FOLDER", data), ("--weights", "WEIGHTS", weights)] {
            let Some(here) = here else { continue };
            let here = match here.as_os_str().is_empty() {
                true => "this folder".into(),
                false => here.display().to_string(),
            };
            line += &format!(" {flag} {word}");
            lines.push(format!("  where {word} holds there what {here} holds here"));
        }
        [vec![wait, line], lines].concat()
    }
}

fn waiting(
    missing: usize,
    workers: usize,
    reason: WaitReason,
    invitation: Option<&Invitation>,
) -> Vec<Line> {
    match reason {
        WaitReason::Start => {
            let lines = invitation.into_iter().flat_map(Invitation::lines);
            lines.map(|line| Line::Progress(printable(&line, MAX_LINE))).collect()
        }
        WaitReason::Rejoin | WaitReason::Grow => Vec::new(),
        WaitReason::TooFewRemain => vec![Line::Progress(format!(
            "recovery: {} of {workers} workers remain, which is too few; waiting for more: start \
             them with the line that was printed at first",
            workers.saturating_sub(missing)
        ))],
    }
}

/// A pool misses nobody: its workers join at any moment.
fn joined(text: &str, missing: Option<usize>) -> Line {
    match missing {
        Some(missing) => Line::Progress(printable(&format!("{text}, {missing} missing"), MAX_LINE)),
        None => Line::Warning(printable(text, MAX_POOL_LINE)),
    }
}

fn workers_lost(after: Completed, error: &str) -> Line {
    let (count, unit) = match after {
        Completed::Steps(steps) => (steps, "steps"),
        Completed::Updates(updates) => (updates, "updates"),
    };
    Line::Warning(format!("warning: workers were lost after {count} {unit}: {error}"))
}

fn peer_snapshot(step: u64, outcome: &SnapshotOutcome) -> Line {
    match outcome {
        SnapshotOutcome::Stored { .. } => {
            Line::Progress(format!("peer snapshots protect the run from step {step} on"))
        }
        SnapshotOutcome::Failed { why } => {
            Line::Warning(format!("warning: no peer snapshot of step {step}: {why}"))
        }
    }
}

fn checkpoint(step: u64, outcome: &CheckpointOutcome) -> Line {
    match outcome {
        CheckpointOutcome::Written => Line::Progress(format!("checkpoint of step {step} written")),
        CheckpointOutcome::Failed { why } => {
            Line::Warning(format!("warning: no checkpoint of step {step}: {why}"))
        }
        CheckpointOutcome::Waits { before } => Line::Warning(format!(
            "warning: a checkpoint of step {step} is due, and training waits for that of step \
             {before}; make them less often"
        )),
    }
}

fn describe(validation: &ValidationResult, step: u64, epoch: u64, best: bool) -> String {
    let mut text = format!("epoch {epoch}, step {step}: validation {}", validation.score);
    if let Some(translations) = &validation.translations {
        let (bleu, pairs) = (translations.bleu, translations.pairs);
        write!(text, ", BLEU {bleu:.2} over {pairs} pairs").ok();
    }
    if best {
        text.push_str(" (the best so far)");
    }
    let samples = validation.translations.iter().flat_map(|translations| &translations.samples);
    for [source, reference, translation] in samples {
        write!(
            text,
            "\n  text         {source}\n  translation  {translation}\n  reference    {reference}"
        )
        .ok();
    }
    text
}
