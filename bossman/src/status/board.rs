//! The status of a run, kept up to date by its events.

use super::value::{Phase, Status, Wait, WorkerStatus, MAX_TEXT, MAX_WORKERS};
use crate::events::{Completed, Event, Events, Observer, Transfer, WaitReason};
use crate::output::printable;
use crate::{BossManError, StepReport};
use link::StatusText;
use parking_lot::Mutex;
use pipeline::ids::WorkerId;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The most characters of a device's name.
const MAX_DEVICE: usize = 16;
/// The most characters of a machine's name.
const MAX_HOST: usize = 64;

/// Keeps the status of a run. Clones share it, over all sessions of the run. An event costs a few
/// assignments; the text is made when a caller asks.
#[derive(Clone, Default)]
pub(crate) struct StatusBoard(Arc<Mutex<Board>>);

impl StatusBoard {
    /// The text for callers that ask the boss.
    pub(crate) fn text(&self) -> StatusText {
        let board = self.0.clone();
        StatusText::new(move || {
            let status = board.lock().status(Instant::now());
            status.json()
        })
    }

    /// Events that the board sees before these observers do. So a caller is told no less than a
    /// reader of the console has read.
    pub(crate) fn before(&self, events: Events) -> Events {
        Events::unobserved().with(self.clone()).with(events)
    }

    /// The wait for workers has ended, and these many of them stay. After a loss they may be fewer
    /// than have joined, of which no event tells.
    pub(crate) fn wait_ended(&self, workers: usize) {
        self.0.lock().wait_ended(workers);
    }

    /// Sets the status of a pool, which knows more of its workers than events tell.
    pub(crate) fn set_pool(&self, pool: Status) {
        self.0.lock().pool = Some(pool);
    }
}

impl Observer for StatusBoard {
    fn on_event(&mut self, event: &Event) -> Result<(), BossManError> {
        self.0.lock().follow(event, Instant::now());
        Ok(())
    }
}

impl fmt::Debug for StatusBoard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StatusBoard({:?})", self.0.lock().phase)
    }
}

/// What the events have told so far.
#[derive(Default)]
pub(super) struct Board {
    phase: Phase,
    wait: Option<WaitSince>,
    transfer: Option<Transfer>,
    step: u64,
    steps: Option<u64>,
    loss: Option<f32>,
    /// The steps of the current session.
    session: Option<SessionSteps>,
    error: Option<String>,
    initial_workers: Option<usize>,
    workers: BTreeMap<WorkerId, JoinedWorker>,
    pool: Option<Status>,
}

struct WaitSince {
    missing: usize,
    workers: usize,
    reason: WaitReason,
    began: Instant,
}

struct SessionSteps {
    began: Instant,
    last_step: Instant,
    samples: u64,
}

struct JoinedWorker {
    host: String,
    device: String,
    joined: Instant,
}

impl Board {
    /// Takes an event that happens now.
    pub(super) fn follow(&mut self, event: &Event, now: Instant) {
        match event {
            Event::Waiting { missing, workers, reason, waited_s, .. } => {
                let waited = Duration::from_secs(*waited_s);
                let began = now.checked_sub(waited).unwrap_or(now);
                let (missing, workers, reason) = (*missing, *workers, *reason);
                self.wait_begins(WaitSince { missing, workers, reason, began });
            }
            Event::Joined { worker, host, device, missing, .. } => {
                let (host, device) = (printable(host, MAX_HOST), printable(device, MAX_DEVICE));
                self.workers.insert(*worker, JoinedWorker { host, device, joined: now });
                if let (Some(missing), Some(wait)) = (missing, &mut self.wait) {
                    wait.missing = *missing;
                    if *missing == 0 {
                        self.enter(Phase::Ready);
                    }
                }
            }
            Event::Left { worker, .. } => {
                let was_here = self.workers.remove(worker).is_some();
                if let Some(wait) = self.wait.as_mut().filter(|_| was_here) {
                    wait.missing += 1;
                }
            }
            Event::Started { steps, done, .. } => {
                self.enter(Phase::Training);
                (self.step, self.steps, self.loss) = (*done, Some(*steps), None);
                self.session = Some(SessionSteps { began: now, last_step: now, samples: 0 });
            }
            Event::Step { report, .. } => self.step_done(report, now),
            Event::WorkersLost { after, worker, .. } => {
                self.enter(Phase::Recovering);
                if let Completed::Steps(steps) = after {
                    self.step = *steps;
                }
                if let Some(worker) = worker {
                    self.workers.remove(worker);
                }
            }
            Event::Growing { after, .. } => {
                self.enter(Phase::Growing);
                self.step = *after;
            }
            Event::Transfer(transfer) => {
                self.transfer = Some(*transfer).filter(|transfer| !transfer.ended);
            }
            Event::Resuming(_) => self.enter(Phase::Recovering),
            // Calls by hand have no `Started`.
            Event::Recovered(_) if self.phase == Phase::Recovering => self.enter(Phase::Ready),
            Event::Interrupted { step, .. } => {
                self.enter(Phase::Interrupted);
                self.step = step.unwrap_or(self.step);
            }
            Event::Ended { steps, error, .. } => {
                self.enter(if error.is_some() { Phase::Failed } else { Phase::Ended });
                self.step = *steps;
                self.error = error.as_ref().map(|error| printable(error, MAX_TEXT));
            }
            _ => {}
        }
    }

    /// The status as of now.
    pub(super) fn status(&self, now: Instant) -> Status {
        let is_at_work = matches!(self.phase, Phase::Ready | Phase::Training);
        if let Some(pool) = self.pool.as_ref().filter(|_| is_at_work) {
            return Status { steps: self.steps, transfer: self.transfer, ..pool.clone() };
        }
        let wait = self.wait.as_ref().map(|wait| Wait {
            missing: wait.missing,
            workers: wait.workers,
            reason: wait.reason,
            seconds: seconds(now, wait.began),
        });
        let listed = self.workers.iter().take(MAX_WORKERS);
        let workers: Vec<_> = listed
            .map(|(worker, of)| WorkerStatus {
                worker: worker.0,
                host: of.host.clone(),
                device: of.device.clone(),
                joined_seconds: seconds(now, of.joined),
                member: None,
            })
            .collect();
        Status {
            phase: self.phase,
            wait,
            transfer: self.transfer,
            step: self.step,
            steps: self.steps,
            loss: self.loss,
            samples_per_second: self.session.as_ref().and_then(SessionSteps::rate),
            error: self.error.clone(),
            initial_workers: self.initial_workers,
            more: self.workers.len() - workers.len(),
            workers,
        }
    }

    /// The first `workers` of those that have joined suffice. The boss sends the others away.
    pub(super) fn wait_ended(&mut self, workers: usize) {
        if self.phase == Phase::Waiting {
            self.workers.retain(|worker, _| usize::from(worker.0) < workers);
            self.enter(Phase::Ready);
        }
    }

    /// A wait ends with the next phase.
    fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        self.wait = None;
        if phase != Phase::Training {
            self.session = None;
        }
    }

    /// A wait begins, or continues because too few workers remain.
    fn wait_begins(&mut self, mut wait: WaitSince) {
        match (&self.wait, wait.reason) {
            (Some(before), WaitReason::TooFewRemain) => wait.began = before.began,
            // In a new session all workers join again.
            _ => self.workers.clear(),
        }
        self.enter(Phase::Waiting);
        self.pool = None;
        self.initial_workers = Some(wait.workers);
        self.wait = Some(wait);
    }

    fn step_done(&mut self, report: &StepReport, now: Instant) {
        self.phase = Phase::Training;
        self.step = report.step;
        self.loss = Some(report.loss).filter(|loss| loss.is_finite());
        if let Some(session) = &mut self.session {
            session.samples += report.samples;
            session.last_step = now;
        }
    }
}

impl SessionSteps {
    /// Samples per second until the last step. `None` before it.
    fn rate(&self) -> Option<f64> {
        let time = seconds(self.last_step, self.began);
        (self.samples > 0 && time > 0.0).then(|| self.samples as f64 / time)
    }
}

fn seconds(now: Instant, since: Instant) -> f64 {
    now.saturating_duration_since(since).as_secs_f64()
}
