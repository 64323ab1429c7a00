//! The progress of training: a bar on a terminal, plain lines elsewhere.

use crate::output;
use crate::session::train_step::StepReport;
use indicatif::{HumanDuration, ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// The interval of lines without a terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);
/// The weight of the newest step in the shown loss.
const NEWEST: f64 = 0.1;

pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    started: Instant,
    last_line: Instant,
    steps: u64,
    /// The steps that were done before.
    done: u64,
    /// Samples so far, or tokens if a sample has several.
    items: u64,
    quiet: bool,
    loss: Option<f64>,
}

impl Progress {
    /// Starts the display of a run of `steps` steps, of which `done` are done. With `quiet`,
    /// nothing goes to standard output.
    pub(crate) fn start(steps: u64, done: u64, quiet: bool) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(steps);
            let style =
                ProgressStyle::with_template("{bar:30} step {pos}/{len}  {msg}  {eta} left");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar
        });
        let now = Instant::now();
        Progress { bar, started: now, last_line: now, steps, done, items: 0, quiet, loss: None }
    }

    pub(crate) fn step(&mut self, report: &StepReport) {
        self.items += report.tokens.unwrap_or(report.samples);
        let newest = f64::from(report.loss);
        // A mean that includes NaN, for example of a skipped step, would stay NaN.
        let loss = match self.loss {
            Some(loss) if !newest.is_finite() => loss,
            Some(loss) => loss + NEWEST * (newest - loss),
            None => newest,
        };
        self.loss = Some(loss).filter(|loss| loss.is_finite());
        let elapsed = self.started.elapsed();
        let rate = self.items as f64 / elapsed.as_secs_f64();
        let items = if report.tokens.is_some() { "tokens" } else { "samples" };
        let lr = report.lr.map(|lr| format!("  lr {lr:.2e}")).unwrap_or_default();
        let text = format!("loss {loss:.4} (running mean){lr}  {rate:.0} {items}/s");
        match &self.bar {
            Some(bar) => {
                bar.set_position(report.step);
                bar.set_message(text);
            }
            None if self.last_line.elapsed() >= LINE_EVERY
                || report.step == self.done + 1
                || report.step == self.steps =>
            {
                self.last_line = Instant::now();
                let left = {
                    let (left, here) = (
                        self.steps.saturating_sub(report.step),
                        report.step.saturating_sub(self.done),
                    );
                    elapsed.mul_f64(left as f64 / here.max(1) as f64)
                };
                let left = HumanDuration(left);
                self.line(&format!("step {}/{}  {text}  {left} left", report.step, self.steps));
            }
            None => {}
        }
    }

    /// Prints a line of its own.
    pub(crate) fn line(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| self.say(text)),
            None => self.say(text),
        }
    }

    fn say(&self, text: &str) {
        if self.quiet {
            output::warn(text);
        } else {
            output::print_progress(text);
        }
    }

    /// Ends the display after the last step. Returns the time of the run.
    pub(crate) fn end(&self) -> Duration {
        if let Some(bar) = &self.bar {
            bar.finish();
        }
        self.started.elapsed()
    }

    /// Ends the display after a failure. Returns the time of the run.
    pub(crate) fn abandon(&self) -> Duration {
        if let Some(bar) = &self.bar {
            bar.abandon();
        }
        self.started.elapsed()
    }
}
