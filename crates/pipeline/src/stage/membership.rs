//! The stages of a worker, and the workers that hold each stage.

use super::inbox::Item;
use super::needs::loss_output;
use super::replica_group::ReplicaGroup;
use crate::effect::Peer;
use crate::ids::{Slot, StageId, WorkerId};
use crate::message::Assignment;
use crate::plan::StageSpec;
use crate::replicas::{BucketBytes, ShardId, Sharding, StagePlacement};
use crate::task::Task;
use crate::StateForm;
use std::collections::BTreeMap;

/// The place of a worker among the others. Empty before the first assignment.
#[derive(Default)]
pub(super) struct Membership {
    /// This worker.
    pub(super) worker: Option<WorkerId>,
    /// Its stages, in the order of the model.
    pub(super) stages: Vec<StageSpec>,
    /// The workers of every stage of the run.
    pub(super) placement: StagePlacement,
    /// Those of its stages that other workers hold or follow, too.
    pub(super) groups: BTreeMap<StageId, ReplicaGroup>,
    buckets: BucketBytes,
    sharding: Option<Sharding>,
}

impl Membership {
    /// The place that an assignment gives. Fails with what is wrong with it.
    pub(super) fn assigned(assignment: &Assignment) -> Result<Self, &'static str> {
        if !assignment.stage_placement.are_possible() {
            return Err("sent stages with replicas that cannot be");
        }
        let mut membership = Membership {
            worker: Some(assignment.worker),
            stages: assignment.stages.clone(),
            placement: assignment.stage_placement.clone(),
            groups: BTreeMap::new(),
            buckets: assignment.buckets,
            sharding: assignment.sharding,
        };
        membership.groups = membership.groups(&membership.placement, &[]);
        Ok(membership)
    }

    /// The place of the same stages among other workers. Fails with what is wrong with it.
    pub(super) fn changed(
        &self,
        placement: StagePlacement,
        followers: &[(StageId, WorkerId)],
    ) -> Result<Self, &'static str> {
        if self.sharding.is_some() {
            return Err("sent other workers for stages of which each keeps a part alone");
        }
        let has_stages = placement.are_possible() && placement.stages() == self.placement.stages();
        if self.worker.is_none() || !has_stages {
            return Err("sent other workers for stages that are not here");
        }
        let groups = self.groups(&placement, followers);
        Ok(Membership { stages: self.stages.clone(), placement, groups, ..*self })
    }

    fn groups(
        &self,
        placement: &StagePlacement,
        followers: &[(StageId, WorkerId)],
    ) -> BTreeMap<StageId, ReplicaGroup> {
        let group = |spec: &StageSpec| {
            let follows = followers.iter().filter(|(stage, _)| *stage == spec.stage);
            let followers = follows.map(|(_, worker)| *worker).collect();
            let (workers, bytes, sharding) =
                (placement.of(spec.stage), self.buckets, self.sharding);
            let group = ReplicaGroup::new(spec, workers, followers, self.worker?, bytes, sharding)?;
            Some((spec.stage, group))
        };
        self.stages.iter().filter_map(group).collect()
    }

    /// One of this worker's stages.
    pub(super) fn stage(&self, stage: StageId) -> Option<&StageSpec> {
        self.stages.iter().find(|spec| spec.stage == stage)
    }

    /// The shard of this replica of a trained stage, if there are other replicas.
    pub(super) fn rank(&self, stage: StageId) -> Option<ShardId> {
        self.stage(stage).filter(|spec| spec.is_trained())?;
        self.groups.get(&stage)?.rank()
    }

    /// This worker's shard of each sharded stage.
    pub(super) fn shard_ids(&self) -> BTreeMap<StageId, ShardId> {
        let shard = |(stage, group): (&StageId, &ReplicaGroup)| Some((*stage, group.shard_id()?));
        self.groups.iter().filter_map(shard).collect()
    }

    /// The number of the replica of a stage at a peer, or `usize::MAX`, which no check accepts.
    pub(super) fn replica(&self, stage: StageId, peer: Peer) -> usize {
        self.groups.get(&stage).and_then(|group| group.replica(peer)).unwrap_or(usize::MAX)
    }

    /// Whether a worker has a stage.
    fn is_at(&self, stage: StageId, peer: Peer) -> bool {
        matches!(peer, Peer::Worker(worker) if self.placement.has(stage, worker))
    }

    /// The stages that a command is about: one, or all of this worker.
    fn wanted(&self, only: Option<StageId>) -> impl Iterator<Item = StageId> + '_ {
        let stages = self.stages.iter().map(|spec| spec.stage);
        stages.filter(move |stage| only.is_none_or(|only| only == *stage))
    }

    /// Whether this worker has the state that `of` sends.
    pub(super) fn has_state_of(&self, of: WorkerId, stage: Option<StageId>) -> bool {
        let mut wanted = self.wanted(stage);
        self.worker == Some(of)
            || (self.sharding.is_none()
                && wanted.all(|stage| self.placement.first(stage) == Some(of)))
    }

    /// The task that copies the state that `of` sends. `of` is this worker, or the first replica of
    /// its stages.
    pub(super) fn snapshot(
        &self,
        of: Option<WorkerId>,
        stage: Option<StageId>,
        optimizer: bool,
        form: StateForm,
    ) -> Task<Slot> {
        let sends = |stage: &StageId| of.is_some() && self.placement.first(*stage) == of;
        let shares = |stage: &StageId| self.groups.get(stage).is_some_and(ReplicaGroup::is_sharded);
        let parameters = self.wanted(stage).filter(sends).collect();
        let optimizer = self
            .wanted(stage)
            .filter(|stage| optimizer && (sends(stage) || shares(stage)))
            .collect();
        Task::Snapshot { parameters, optimizer, form }
    }

    /// The task that copies the whole state of this worker.
    pub(super) fn full_snapshot(&self) -> Task<Slot> {
        let all: Vec<StageId> = self.wanted(None).collect();
        Task::Snapshot { parameters: all.clone(), optimizer: all, form: StateForm::Tensors }
    }

    /// Whether the plan lets this sender send this number of tensors of this kind to a stage.
    pub(super) fn expects(&self, from: Peer, stage: StageId, item: Item, tensors: usize) -> bool {
        let Some(spec) = self.stage(stage) else { return false };
        let is_at = |stage: Option<StageId>| match stage {
            None => from == Peer::Boss,
            Some(stage) => self.is_at(stage, from),
        };
        match item {
            Item::Target => from == Peer::Boss && loss_output(spec).is_some(),
            Item::Value(value) => spec.inputs.iter().any(|i| i.value == value && is_at(i.from)),
            Item::Gradient { value, from: stage } => {
                let output = spec.outputs.iter().find(|o| o.value == value && o.needs_grad);
                let given = output.is_some_and(|o| match stage {
                    None => o.model_output.is_some(),
                    Some(stage) => o.to.contains(&stage),
                });
                given && is_at(stage)
            }
            Item::Sum { .. }
            | Item::Reduced { .. }
            | Item::Updated { .. }
            | Item::Statistics { .. } => {
                self.groups.get(&stage).is_some_and(|group| group.expects(from, item, tensors))
            }
            Item::TiedGrads { from } => {
                spec.holders_of_copies().contains(&from)
                    && is_at(Some(from))
                    && tensors == spec.tied_grads_from(from)
            }
            Item::TiedValues { from } => {
                spec.lenders().contains(&from)
                    && is_at(Some(from))
                    && tensors == spec.tied_values_from(from)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::membership;
    use super::*;

    #[test]
    fn only_stages_without_shards_change_their_workers() {
        let placement = |workers: &[u16]| {
            let stages = workers.iter().map(|worker| vec![WorkerId(*worker)]).collect();
            StagePlacement::new(stages)
        };
        let plain = membership(&[2, 1], 0, None);
        assert!(plain.changed(placement(&[0, 1]), &[]).is_ok());
        assert!(plain.changed(placement(&[0]), &[]).is_err(), "a stage is missing");
        assert!(Membership::default().changed(placement(&[]), &[]).is_err(), "not assigned");
        let sharded = membership(&[2, 1], 0, Some(Sharding::Optimizer));
        assert!(sharded.changed(placement(&[0, 1]), &[]).is_err());
    }

    #[test]
    fn a_follower_has_a_group_in_which_it_is_no_replica() {
        let plain = membership(&[2, 1], 2, None);
        let placement = StagePlacement::new(vec![vec![WorkerId(0)], vec![WorkerId(1)]]);
        let followers = [(StageId(0), WorkerId(2))];
        let changed = plain.changed(placement, &followers).expect("the same stages");
        let group = changed.groups.get(&StageId(0)).expect("it follows");
        assert!(group.is_followed() && group.rank().is_none());
        assert_eq!(changed.rank(StageId(0)), None);
    }

    #[test]
    fn the_first_replica_speaks_for_the_others() {
        let second = membership(&[2, 1], 2, None);
        let form = StateForm::Hashes;
        let snapshot = |of: &[StageId]| Task::Snapshot {
            parameters: of.to_vec(),
            optimizer: of.to_vec(),
            form,
        };
        let (speaks, silent) = (snapshot(&[StageId(0)]), snapshot(&[]));
        assert_eq!(second.snapshot(Some(WorkerId(0)), None, true, form), speaks);
        assert_eq!(second.snapshot(second.worker, None, true, form), silent);
        assert!(second.has_state_of(WorkerId(0), None));
        assert!(!second.has_state_of(WorkerId(1), None));
    }
}
