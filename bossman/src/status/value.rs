//! The status of a run as a value.

use crate::events::{Transfer, WaitReason};
use serde::{Deserialize, Serialize};

/// The most workers in a status.
pub(crate) const MAX_WORKERS: usize = 100;
/// The most characters of text from a worker or an error in a status.
pub(crate) const MAX_TEXT: usize = 200;
/// The most bytes of a status as JSON. The answer of a boss is a handshake, which has 64 KiB at
/// most.
const MAX_JSON: usize = 60 << 10;

/// The status of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// What the run does now.
    pub phase: Phase,
    /// For whom it waits, and since when.
    pub wait: Option<Wait>,
    /// The transfer of state that goes on, if it takes long.
    #[serde(default)]
    pub transfer: Option<Transfer>,
    /// The last step that is done.
    pub step: u64,
    /// The steps of the whole run, if they are known.
    pub steps: Option<u64>,
    /// The loss of the last step. `None` before the first step of a session, or if it is not
    /// finite.
    pub loss: Option<f32>,
    /// Samples per second since the session or the pool began. `None` before its first step.
    pub samples_per_second: Option<f64>,
    /// The error that ended the run.
    pub error: Option<String>,
    /// The workers of the run at first. `None` in a pool.
    pub initial_workers: Option<usize>,
    /// The number of workers that the list leaves out.
    pub more: usize,
    /// The workers, ascending. Of the members of a pool that have left, only the last are listed.
    pub workers: Vec<WorkerStatus>,
}

/// What a run does.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// It has not begun to wait for workers.
    #[default]
    Starting,
    /// It waits for workers.
    Waiting,
    /// Workers have joined, and no step of their session is reported.
    Ready,
    /// It trains.
    Training,
    /// Workers were lost.
    Recovering,
    /// It takes in workers that wait.
    Growing,
    /// All steps are done.
    Ended,
    /// The user ended it.
    Interrupted,
    /// An error ended it.
    Failed,
    /// Its process ended without a word.
    Crashed,
}

/// A wait for workers.
#[derive(Copy, Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Wait {
    /// The workers that have not joined.
    pub missing: usize,
    /// The workers that have places.
    pub workers: usize,
    /// Why the run waits.
    pub reason: WaitReason,
    /// Seconds since the wait began.
    pub seconds: f64,
}

/// The status of a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerStatus {
    /// Its number.
    pub worker: u16,
    /// The name of its machine, as the worker states it.
    pub host: String,
    /// The device on which it computes.
    pub device: String,
    /// Seconds since it joined this session.
    pub joined_seconds: f64,
    /// Its part in a pool. JSON has its fields beside the others.
    #[serde(flatten)]
    pub member: Option<MemberStatus>,
}

/// The status of a worker as a member of a pool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// `preparing`, `catching up`, `working`, `aside` or `left`.
    pub state: String,
    /// The reason, if it was evicted or has left.
    pub reason: Option<String>,
    /// Its part of the last batch, from 0 to 1.
    pub share: f64,
    /// Steps in which it took part.
    pub steps: u64,
    /// Samples that it took.
    pub samples: u64,
    /// Milliseconds for a microbatch, forward and back.
    pub milliseconds: Option<f64>,
    /// The rate of its slowest link to another worker, in bytes per second.
    pub link_bytes_per_second: Option<u64>,
    /// The memory of its device in bytes, if known.
    pub memory_bytes: Option<u64>,
    /// Seconds since its last sign of life.
    pub last_seen_seconds: f64,
}

impl Status {
    /// The status as JSON. It leaves out the last workers if they are too much for an answer.
    pub(crate) fn json(mut self) -> String {
        loop {
            let text = serde_json::to_string(&self).unwrap_or_else(|_| "{}".into());
            if text.len() <= MAX_JSON || self.workers.is_empty() {
                return text;
            }
            let listed = self.workers.len() / 2;
            self.more += self.workers.len() - listed;
            self.workers.truncate(listed);
        }
    }

    /// The workers that take part, or may soon.
    pub(super) fn present(&self) -> usize {
        self.workers.len().saturating_add(self.more)
    }
}
