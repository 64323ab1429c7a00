//! The figures for choosing a schedule, and the choice.

use crate::tuning::observed_times::ObservedTimes;
use layerspec::Bindings;
use pipeline::auto::Choice;
use pipeline::effect::WorkerSpan;
use pipeline::fleet::Fleet;
use pipeline::ids::WorkerId;
use pipeline::message::LinkReport;
use pipeline::schedule::{picture, Ending, Schedule, Timeline};
use pipeline::{Cuts, ScheduleKind};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Columns of a drawn timeline.
const COLUMNS: u64 = 100;

/// The request, and the findings.
pub(crate) struct ScheduleState {
    pub(crate) requested: Option<ScheduleKind>,
    pub(crate) cuts: Cuts,
    pub(crate) chosen: Option<ScheduleKind>,
    /// A plan was taken whose stages are not yet at the workers.
    pub(crate) redistributing: bool,
    pub(crate) measured: Option<MeasuredFleet>,
    /// The times of the last steps.
    pub(crate) observed: ObservedTimes,
    /// Schedules by microbatches and ending.
    pub(crate) schedule_cache: BTreeMap<(u32, Ending), Arc<Schedule>>,
    /// How replicas sum gradients, and why, if there was a choice.
    pub(crate) collective: Option<String>,
}

/// The measurements of the workers, and the sizes of their microbatch.
pub(crate) struct MeasuredFleet {
    pub(crate) fleet: Fleet,
    pub(crate) work: MicrobatchSizes,
}

/// A microbatch, as far as costs depend on it.
#[derive(Clone, Debug)]
pub(crate) struct MicrobatchSizes {
    pub(crate) sizes: Bindings,
    pub(crate) target_bytes: Option<u64>,
}

/// A step's timeline as it was and as it was predicted, times in microseconds from its first action.
#[derive(Clone, Debug)]
pub struct Timelines {
    /// The timelines of the workers.
    pub measured: Timeline,
    /// What was predicted; nothing where the workers were not measured.
    pub predicted: Option<Timeline>,
}

/// The last step, for its timelines.
pub(crate) struct LastStep {
    pub(crate) schedule: Arc<Schedule>,
    pub(crate) spans: Vec<WorkerSpan>,
}

/// The schedules that could run, and the connections; prints as two tables.
#[derive(Debug)]
pub struct Candidates {
    /// Schedules with their predicted step times, waits and memory.
    pub choice: Choice,
    /// The connections as measured: a worker, and another or the boss.
    pub links: Vec<(WorkerId, Option<WorkerId>, LinkReport)>,
    /// How replicas sum their gradients, and why, if there was a choice.
    pub collective: Option<String>,
}

impl fmt::Display for Candidates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.choice.fmt(f)?;
        if let Some(collective) = &self.collective {
            writeln!(f, "{collective}")?;
        }
        for (from, to, report) in &self.links {
            let to = to.map_or_else(|| "the boss".to_string(), |to| to.to_string());
            let (trip, rate) = (report.rtt.0 as f64 / 1e3, report.bytes_per_second as f64 / 1e6);
            let way = if report.shared_memory { "shared memory" } else { "quic" };
            writeln!(f, "{from} to {to}: {trip:.2} ms there and back, {rate:.1} MB/s, {way}")?;
        }
        Ok(())
    }
}

impl Candidates {
    /// The timeline of the one to take, as a picture.
    pub fn timeline(&self) -> String {
        let Some(best) = self.choice.best(|_| true) else { return String::new() };
        let unit = (best.timeline.end() / COLUMNS).max(1);
        format!("{}, one column for {:.1} ms\n{}", best.kind, unit as f64 / 1e6, picture(&best.timeline.in_units(unit)))
    }
}

impl ScheduleState {
    pub(crate) fn new(requested: Option<ScheduleKind>, cuts: Cuts) -> Self {
        ScheduleState {
            requested,
            cuts,
            chosen: None,
            redistributing: false,
            measured: None,
            observed: ObservedTimes::default(),
            schedule_cache: BTreeMap::new(),
            collective: None,
        }
    }

    pub(crate) fn kind(&self) -> ScheduleKind {
        self.requested.or(self.chosen).unwrap_or_default()
    }
}
