//! What happens in a run.

use super::remark::Remark;
use super::Transfer;
use crate::receipt::Inputs;
use crate::train::validation_result::ValidationResult;
use crate::{BossManError, StepReport, Timelines};
use link::Ticket;
use pipeline::ids::{StageId, WorkerId};
use pipeline::membership::Notice;
use pipeline::message::Failure;
use pipeline::recovery::{RecoveryCost, ResumeReport, StateSource};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// An event of a run. It owns its values, so an observer may keep it or take it to another thread.
///
/// As JSON it is an object whose `event` names the kind. It never holds the join ticket.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Event {
    /// The run has this folder.
    Folder {
        /// Its path.
        path: PathBuf,
    },
    /// The boss listens for workers, and for questions about the run.
    Listening {
        /// Its UDP port.
        port: u16,
    },
    /// The boss waits for workers.
    Waiting {
        /// The workers that have not joined.
        missing: usize,
        /// The workers of the run.
        workers: usize,
        /// Why it waits.
        reason: WaitReason,
        /// The time since the wait began.
        waited_s: u64,
        /// How workers of other machines join, if they may. JSON leaves it out.
        #[serde(skip)]
        invitation: Option<Invitation>,
    },
    /// A worker joined.
    Joined {
        /// Its number.
        worker: WorkerId,
        /// Its address.
        address: IpAddr,
        /// The name of its machine.
        host: String,
        /// Its device, as `cpu` or `cuda:0`.
        device: String,
        /// The kind of its processor.
        #[serde(default)]
        processor: String,
        /// Its compute threads.
        threads: u32,
        /// The workers that are missing. `None` in a pool, where workers may join at any moment.
        missing: Option<usize>,
    },
    /// A worker left.
    Left {
        /// Its number.
        worker: WorkerId,
        /// The reason.
        why: String,
        /// Whether the run had not begun.
        while_waiting: bool,
    },
    /// A caller was not admitted.
    TurnedAway {
        /// Its address.
        address: IpAddr,
        /// The reason.
        why: String,
    },
    /// A pool decided who takes part.
    Pool(Notice),
    /// Stages, workers and schedule are settled.
    Planned {
        /// The name of the schedule, as a run file has it.
        schedule: String,
        /// The stages, in the order of the model.
        stages: Vec<PlannedStage>,
        /// Why this schedule.
        why: String,
    },
    /// A session begins or continues the run.
    Started {
        /// The steps of the whole run.
        steps: u64,
        /// The steps that are done.
        done: u64,
        /// The state that it resumes from. `None` at the beginning of a run.
        from: Option<StateSource>,
        /// The number of microbatches of a batch.
        microbatches: u32,
        /// The bytes of metrics that belong to that state.
        metrics_bytes: u64,
        /// Whether the run is a pool.
        #[serde(default)]
        pool: bool,
    },
    /// A training step is done. A repeated step appears again.
    Step {
        /// The step.
        #[serde(flatten)]
        report: StepReport,
        /// Its timelines, if an observer wants them. JSON leaves them out.
        #[serde(skip)]
        timelines: Option<Arc<Timelines>>,
    },
    /// Weights were written to a file.
    WeightsSaved {
        /// The steps that made them.
        step: u64,
        /// The file.
        path: PathBuf,
        /// Whether they are those with the best validation so far.
        best: bool,
        /// The time of the file's last change, in seconds since 1970, UTC, if the system tells it.
        #[serde(default)]
        modified: Option<f64>,
    },
    /// The model was validated after an epoch.
    Validated {
        /// The steps that made it.
        step: u64,
        /// The epoch, from 1.
        epoch: u64,
        /// The result.
        #[serde(flatten)]
        validation: ValidationResult,
        /// Whether it is the best so far.
        best: bool,
    },
    /// A peer snapshot ended.
    PeerSnapshot {
        /// Its step.
        step: u64,
        /// How it ended.
        #[serde(flatten)]
        outcome: SnapshotOutcome,
    },
    /// A checkpoint ended, or training waits for one.
    Checkpoint {
        /// Its step.
        step: u64,
        /// How it ended.
        #[serde(flatten)]
        outcome: CheckpointOutcome,
    },
    /// The run's data and initial weights were hashed.
    Inputs(Inputs),
    /// The training state after a step was hashed.
    Digest {
        /// The step.
        step: u64,
        /// A SHA-256 in hexadecimal digits; see [`StateDigest`](pipeline::StateDigest).
        digest: String,
    },
    /// Workers were lost, and the run recovers.
    WorkersLost {
        /// The work that was complete by then.
        after: Completed,
        /// The worker, if it is known.
        worker: Option<WorkerId>,
        /// Its stage, if it is known.
        stage: Option<StageId>,
        /// The error.
        error: String,
    },
    /// The run holds its state after a step, and begins a session with more workers.
    Growing {
        /// The steps that are done.
        after: u64,
        /// The workers so far.
        workers: usize,
        /// The waiting workers that it takes in.
        waiting: usize,
        /// The workers at first.
        initial_workers: usize,
    },
    /// Weights are saved or fetched, or a state is loaded, and it takes longer than ten seconds. A
    /// checkpoint that is written has an event of its own.
    Transfer(Transfer),
    /// The run resumes after a loss, or with more workers.
    Resuming(ResumeReport),
    /// The work that a loss had cost is repeated.
    Recovered(RecoveryCost),
    /// Something needs the user's attention, and the run goes on.
    Warning(Remark),
    /// A choice was made that the user may want to know.
    Notice(Remark),
    /// The user ended the run before its last step.
    Interrupted {
        /// The last step that is done. `None` if the run was ended at once.
        step: Option<u64>,
        /// The file of the weights after that step, if they were saved.
        weights: Option<PathBuf>,
        /// The step of the newest checkpoint, from which the run can resume. It may be older.
        #[serde(default)]
        checkpoint: Option<u64>,
    },
    /// Training ended.
    Ended {
        /// The steps that are done.
        steps: u64,
        /// The time in steps and validation.
        #[serde(rename = "time_s", with = "pipeline::recovery::seconds")]
        time: Duration,
        /// The error that ended it before its last step.
        error: Option<String>,
    },
    /// The final weights were scored on the test data.
    Tested {
        /// The result.
        #[serde(flatten)]
        validation: ValidationResult,
    },
}

/// The reason to wait for workers.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitReason {
    /// The run has not begun.
    Start,
    /// Workers were lost, and the others join again.
    Rejoin,
    /// The run takes in workers that wait, and all join again.
    Grow,
    /// Workers were lost, and too few remain.
    TooFewRemain,
}

/// How workers of other machines join.
#[derive(Clone, Debug)]
pub struct Invitation {
    /// The workers that the boss does not start itself.
    pub missing: usize,
    /// The address of this machine, if it is known.
    pub address: Option<IpAddr>,
    /// The UDP port of the boss.
    pub port: u16,
    /// The secret.
    pub ticket: Ticket,
    /// The command that starts a worker, here in any folder.
    pub program: String,
    /// Whether workers may join at any moment.
    pub is_pool: bool,
    /// The folder here whose files workers read from a folder of theirs.
    pub data: Option<PathBuf>,
    /// The folder here of the weights that workers read from a folder of theirs.
    pub weights: Option<PathBuf>,
}

/// A stage of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedStage {
    /// The name of its first layer.
    pub first_layer: String,
    /// The workers that hold it.
    pub workers: Vec<WorkerId>,
}

/// How a peer snapshot ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum SnapshotOutcome {
    /// Every part is stored.
    Stored {
        /// Whether it is the first that protects the run from a loss.
        first: bool,
    },
    /// There is none of this step.
    Failed {
        /// The reason.
        why: String,
    },
}

/// How a checkpoint ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum CheckpointOutcome {
    /// It is whole.
    Written,
    /// There is none of this step.
    Failed {
        /// The reason.
        why: String,
    },
    /// It is due, and training waits until an older one is written.
    Waits {
        /// The step of the older one.
        before: u64,
    },
}

/// An amount of completed work.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Completed {
    /// Training steps of a run.
    Steps(u64),
    /// Optimizer steps of calls by hand.
    Updates(u64),
}

impl Event {
    /// A warning.
    pub(crate) fn warning(remark: impl Into<Remark>) -> Self {
        Event::Warning(remark.into())
    }

    /// A notice.
    pub(crate) fn notice(remark: impl Into<Remark>) -> Self {
        Event::Notice(remark.into())
    }

    /// A loss of workers, with its place as far as it is known.
    pub(crate) fn workers_lost(after: Completed, error: &BossManError) -> Self {
        let failure = match error {
            BossManError::Worker(Failure { worker, stage, .. }) => (*worker, *stage),
            _ => (None, None),
        };
        let (worker, stage) = failure;
        Event::WorkersLost { after, worker, stage, error: error.to_string() }
    }
}

impl From<Notice> for Event {
    fn from(notice: Notice) -> Self {
        match notice {
            Notice::Left { worker, why } => Event::Left { worker, why, while_waiting: false },
            notice => Event::Pool(notice),
        }
    }
}
