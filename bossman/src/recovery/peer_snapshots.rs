//! Peer snapshots: copies of the training state that workers store for each other during a run.

use crate::checkpoint::{
    request_snapshots, resume_from, snapshots_stage_by_stage, Counters, DueTimer, Every, RunRecord,
};
use crate::events::{Event, Events, SnapshotOutcome};
use crate::session::trainer::Trainer;
use crate::weights::state_dict::{expected, ExpectedTensor};
use crate::{BossMan, BossManError};
use pipeline::boss::{has_same_state, state_senders, Instruction, ListSnapshots, SnapshotRequest};
use pipeline::ids::{StageId, WorkerId};
use pipeline::peer_snapshot::{PeerSnapshot, SnapshotId, SnapshotNote, StoredTensor};
use pipeline::StateName;
use serde::{Deserialize, Serialize};
use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, BTreeSet};
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

/// A snapshot whose parts are all at connected workers.
pub(crate) struct PeerState {
    pub(crate) counters: Counters,
    pub(crate) run: RunRecord,
    snapshot: SnapshotId,
    /// For each tensor, the workers that store it, each with the number of the part.
    tensors: BTreeMap<String, Vec<(WorkerId, u32)>>,
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
        let (overdue, last) = (from.is_some(), from.map(|kept| kept.snapshot));
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
        self.poll_pending(boss.trainer.plan.stage_placement.members().len() > 1).await;
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

    fn report(&self, step: u64, outcome: SnapshotOutcome) {
        self.events.report(&Event::PeerSnapshot { step, outcome });
    }

    /// Checks whether the pending snapshot has arrived.
    async fn poll_pending(&mut self, shared: bool) {
        let Some((snapshot, arriving)) =
            self.pending.take_if(|(_, arriving)| arriving.is_finished())
        else {
            return;
        };
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
    let by_stage = snapshots_stage_by_stage(trainer);
    let number = |stage| state_senders(&trainer.plan, stage, true).len() as u32;
    let parts = match by_stage {
        true => trainer.plan.stages.iter().map(|spec| number(Some(spec.stage))).sum(),
        false => number(None),
    };
    let (neighbours, mut before) = (neighbours_of(trainer), 0);
    let ask = |trainer: &Trainer, stage: Option<StageId>| {
        let note = SnapshotNote { parts, text: text.clone() };
        let neighbours = neighbours.clone();
        let keeping =
            SnapshotRequest { snapshot, note, last_complete: last, stage, before, neighbours };
        before += state_senders(&trainer.plan, stage, true).len() as u32;
        trainer.handle.call(Instruction::StoreSnapshot(Box::new(keeping)))
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
    let members: Vec<(WorkerId, &str)> =
        trainer.plan.stage_placement.members().into_iter().zip(hosts(trainer)).collect();
    let path = |worker, other| {
        if has_same_state(&trainer.plan, worker, other) {
            CopyRoute::None
        } else if trainer.plan.peers_of(worker).contains(&other) {
            CopyRoute::Link
        } else {
            CopyRoute::Boss
        }
    };
    neighbours(&members, path)
}

fn hosts(trainer: &Trainer) -> impl Iterator<Item = &str> {
    let infos = trainer.handle.workers();
    let host = |worker: WorkerId| infos.get(usize::from(worker.0)).map_or("", |info| &info.host);
    trainer.plan.stage_placement.members().into_iter().map(host)
}

/// The complete snapshots of the run with this number, the last one first.
pub(crate) async fn peer_snapshots(
    trainer: &Trainer,
    run: u64,
) -> Result<Vec<PeerState>, BossManError> {
    let mut snapshots: BTreeMap<SnapshotId, Vec<(WorkerId, PeerSnapshot)>> = BTreeMap::new();
    for (worker, kept) in trainer.call(ListSnapshots { run }).await? {
        snapshots.entry(kept.snapshot).or_default().push((worker, kept));
    }
    let whole = snapshots
        .iter()
        .rev()
        .filter(|(snapshot, _)| snapshot.run == run)
        .map(|(snapshot, kept)| complete_snapshot(trainer, *snapshot, kept));
    Ok(whole.flatten().collect())
}

/// A snapshot, if all its parts are stored and it is of this model.
fn complete_snapshot(
    trainer: &Trainer,
    snapshot: SnapshotId,
    kept: &[(WorkerId, PeerSnapshot)],
) -> Option<PeerState> {
    let (_, first) = kept.first()?;
    let SnapshotProgress { counters, run } = serde_json::from_str(&first.note.text).ok()?;
    let parts: BTreeSet<u32> =
        kept.iter().flat_map(|(_, kept)| kept.parts.keys().copied()).collect();
    if !parts.into_iter().eq(0..first.note.parts) || counters.step != snapshot.step {
        return None;
    }
    let mut tensors: BTreeMap<String, Vec<(WorkerId, u32)>> = BTreeMap::new();
    for (worker, kept) in kept {
        for (part, names) in &kept.parts {
            names
                .iter()
                .for_each(|name| tensors.entry(name.clone()).or_default().push((*worker, *part)));
        }
    }
    let parameters = expected(trainer.model.graph()).owned;
    let weights = tensors.keys().filter(|name| !StateName::parse(name).optimizer);
    weights.eq(parameters.keys()).then_some(PeerState { counters, run, snapshot, tensors })
}

/// Restores the state of workers from a peer snapshot, as from [a checkpoint](BossMan::restore).
/// Tensors that a worker needs and already stores do not travel.
pub(crate) async fn restore_peer_state(
    trainer: &mut Trainer,
    kept: &PeerState,
) -> Result<(), BossManError> {
    let parameters = expected(trainer.model.graph()).owned;
    let mut tensors = Vec::new();
    for (text, keepers) in &kept.tensors {
        let name = StateName::parse(text);
        let parameter = name.kept().map_or(name.name, |(parameter, _)| parameter);
        let stranger = || {
            BossManError::StateDict(vec![format!("`{parameter}`: the model has no such parameter")])
        };
        let ExpectedTensor { layer, parameter, .. } =
            parameters.get(parameter).ok_or_else(stranger)?;
        // Only the owner has the optimizer state.
        let most = if name.optimizer { 1 } else { usize::MAX };
        for stage in trainer.plan.holders(*layer, parameter).into_iter().take(most) {
            let at_home = keepers
                .iter()
                .find(|(holder, _)| trainer.plan.stage_placement.first(stage) == Some(*holder));
            let Some((holder, part)) = at_home.or(keepers.first()).copied() else { continue };
            tensors.push(StoredTensor { holder, part, name: text.clone(), stage });
        }
    }
    trainer.has_loaded = true;
    trainer.call(Instruction::RestoreSnapshot { snapshot: kept.snapshot, tensors }).await?;
    resume_from(trainer, kept.counters);
    Ok(())
}

/// The path of a part to the neighbour that stores it, the best path first.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum CopyRoute {
    /// A replica has the same state, and copies it itself.
    None,
    /// The two exchange tensors anyway.
    Link,
    Boss,
}

/// The neighbour that stores the copy of each worker. Prefers another machine, because machines
/// fail as a whole; then the best path; then the neighbour that stores the least. `members` has the
/// machine of each worker.
fn neighbours(
    members: &[(WorkerId, &str)],
    path: impl Fn(WorkerId, WorkerId) -> CopyRoute,
) -> BTreeMap<WorkerId, WorkerId> {
    let mut keeps: BTreeMap<WorkerId, usize> = BTreeMap::new();
    let mut neighbours = BTreeMap::new();
    for (place, (worker, host)) in members.iter().enumerate() {
        let others =
            (1..members.len()).map(|after| (after, &members[(place + after) % members.len()]));
        let best = others.min_by_key(|(after, (other, on))| {
            (on == host, path(*worker, *other), keeps.get(other).copied().unwrap_or(0), *after)
        });
        if let Some((_, (other, _))) = best {
            *keeps.entry(*other).or_default() += 1;
            neighbours.insert(*worker, *other);
        }
    }
    neighbours
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(hosts: &[&str], path: impl Fn(u16, u16) -> CopyRoute) -> Vec<u16> {
        let members: Vec<(WorkerId, &str)> =
            (0..).map(WorkerId).zip(hosts.iter().copied()).collect();
        let found = neighbours(&members, |a, b| path(a.0, b.0));
        found.into_values().map(|worker| worker.0).collect()
    }

    #[test]
    fn a_neighbour_is_on_another_machine_linked_and_keeps_little() {
        let linked = |linked| if linked { CopyRoute::Link } else { CopyRoute::Boss };
        let row = |a: u16, b: u16| linked(a.abs_diff(b) == 1);
        assert_eq!(of(&["a"], row), Vec::<u16>::new());
        assert_eq!(of(&["a", "b"], row), [1, 0]);
        assert_eq!(of(&["a", "b", "c"], row), [1, 2, 1]);
        assert_eq!(of(&["a", "a", "b"], row), [2, 2, 1]);
        assert_eq!(of(&["a", "a", "a", "a"], |_, _| CopyRoute::Link), [1, 2, 3, 0]);
        let two_machines = of(&["a", "a", "a", "a", "b", "b", "b", "b"], |_, _| CopyRoute::Link);
        assert_eq!(two_machines, [4, 5, 6, 7, 0, 1, 2, 3]);
        // Replicas of a stage, of which two share a machine.
        let columns =
            |a: u16, b: u16| if a % 2 == b % 2 { CopyRoute::None } else { CopyRoute::Link };
        assert_eq!(of(&["a", "a", "b", "b"], columns), [2, 3, 0, 1]);
        assert_eq!(of(&["a", "b", "c", "d"], columns), [2, 3, 0, 1]);
        // Another machine counts more than a good path.
        assert_eq!(of(&["a", "b", "a", "b"], columns), [1, 2, 3, 0]);
    }
}
