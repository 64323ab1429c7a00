//! How training is going: a bar on a terminal, plain lines elsewhere.

use crate::step::StepReport;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Without a terminal a line is printed this often.
const LINE_EVERY: Duration = Duration::from_secs(5);
/// Weight of the newest step in the loss that is shown.
const NEWEST: f64 = 0.1;

pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    started: Instant,
    last_line: Instant,
    steps: u64,
    samples: u64,
    loss: Option<f64>,
}

impl Progress {
    pub(crate) fn start(steps: u64) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(steps);
            let style = ProgressStyle::with_template("{bar:30} step {pos}/{len}  {msg}  {eta} left");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar
        });
        let now = Instant::now();
        Progress { bar, started: now, last_line: now, steps, samples: 0, loss: None }
    }

    pub(crate) fn step(&mut self, report: &StepReport) {
        self.samples += report.samples;
        let newest = f64::from(report.loss);
        let loss = self.loss.map_or(newest, |loss| loss + NEWEST * (newest - loss));
        self.loss = Some(loss);
        let rate = self.samples as f64 / self.started.elapsed().as_secs_f64();
        let text = format!("loss {loss:.4} (running mean)  {rate:.0} samples/s");
        match &self.bar {
            Some(bar) => {
                bar.set_position(report.step);
                bar.set_message(text);
            }
            None if self.last_line.elapsed() >= LINE_EVERY || report.step == 1 || report.step == self.steps => {
                self.last_line = Instant::now();
                println!("step {}/{}  {text}", report.step, self.steps);
            }
            None => {}
        }
    }

    /// A line of its own.
    pub(crate) fn line(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| println!("{text}")),
            None => println!("{text}"),
        }
    }

    pub(crate) fn end(&self) -> Duration {
        if let Some(bar) = &self.bar {
            bar.finish();
        }
        self.started.elapsed()
    }
}
