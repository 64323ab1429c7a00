//! Peer snapshots: copies of the training state that workers store for each other during a run.

use crate::checkpoint::{Counters, DueTimer, Every, RunRecord};
use crate::output;
use crate::train::progress::Progress;
use crate::weights::state_dict::{expected, ExpectedTensor};
use crate::{BossMan, BossManError};
use pipeline::boss::{has_same_state, speakers, Keeping, Request};
use pipeline::effect::Answer;
use pipeline::ids::{StageId, WorkerId};
use pipeline::kept::{PeerSnapshot, Recalled, SnapshotId, SnapshotNote};
use pipeline::message::Failure;
use pipeline::StateName;
use serde::{Deserialize, Serialize};
use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::hash::{BuildHasher, Hasher};
use tokio::task::JoinHandle;

/// The source of the state from which a run resumes after a loss of workers.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub enum RecoverySource {
    /// It does not go on by itself.
    #[default]
    None,
    /// From the last checkpoint.
    Checkpoint,
    /// From the last copy that workers keep for each other, which is made so often; or from a checkpoint that is newer.
    PeerSnapshot(Every),
}

/// A number that nobody else draws, for a run or a membership of it.
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
    copy: SnapshotId,
    /// For each tensor who keeps it, and as part of what.
    tensors: BTreeMap<String, Vec<(WorkerId, u32)>>,
}

/// The copies of a run at work.
pub(crate) struct PeerSnapshots {
    run: u64,
    membership: u64,
    due: DueTimer,
    /// One is due that could not be made yet.
    overdue: bool,
    pending: Option<(SnapshotId, JoinHandle<Result<(), BossManError>>)>,
    /// The last that is whole.
    last: Option<SnapshotId>,
    /// The user knows that there is one.
    announced: bool,
}

impl PeerSnapshots {
    /// Copies of the run with this number, which may have gone on from one.
    pub(crate) fn new(run: u64, every: Every, from: Option<&PeerState>) -> Self {
        // A lost worker takes one copy of its parts with it.
        let (overdue, last) = (from.is_some(), from.map(|kept| kept.copy));
        PeerSnapshots {
            run,
            membership: random_id(),
            due: DueTimer::start(every),
            overdue,
            pending: None,
            last,
            announced: false,
        }
    }

    /// A step has ended: has workers make a copy where one is due and the one before has arrived.
    /// Reports errors, and training continues.
    pub(crate) async fn after_step(&mut self, boss: &mut BossMan, step: u64, run: &RunRecord, progress: &Progress) {
        self.overdue |= self.due.is_due(step);
        self.poll_pending(boss.plan.stage_placement.members().len() > 1, progress).await;
        if !self.overdue || self.pending.is_some() || !boss.is_between_updates() {
            return;
        }
        self.overdue = false;
        let copy = SnapshotId { run: self.run, step, membership: self.membership };
        match boss.begin_peer_snapshot(copy, self.last, run).await {
            Ok(arriving) => self.pending = Some((copy, tokio::spawn(arriving))),
            Err(error) => output::warn(&format!("warning: workers keep no copy of step {step}: {error}")),
        }
    }

    /// Whether the copy that was at work has arrived.
    async fn poll_pending(&mut self, shared: bool, progress: &Progress) {
        let Some((copy, arriving)) = self.pending.take_if(|(_, arriving)| arriving.is_finished()) else { return };
        let problem = match arriving.await {
            Ok(Ok(())) => {
                self.last = Some(copy);
                if shared && !std::mem::replace(&mut self.announced, true) {
                    progress.line(&format!("workers keep the state of step {} for each other, and so on", copy.step));
                }
                return;
            }
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        };
        self.overdue = true;
        output::warn(&format!("warning: workers keep no copy of step {}: {problem}", copy.step));
    }
}

impl BossMan {
    /// Has workers copy their state as it is between two steps, keep it, and send it to a
    /// neighbour, which keeps it, too, unless that one has the same state. The returned future ends
    /// when all parts are stored.
    async fn begin_peer_snapshot(
        &mut self,
        copy: SnapshotId,
        last: Option<SnapshotId>,
        run: &RunRecord,
    ) -> Result<impl Future<Output = Result<(), BossManError>> + Send + 'static, BossManError> {
        let counters = self.counters();
        let text = serde_json::to_string(&SnapshotProgress { counters, run: run.clone() });
        let text = text.map_err(|e| BossManError::Usage(format!("a copy's note: {e}")))?;
        let by_stage = self.snapshots_stage_by_stage();
        let number = |stage| speakers(&self.plan, stage, true).len() as u32;
        let parts = match by_stage {
            true => self.plan.stages.iter().map(|spec| number(Some(spec.stage))).sum(),
            false => number(None),
        };
        let (neighbours, mut before) = (self.neighbours(), 0);
        let ask = |boss: &BossMan, stage: Option<StageId>| {
            let note = SnapshotNote { parts, text: text.clone() };
            let neighbours = neighbours.clone();
            let keeping = Keeping { copy, note, last, stage, before, neighbours };
            before += speakers(&boss.plan, stage, true).len() as u32;
            boss.handle.call(Request::Keep(Box::new(keeping)))
        };
        let (replies, asked) = self.request_snapshots(ask).await;
        asked?;
        Ok(async move {
            let mut failed = None;
            for reply in replies {
                let arrived: Result<Answer, Failure> = reply.await;
                failed = failed.or(arrived.err());
            }
            failed.map_or(Ok(()), |failure| Err(failure.into()))
        })
    }

    /// The worker that stores each worker's part.
    fn neighbours(&self) -> BTreeMap<WorkerId, WorkerId> {
        let members: Vec<(WorkerId, &str)> =
            self.plan.stage_placement.members().into_iter().zip(self.hosts()).collect();
        let path = |worker, other| {
            if has_same_state(&self.plan, worker, other) {
                CopyRoute::None
            } else if self.plan.peers_of(worker).contains(&other) {
                CopyRoute::Link
            } else {
                CopyRoute::Boss
            }
        };
        neighbours(&members, path)
    }

    fn hosts(&self) -> impl Iterator<Item = &str> {
        let infos = self.handle.workers();
        let host = |worker: WorkerId| infos.get(usize::from(worker.0)).map_or("", |info| &info.host);
        self.plan.stage_placement.members().into_iter().map(host)
    }

    /// The complete snapshots of the run with this number, the last one first.
    pub(crate) async fn peer_snapshots(&mut self, run: u64) -> Result<Vec<PeerState>, BossManError> {
        let mut copies: BTreeMap<SnapshotId, Vec<(WorkerId, PeerSnapshot)>> = BTreeMap::new();
        for (worker, kept) in self.call(Request::Copies { run }).await?.copies {
            copies.entry(kept.copy).or_default().push((worker, kept));
        }
        let whole = copies
            .iter()
            .rev()
            .filter(|(copy, _)| copy.run == run)
            .map(|(copy, kept)| self.complete_snapshot(*copy, kept));
        Ok(whole.flatten().collect())
    }

    /// A copy, if all of it is there, and it is of this model.
    fn complete_snapshot(&self, copy: SnapshotId, kept: &[(WorkerId, PeerSnapshot)]) -> Option<PeerState> {
        let (_, first) = kept.first()?;
        let SnapshotProgress { counters, run } = serde_json::from_str(&first.note.text).ok()?;
        let parts: BTreeSet<u32> = kept.iter().flat_map(|(_, kept)| kept.parts.keys().copied()).collect();
        if !parts.into_iter().eq(0..first.note.parts) || counters.step != copy.step {
            return None;
        }
        let mut tensors: BTreeMap<String, Vec<(WorkerId, u32)>> = BTreeMap::new();
        for (worker, kept) in kept {
            for (part, names) in &kept.parts {
                names.iter().for_each(|name| tensors.entry(name.clone()).or_default().push((*worker, *part)));
            }
        }
        let parameters = expected(self.model.graph()).owned;
        let weights = tensors.keys().filter(|name| !StateName::parse(name).optimizer);
        weights.eq(parameters.keys()).then_some(PeerState { counters, run, copy, tensors })
    }

    /// Has workers go on from a copy that they keep, as from [a checkpoint](BossMan::restore): what a worker needs and keeps
    /// does not travel.
    pub(crate) async fn restore_peer_state(&mut self, kept: &PeerState) -> Result<(), BossManError> {
        let parameters = expected(self.model.graph()).owned;
        let mut tensors = Vec::new();
        for (text, keepers) in &kept.tensors {
            let name = StateName::parse(text);
            let parameter = name.kept().map_or(name.name, |(parameter, _)| parameter);
            let stranger = || BossManError::StateDict(vec![format!("`{parameter}`: the model has no such parameter")]);
            let ExpectedTensor { layer, parameter, .. } = parameters.get(parameter).ok_or_else(stranger)?;
            // Only the owner has the optimizer state.
            let most = if name.optimizer { 1 } else { usize::MAX };
            for stage in self.plan.holders(*layer, parameter).into_iter().take(most) {
                let at_home =
                    keepers.iter().find(|(keeper, _)| self.plan.stage_placement.first(stage) == Some(*keeper));
                let Some((keeper, part)) = at_home.or(keepers.first()).copied() else { continue };
                tensors.push(Recalled { keeper, part, name: text.clone(), stage });
            }
        }
        self.loaded = true;
        self.call(Request::Restore { copy: kept.copy, tensors }).await?;
        self.set_counters(kept.counters);
        Ok(())
    }
}

/// The path of a part to its second keeper, the best path first.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum CopyRoute {
    /// A replica has the same state, and copies it itself.
    None,
    /// The two exchange tensors anyway.
    Link,
    Boss,
}

/// For each worker, given with its machine, who keeps what it copies: one on another machine, for
/// machines fail as a whole; of these one to which the way is the best; and of these the one that
/// stores the least.
fn neighbours(
    members: &[(WorkerId, &str)],
    path: impl Fn(WorkerId, WorkerId) -> CopyRoute,
) -> BTreeMap<WorkerId, WorkerId> {
    let mut keeps: BTreeMap<WorkerId, usize> = BTreeMap::new();
    let mut neighbours = BTreeMap::new();
    for (place, (worker, host)) in members.iter().enumerate() {
        let others = (1..members.len()).map(|after| (after, &members[(place + after) % members.len()]));
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
        let members: Vec<(WorkerId, &str)> = (0..).map(WorkerId).zip(hosts.iter().copied()).collect();
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
        let columns = |a: u16, b: u16| if a % 2 == b % 2 { CopyRoute::None } else { CopyRoute::Link };
        assert_eq!(of(&["a", "a", "b", "b"], columns), [2, 3, 0, 1]);
        assert_eq!(of(&["a", "b", "c", "d"], columns), [2, 3, 0, 1]);
        // Machines that fail as a whole are worse than a way.
        assert_eq!(of(&["a", "b", "a", "b"], columns), [1, 2, 3, 0]);
    }
}
