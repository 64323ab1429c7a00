//! What a run's events tell about its course: sessions, changes of workers, digests.

use super::Inputs;
use crate::events::{Event, PlannedStage, WaitReason};
use pipeline::ids::WorkerId;
use pipeline::membership::Notice;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The course of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct History {
    pub(crate) sessions: Vec<Session>,
    pub(crate) changes: Vec<Change>,
    /// The digest of the state after each of these steps.
    pub(crate) digests: BTreeMap<u64, String>,
    /// The results of validations, by their steps.
    pub(crate) validations: BTreeMap<u64, serde_json::Value>,
    /// The last step that is done.
    pub(crate) step: u64,
    pub(crate) end: End,
    /// The hashes of the data of the last process, and of the weights that the run began with.
    pub(crate) inputs: Option<Inputs>,
    /// The steps that made the weights in the folder's files: the last ones and the best.
    pub(crate) last_weights: Option<u64>,
    pub(crate) best_weights: Option<u64>,
    /// The workers of the session that has not begun.
    joined: Vec<SessionWorker>,
}

/// How a run ended.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// It has not, as far as its events tell.
    #[default]
    Open,
    /// All steps are done.
    Ended,
    /// The user ended it.
    Interrupted,
    /// An error ended it.
    Failed,
}

/// A session: the same workers from one step on, in a pool with those that join and leave.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Session {
    /// The steps that were done when it began.
    pub from: u64,
    /// The number of microbatches of a batch.
    pub microbatches: u32,
    /// Whether it was a pool.
    pub pool: bool,
    /// The workers at its beginning, and those that joined later.
    pub workers: Vec<SessionWorker>,
    /// The plans, each with the steps that were done when it was made.
    pub plans: Vec<SessionPlan>,
}

/// A worker of a session, by its number. Its machine has no name here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SessionWorker {
    /// Its number.
    pub worker: WorkerId,
    /// Its device.
    pub device: String,
    /// The kind of its processor.
    pub processor: String,
    /// Its compute threads.
    pub threads: u32,
}

/// A plan of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SessionPlan {
    /// The steps that were done when it was made.
    pub from: u64,
    /// The name of the schedule.
    pub schedule: String,
    /// The stages, in the order of the model.
    pub stages: Vec<PlannedStage>,
}

/// A change of the workers during a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// The number of the session, from 0.
    pub session: usize,
    /// The steps that were done.
    pub after: u64,
    /// The worker. `None` if it is not known.
    pub worker: Option<WorkerId>,
    /// What happened to it.
    pub change: ChangeKind,
}

/// What happened to a worker.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// It joined a pool.
    Joined,
    /// It left.
    Left,
    /// It was lost, with the step.
    Lost,
    /// The pool let it take no part for a while.
    Evicted,
    /// The pool removed it, because it failed where others did not.
    Removed,
}

impl History {
    /// Takes the next event.
    pub(crate) fn follow(&mut self, event: Event) {
        match event {
            Event::Folder { .. } | Event::Waiting { reason: WaitReason::Start, .. } => {
                self.joined.clear();
                self.end = End::Open;
            }
            Event::Waiting { reason: WaitReason::Rejoin | WaitReason::Grow, .. } => {
                self.joined.clear();
            }
            Event::Joined { worker, device, processor, threads, missing, .. } => {
                let joined = SessionWorker { worker, device, processor, threads };
                match (missing, self.sessions.last_mut()) {
                    (None, Some(session)) => {
                        session.workers.push(joined);
                        self.change(Some(worker), ChangeKind::Joined);
                    }
                    _ => self.joined.push(joined),
                }
            }
            Event::Left { worker, while_waiting: true, .. } => {
                self.joined.retain(|joined| joined.worker != worker)
            }
            Event::Left { worker, while_waiting: false, .. } => {
                self.change(Some(worker), ChangeKind::Left)
            }
            Event::WorkersLost { worker, .. } => self.change(worker, ChangeKind::Lost),
            Event::Pool(Notice::Evicted { worker, .. }) => {
                self.change(Some(worker), ChangeKind::Evicted)
            }
            Event::Pool(Notice::Removed { worker, .. }) => {
                self.change(Some(worker), ChangeKind::Removed)
            }
            Event::Started { done, microbatches, pool, .. } => self.begin(done, microbatches, pool),
            Event::Planned { schedule, stages, .. } => {
                if let Some(session) = self.sessions.last_mut() {
                    session.plans.push(SessionPlan { from: self.step, schedule, stages });
                }
            }
            Event::Step { report, .. } => self.step = report.step,
            Event::Validated { step, validation, .. } => {
                self.validations.insert(step, validation.to_json());
            }
            Event::Digest { step, digest } => drop(self.digests.insert(step, digest)),
            Event::Inputs(Inputs { data, initial_weights }) => {
                let known = self.inputs.take().and_then(|inputs| inputs.initial_weights);
                self.inputs = Some(Inputs { data, initial_weights: known.or(initial_weights) });
            }
            Event::WeightsSaved { step, best: false, .. } => self.last_weights = Some(step),
            Event::WeightsSaved { step, best: true, .. } => self.best_weights = Some(step),
            Event::Interrupted { .. } => self.end = End::Interrupted,
            Event::Ended { error, .. } => {
                self.end = if error.is_none() { End::Ended } else { End::Failed }
            }
            _ => {}
        }
    }

    /// A session begins after `from` steps. The steps after that are repeated, with their digests.
    fn begin(&mut self, from: u64, microbatches: u32, pool: bool) {
        self.step = from;
        self.digests.retain(|step, _| *step <= from);
        self.validations.retain(|step, _| *step <= from);
        let workers = std::mem::take(&mut self.joined);
        self.sessions.push(Session { from, microbatches, pool, workers, plans: Vec::new() });
    }

    fn change(&mut self, worker: Option<WorkerId>, change: ChangeKind) {
        // Before the first session nothing was trained.
        if let Some(session) = self.sessions.len().checked_sub(1) {
            self.changes.push(Change { session, after: self.step, worker, change });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runs::LoggedEvent;
    use serde_json::json;

    fn history(events: &[serde_json::Value]) -> History {
        let mut history = History::default();
        for event in events {
            let mut line = event.clone();
            (line["time"], line["version"]) = (1.5.into(), 1.into());
            let logged: LoggedEvent = serde_json::from_value(line).unwrap();
            history.follow(logged.event);
        }
        history
    }

    fn waiting(reason: &str) -> serde_json::Value {
        json!({"event": "waiting", "missing": 2, "workers": 2, "reason": reason, "waited_s": 0})
    }

    fn joined(worker: u16, missing: Option<usize>) -> serde_json::Value {
        json!({"event": "joined", "worker": worker, "address": "10.0.0.7", "host": "attic",
               "device": "cpu", "processor": "p", "threads": 2, "missing": missing})
    }

    fn started(done: u64) -> serde_json::Value {
        json!({"event": "started", "steps": 9, "done": done, "from": null, "microbatches": 4,
               "metrics_bytes": 0})
    }

    fn step(step: u64) -> serde_json::Value {
        json!({"event": "step", "step": step, "loss": 0.5, "samples": 8, "tokens": null,
               "step_ms": 1.0, "lr": null, "grad_norm": null})
    }

    fn digest(step: u64, digest: &str) -> serde_json::Value {
        json!({"event": "digest", "step": step, "digest": digest})
    }

    /// A worker is lost after step 3, and the run resumes from step 2 with the other one.
    #[test]
    fn a_loss_begins_a_session_and_takes_back_digests() {
        let lost = json!({"event": "workers_lost", "after": {"steps": 3}, "worker": 1,
                          "stage": null, "error": "10.0.0.7 is gone"});
        let left = json!({"event": "left", "worker": 1, "why": "", "while_waiting": true});
        let history = history(&[
            json!({"event": "inputs", "data": {}, "initial_weights": "abc"}),
            waiting("start"),
            joined(0, Some(1)),
            joined(1, Some(0)),
            left,
            joined(1, Some(0)),
            started(0),
            step(1),
            step(2),
            digest(2, "two"),
            step(3),
            digest(3, "three"),
            lost,
            waiting("rejoin"),
            joined(0, Some(1)),
            waiting("too_few_remain"),
            started(2),
            step(3),
            json!({"event": "ended", "steps": 3, "time_s": 1.0, "error": null}),
        ]);
        let workers: Vec<_> =
            history.sessions.iter().map(|session| (session.from, session.workers.len())).collect();
        assert_eq!(workers, [(0, 2), (2, 1)]);
        let lost =
            Change { session: 0, after: 3, worker: Some(WorkerId(1)), change: ChangeKind::Lost };
        assert_eq!(history.changes, [lost]);
        assert_eq!(history.digests, BTreeMap::from([(2, "two".to_string())]));
        assert_eq!((history.step, history.end), (3, End::Ended));
        // A later process does not read the weights that the run began with.
        let mut history = history;
        history.follow(Event::Inputs(Inputs::default()));
        let weights = history.inputs.and_then(|inputs| inputs.initial_weights);
        assert_eq!(weights.as_deref(), Some("abc"));
    }

    /// A run takes in a worker after step 2. No step is repeated, and nobody was lost.
    #[test]
    fn growth_begins_a_session_and_takes_nothing_back() {
        let history = history(&[
            waiting("start"),
            joined(0, Some(0)),
            started(0),
            step(1),
            step(2),
            digest(2, "two"),
            json!({"event": "growing", "after": 2, "workers": 1, "waiting": 1,
                   "initial_workers": 2}),
            waiting("grow"),
            joined(0, Some(1)),
            joined(1, Some(0)),
            started(2),
            step(3),
        ]);
        let workers: Vec<_> =
            history.sessions.iter().map(|session| (session.from, session.workers.len())).collect();
        assert_eq!(workers, [(0, 1), (2, 2)]);
        assert!(history.changes.is_empty(), "{:?}", history.changes);
        assert_eq!(history.digests, BTreeMap::from([(2, "two".to_string())]));
    }

    #[test]
    fn who_joins_a_pool_is_of_its_session() {
        let evicted = json!({"event": "pool", "change": "evicted", "worker": 1, "why": "slow"});
        let history = history(&[
            waiting("start"),
            joined(0, Some(0)),
            started(0),
            step(1),
            joined(1, None),
            step(2),
            evicted,
        ]);
        assert_eq!(history.sessions[0].workers.len(), 2);
        let changes: Vec<_> = history.changes.iter().map(|of| (of.after, of.change)).collect();
        assert_eq!(changes, [(1, ChangeKind::Joined), (2, ChangeKind::Evicted)]);
        assert_eq!(history.end, End::Open);
    }
}
