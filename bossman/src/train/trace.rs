//! Timelines of a step as a trace file for Perfetto (ui.perfetto.dev) or chrome://tracing: the
//! measured actions of each worker above the predicted ones.
//!
//! The format is Chrome's trace events: <https://perfetto.dev/docs/getting-started/other-formats>.

use crate::events::{Event as RunEvent, Observer};
use crate::{data::atomic_file, BossManError, Timelines};
use pipeline::schedule::{Action, Timeline};
use serde::Serialize;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The number of last steps in a trace.
const TRACED_STEPS: usize = 8;

/// Process 0 of the trace is the measurement, process 1 the prediction; each worker is a thread.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum TraceSource {
    /// The timelines of the workers.
    Measured = 0,
    /// The prediction of the schedule's timeline.
    Predicted = 1,
}

/// Microseconds between two steps of a trace.
const STEP_GAP: u64 = 100;

/// Events, in the order in which they were added.
#[derive(Debug, Default)]
pub struct Trace {
    events: Vec<Event>,
}

#[derive(Debug, Serialize)]
struct Event {
    name: String,
    cat: &'static str,
    ph: &'static str,
    /// Microseconds.
    ts: u64,
    dur: u64,
    pid: u8,
    tid: usize,
    args: Details,
}

#[derive(Debug, Default, Serialize)]
struct Details {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stage: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    microbatch: Option<u32>,
}

impl Trace {
    /// The trace of these steps, one after the other.
    pub fn of<'a>(steps: impl IntoIterator<Item = (u64, &'a Timelines)>) -> Self {
        let mut trace = Trace::default();
        let mut from = 0;
        for (step, timelines) in steps {
            trace.add(TraceSource::Measured, step, from, &timelines.measured);
            let predicted = timelines.predicted.as_ref().inspect(|predicted| {
                trace.add(TraceSource::Predicted, step, from, predicted);
            });
            from += timelines.measured.end().max(predicted.map_or(0, Timeline::end)) + STEP_GAP;
        }
        trace
    }

    /// Adds the timeline of a step, moved so that it starts at `from`. Times are in microseconds.
    pub fn add(&mut self, side: TraceSource, step: u64, from: u64, timeline: &Timeline) {
        if !self.events.iter().any(|event| event.pid == side as u8) {
            self.add_metadata(side, timeline.workers.len());
        }
        for (worker, intervals) in timeline.workers.iter().enumerate() {
            for interval in intervals {
                let action = &interval.action;
                self.events.push(Event {
                    name: label(action),
                    cat: action.verb(),
                    ph: "X",
                    ts: from + interval.start,
                    dur: interval.end - interval.start,
                    pid: side as u8,
                    tid: worker,
                    args: Details {
                        name: None,
                        step: Some(step),
                        stage: Some(action.stage().0),
                        microbatch: action.microbatch(),
                    },
                });
            }
        }
    }

    /// Names the process and its threads.
    fn add_metadata(&mut self, side: TraceSource, workers: usize) {
        let name = match side {
            TraceSource::Measured => "measured",
            TraceSource::Predicted => "predicted",
        };
        let metadata = |what: &str, tid: usize, name: String| Event {
            name: what.into(),
            cat: "metadata",
            ph: "M",
            ts: 0,
            dur: 0,
            pid: side as u8,
            tid,
            args: Details { name: Some(name), ..Details::default() },
        };
        self.events.push(metadata("process_name", 0, name.into()));
        self.events.extend(
            (0..workers).map(|worker| metadata("thread_name", worker, format!("worker {worker}"))),
        );
    }

    /// Checks that the file can be written. Called before the run.
    pub(crate) fn can_save(path: &Path) -> Result<(), BossManError> {
        atomic_file::check_writable(path)
    }

    /// Writes the file, as a whole or not at all.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), BossManError> {
        let mut file = atomic_file::create(path)?;
        serde_json::to_writer(&mut file, &self.events)
            .map_err(|e| BossManError::io(path, &e.into()))?;
        atomic_file::commit(path, file)
    }
}

/// Records the last steps of a run, and writes them when its last step is done.
pub(crate) struct TraceRecorder {
    path: PathBuf,
    steps: VecDeque<(u64, Arc<Timelines>)>,
}

impl TraceRecorder {
    pub(crate) fn new(path: PathBuf) -> Self {
        TraceRecorder { path, steps: VecDeque::new() }
    }
}

impl Observer for TraceRecorder {
    fn on_event(&mut self, event: &RunEvent) -> Result<(), BossManError> {
        match event {
            RunEvent::Step { report, timelines: Some(timelines) } => {
                self.steps.push_back((report.step, timelines.clone()));
                self.steps.drain(..self.steps.len().saturating_sub(TRACED_STEPS));
                Ok(())
            }
            RunEvent::Ended { error: None, .. } => {
                let steps = self.steps.iter().map(|(step, timelines)| (*step, timelines.as_ref()));
                Trace::of(steps).save(&self.path)
            }
            _ => Ok(()),
        }
    }

    fn wants_timelines(&self) -> bool {
        true
    }
}

fn label(action: &Action) -> String {
    match action.microbatch() {
        Some(microbatch) => format!("{} {microbatch}, stage {}", action.verb(), action.stage().0),
        None => format!("{}, stage {}", action.verb(), action.stage().0),
    }
}
