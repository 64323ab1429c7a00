//! The parts of a snapshot: their numbers, the worker that makes each, and the two that store it.

use super::neighbours::has_same_state;
use super::PartToMake;
use crate::ids::{StageId, WorkerId};
use crate::plan::Plan;
use std::collections::{BTreeMap, BTreeSet};

/// The workers that send parameters: the first replica of each stage, or of this stage. If replicas
/// shard the optimizer state and that is sent, too, every replica sends its shard.
pub(crate) fn state_senders(
    plan: &Plan,
    only: Option<StageId>,
    optimizer: bool,
) -> BTreeSet<WorkerId> {
    let wanted =
        plan.stage_placement.iter().filter(|(stage, _)| only.is_none_or(|only| only == *stage));
    let most = if optimizer && plan.sharding.is_some() { usize::MAX } else { 1 };
    wanted.flat_map(|(_, workers)| workers.iter().take(most)).copied().collect()
}

/// The numbers of the parts that one request of a snapshot names.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct PartNumbers {
    /// The first of them.
    pub(crate) first: u32,
    /// The number of parts of the complete snapshot.
    pub(crate) total: u32,
}

impl PartNumbers {
    /// The numbers for the request of all stages, or for that of one stage. A snapshot is either
    /// one request, or one for each stage in the order of the model.
    pub(crate) fn of(plan: &Plan, stage: Option<StageId>) -> Self {
        let count = |stage: Option<StageId>| state_senders(plan, stage, true).len() as u32;
        let Some(stage) = stage else { return PartNumbers { first: 0, total: count(None) } };
        let stages = || plan.stages.iter().map(|spec| spec.stage);
        let before = stages().take_while(|other| *other != stage);
        PartNumbers {
            first: before.map(|stage| count(Some(stage))).sum(),
            total: stages().map(|stage| count(Some(stage))).sum(),
        }
    }
}

/// The two workers that store a part of a snapshot.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct PartHolders {
    /// The worker whose state it is.
    pub(crate) owner: WorkerId,
    /// The neighbour that stores it, too.
    pub(crate) other: WorkerId,
    /// Whether the owner sends it, because the neighbour does not have the same state.
    pub(crate) sends: bool,
}

impl PartHolders {
    /// The copy that a worker makes of this part, if any.
    pub(crate) fn make(self, part: u32, worker: WorkerId) -> Option<PartToMake> {
        let PartHolders { owner: of, other, sends } = self;
        let makes = worker == of || (!sends && worker == other);
        makes.then_some(PartToMake { part, of, to: sends.then_some(other) })
    }
}

/// The holders of each part of the request of all stages, or of that of one stage. A worker without
/// a neighbour in `neighbours` has the next worker.
pub(crate) fn holders_of_parts(
    plan: &Plan,
    stage: Option<StageId>,
    neighbours: &BTreeMap<WorkerId, WorkerId>,
) -> BTreeMap<u32, PartHolders> {
    let members = plan.stage_placement.members();
    let next = |worker: WorkerId| {
        let after = members.iter().find(|other| **other > worker).or(members.first());
        after.copied().unwrap_or(worker)
    };
    let holders = |owner: WorkerId| {
        let other = neighbours.get(&owner).copied().unwrap_or_else(|| next(owner));
        PartHolders { owner, other, sends: !has_same_state(plan, owner, other) }
    };
    let owners = state_senders(plan, stage, true).into_iter();
    (PartNumbers::of(plan, stage).first..).zip(owners.map(holders)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replicas::{Sharding, WorkerGroups};
    use crate::{Cuts, Placement};
    use layerspec::LayerGraph;

    /// A plan of stages with these numbers of replicas.
    fn plan(columns: &[u16]) -> Plan {
        let layer = "  - Linear: {in_features: 4, out_features: 4}\n".repeat(columns.len());
        let text = format!("inputs: {{x: [batch, 4]}}\nlayers:\n{layer}");
        let graph = LayerGraph::from_yaml(&text, "model.yaml").expect("a good model");
        let groups = WorkerGroups::of(columns);
        Plan::new(&graph, &Cuts::Auto, groups, Placement::Plain).expect("a good cut")
    }

    fn numbers(plan: &Plan, stage: Option<u16>) -> (u32, u32) {
        let PartNumbers { first, total } = PartNumbers::of(plan, stage.map(StageId));
        (first, total)
    }

    fn held(plan: &Plan, stage: Option<u16>, neighbours: &[(u16, u16)]) -> Vec<(u32, u16, u16)> {
        let neighbours = neighbours.iter().map(|(of, is)| (WorkerId(*of), WorkerId(*is))).collect();
        let parts = holders_of_parts(plan, stage.map(StageId), &neighbours).into_iter();
        parts.map(|(part, holders)| (part, holders.owner.0, holders.other.0)).collect()
    }

    #[test]
    fn one_request_numbers_the_first_replicas() {
        let plan = plan(&[2, 1]);
        assert_eq!(numbers(&plan, None), (0, 2));
        // Worker 2 is the other replica of worker 0, and makes no part of its own.
        assert_eq!(held(&plan, None, &[(0, 2), (1, 0)]), [(0, 0, 2), (1, 1, 0)]);
    }

    #[test]
    fn requests_of_single_stages_continue_each_others_numbers() {
        let sharded = Plan { sharding: Some(Sharding::Optimizer), ..plan(&[2, 2]) };
        let [all, first, second] = [None, Some(0), Some(1)].map(|stage| numbers(&sharded, stage));
        assert_eq!([all, first, second], [(0, 4), (0, 4), (2, 4)]);
        let parts = |stage| held(&sharded, Some(stage), &[]).into_iter().map(|(part, ..)| part);
        assert_eq!(parts(0).chain(parts(1)).collect::<Vec<_>>(), [0, 1, 2, 3]);
    }

    #[test]
    fn a_worker_without_a_neighbour_has_the_next_one() {
        let row = plan(&[1, 1, 1]);
        assert_eq!(held(&row, None, &[]), [(0, 0, 1), (1, 1, 2), (2, 2, 0)]);
        assert_eq!(held(&row, None, &[(0, 2)]), [(0, 0, 2), (1, 1, 2), (2, 2, 0)]);
        // A worker that is alone has no neighbour but itself.
        assert_eq!(held(&plan(&[1]), None, &[]), [(0, 0, 0)]);
    }

    #[test]
    fn a_replica_makes_its_copy_itself() {
        let [a, b] = [0, 1].map(WorkerId);
        let make = |sends, worker| PartHolders { owner: a, other: b, sends }.make(3, worker);
        let sent = Some(PartToMake { part: 3, of: a, to: Some(b) });
        assert_eq!([a, b].map(|worker| make(true, worker)), [sent, None]);
        let copied = Some(PartToMake { part: 3, of: a, to: None });
        assert_eq!([a, b, WorkerId(2)].map(|worker| make(false, worker)), [copied, copied, None]);
    }
}
