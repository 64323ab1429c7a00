//! Peer snapshots: copies of the training state that workers store for each other during a run.

use crate::checkpoint::{request_snapshots, resume_from, Counters, DueTimer, Every, RunRecord};
use crate::events::{Event, Events, SnapshotOutcome};
use crate::session::trainer::Trainer;
use crate::{BossMan, BossManError};
use pipeline::boss::{Instruction, ListSnapshots, SnapshotRequest};
use pipeline::ids::{StageId, WorkerId};
use pipeline::peer_snapshot::{neighbours, recall, CompleteSnapshot, SnapshotId};
use pipeline::ModelParameters;
use serde::{Deserialize, Serialize};
use std::collections::hash_map::RandomState;
use std::collections::BTreeMap;
use std::future::Future;
use std::hash::{BuildHasher, Hasher};
use tokio::task::JoinHandle;
use tracing::debug;

/// A unique random number, for a run or a membership of it.
pub(crate) fn random_id() -> u64 {
    // The standard library's maps draw their keys at random.
    RandomState::new().build_hasher().finish()
}

/// The rest of the run's state, as workers store it with a snapshot.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SnapshotProgress {
    counters: Counters,
    run: RunRecord,
}

/// A complete snapshot, and the rest of the run's state.
pub(crate) struct PeerState {
    pub(crate) counters: Counters,
    pub(crate) run: RunRecord,
    snapshot: CompleteSnapshot,
}

impl PeerState {
    /// Reads the rest of the run's state. `None` if it is not that of the snapshot's step, because
    /// a worker may send anything.
    fn read(snapshot: CompleteSnapshot) -> Option<Self> {
        let SnapshotProgress { counters, run } = serde_json::from_str(&snapshot.text).ok()?;
        (counters.step == snapshot.id.step).then_some(PeerState { counters, run, snapshot })
    }
}

/// The peer snapshots of a run.
pub(crate) struct PeerSnapshots {
    run: u64,
    membership: u64,
    events: Events,
    due: DueTimer,
    /// Whether one is due that could not be made yet.
    overdue: bool,
    pending: Option<(SnapshotId, JoinHandle<Result<(), BossManError>>)>,
    /// The last complete one.
    last: Option<SnapshotId>,
    /// Whether the user was told that there is one.
    announced: bool,
}

impl PeerSnapshots {
    /// The snapshots of the run with this number, which may have resumed from one.
    pub(crate) fn new(run: u64, every: Every, from: Option<&PeerState>, events: Events) -> Self {
        // One copy of a lost worker's parts is lost, too.
        let (overdue, last) = (from.is_some(), from.map(|kept| kept.snapshot.id));
        PeerSnapshots {
            run,
            membership: random_id(),
            events,
            due: DueTimer::start(every),
            overdue,
            pending: None,
            last,
            announced: false,
        }
    }

    /// After a step: lets workers make a snapshot if one is due and the previous one has arrived.
    /// Reports errors, and training continues.
    pub(crate) async fn after_step(&mut self, boss: &mut BossMan, step: u64, run: &RunRecord) {
        self.overdue |= self.due.is_due(step);
        if self.pending.as_ref().is_some_and(|(_, arriving)| arriving.is_finished()) {
            self.wait_for_pending(is_shared(boss)).await;
        }
        if !self.overdue || self.pending.is_some() || !boss.trainer.position.is_between_updates() {
            return;
        }
        self.overdue = false;
        let snapshot = SnapshotId { run: self.run, step, membership: self.membership };
        debug!(step, "peer snapshot begins");
        match begin_peer_snapshot(&mut boss.trainer, snapshot, self.last, run).await {
            Ok(arriving) => self.pending = Some((snapshot, tokio::spawn(arriving))),
            Err(error) => self.report(step, SnapshotOutcome::Failed { why: error.to_string() }),
        }
    }

    /// Lets workers make a snapshot of this step, which the next session resumes from, unless there
    /// is one. Waits until it has arrived. Returns whether it is complete.
    pub(crate) async fn finish(&mut self, boss: &mut BossMan, step: u64, run: &RunRecord) -> bool {
        let shared = is_shared(boss);
        self.wait_for_pending(shared).await;
        if !self.is_last(step) {
            self.overdue = true;
            self.after_step(boss, step, run).await;
            self.wait_for_pending(shared).await;
        }
        self.is_last(step)
    }

    /// Whether the last complete snapshot is of this step.
    fn is_last(&self, step: u64) -> bool {
        self.last.is_some_and(|last| last.step == step)
    }

    fn report(&self, step: u64, outcome: SnapshotOutcome) {
        self.events.report(&Event::PeerSnapshot { step, outcome });
    }

    /// Waits until the pending snapshot has arrived, if there is one. It protects the run from a
    /// loss if it is shared.
    async fn wait_for_pending(&mut self, shared: bool) {
        let Some((snapshot, arriving)) = self.pending.take() else { return };
        let problem = match arriving.await {
            Ok(Ok(())) => {
                self.last = Some(snapshot);
                let first = shared && !std::mem::replace(&mut self.announced, true);
                return self.report(snapshot.step, SnapshotOutcome::Stored { first });
            }
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        };
        self.overdue = true;
        self.report(snapshot.step, SnapshotOutcome::Failed { why: problem });
    }
}

/// Whether several workers share the state.
fn is_shared(boss: &BossMan) -> bool {
    boss.trainer.plan.stage_placement.members().len() > 1
}

/// Lets workers copy their state between two steps, store it, and send it to a neighbour, which
/// stores it, too. A neighbour with the same state copies it itself. The returned future ends when
/// all parts are stored.
async fn begin_peer_snapshot(
    trainer: &mut Trainer,
    snapshot: SnapshotId,
    last: Option<SnapshotId>,
    run: &RunRecord,
) -> Result<impl Future<Output = Result<(), BossManError>> + Send + 'static, BossManError> {
    let counters = trainer.position.counters;
    let text = serde_json::to_string(&SnapshotProgress { counters, run: run.clone() });
    let text = text.map_err(|e| BossManError::Usage(format!("peer snapshot: {e}")))?;
    let neighbours = neighbours_of(trainer);
    let ask = |trainer: &Trainer, stage: Option<StageId>| {
        let (text, neighbours) = (text.clone(), neighbours.clone());
        let request = SnapshotRequest { snapshot, text, last_complete: last, stage, neighbours };
        trainer.handle.call(Instruction::StoreSnapshot(Box::new(request)))
    };
    let (replies, asked) = request_snapshots(trainer, ask).await;
    asked?;
    Ok(async move {
        let mut failed = None;
        for reply in replies {
            failed = failed.or(reply.await.err());
        }
        failed.map_or(Ok(()), |failure| Err(failure.into()))
    })
}

/// The worker that stores each worker's part.
fn neighbours_of(trainer: &Trainer) -> BTreeMap<WorkerId, WorkerId> {
    let infos = trainer.handle.workers();
    let machine =
        |worker: WorkerId| infos.get(usize::from(worker.0)).map_or("", |info| info.machine());
    neighbours(&trainer.plan, machine)
}

/// The complete snapshots of the run with this number, the last one first.
pub(crate) async fn peer_snapshots(
    trainer: &Trainer,
    run: u64,
) -> Result<Vec<PeerState>, BossManError> {
    let reports = trainer.call(ListSnapshots { run }).await?;
    let parameters = ModelParameters::of(trainer.model.graph());
    let complete = CompleteSnapshot::all(run, reports).into_iter();
    Ok(complete.filter(|found| found.is_of(&parameters)).filter_map(PeerState::read).collect())
}

/// Restores the state of workers from a peer snapshot, as from [a checkpoint](BossMan::restore).
/// Tensors that a worker needs and already stores do not travel.
pub(crate) async fn restore_peer_state(
    trainer: &mut Trainer,
    kept: &PeerState,
) -> Result<(), BossManError> {
    let parameters = ModelParameters::of(trainer.model.graph());
    let tensors = recall(&trainer.plan, &kept.snapshot, &parameters)
        .map_err(|unknown| BossManError::StateDict(vec![unknown.to_string()]))?;
    trainer.has_loaded = true;
    trainer.call(Instruction::RestoreSnapshot { snapshot: kept.snapshot.id, tensors }).await?;
    resume_from(trainer, kept.counters);
    Ok(())
}
