//! The neighbour of each worker, which stores a copy of its part.

use crate::ids::WorkerId;
use crate::plan::Plan;
use std::collections::BTreeMap;

/// The path of a part to the neighbour that stores it, the best path first.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum CopyRoute {
    /// A replica has the same state, and copies it itself.
    None,
    /// The two exchange tensors anyway.
    Link,
    Boss,
}

/// A worker and its machine.
#[derive(Copy, Clone)]
struct Located<'a> {
    worker: WorkerId,
    host: &'a str,
}

/// The neighbour that stores the copy of each worker. Prefers another machine, because machines
/// fail as a whole; then the best path; then the neighbour that stores the least. `host` names the
/// machine of a worker.
pub fn neighbours<'a>(
    plan: &Plan,
    host: impl Fn(WorkerId) -> &'a str,
) -> BTreeMap<WorkerId, WorkerId> {
    let members = plan.stage_placement.members().into_iter();
    let members: Vec<_> = members.map(|worker| Located { worker, host: host(worker) }).collect();
    let route = |worker, other| {
        if has_same_state(plan, worker, other) {
            CopyRoute::None
        } else if plan.peers_of(worker).contains(&other) {
            CopyRoute::Link
        } else {
            CopyRoute::Boss
        }
    };
    choose(&members, route)
}

fn choose(
    members: &[Located<'_>],
    route: impl Fn(WorkerId, WorkerId) -> CopyRoute,
) -> BTreeMap<WorkerId, WorkerId> {
    let mut stores: BTreeMap<WorkerId, usize> = BTreeMap::new();
    let mut neighbours = BTreeMap::new();
    for (place, Located { worker, host }) in members.iter().enumerate() {
        let others =
            (1..members.len()).map(|after| (after, &members[(place + after) % members.len()]));
        let best = others.min_by_key(|(after, other)| {
            let stored = stores.get(&other.worker).copied().unwrap_or(0);
            (other.host == *host, route(*worker, other.worker), stored, *after)
        });
        if let Some((_, other)) = best {
            *stores.entry(other.worker).or_default() += 1;
            neighbours.insert(*worker, other.worker);
        }
    }
    neighbours
}

/// Whether another worker is a replica of exactly the stages that this worker reports for, so that
/// both have the same state.
pub(super) fn has_same_state(plan: &Plan, speaker: WorkerId, other: WorkerId) -> bool {
    let both =
        |workers: &[WorkerId]| (workers.first() == Some(&speaker)) == workers.contains(&other);
    // Replicas that shard the optimizer state have different parts of it.
    speaker != other
        && plan.sharding.is_none()
        && plan.stage_placement.iter().all(|(_, workers)| both(workers))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::StageId;
    use crate::replicas::{Sharding, WorkerGroups};
    use crate::{Cuts, Placement};
    use layerspec::LayerGraph;

    fn of(hosts: &[&str], route: impl Fn(u16, u16) -> CopyRoute) -> Vec<u16> {
        let located = (0..).zip(hosts);
        let members: Vec<Located<'_>> =
            located.map(|(worker, host)| Located { worker: WorkerId(worker), host }).collect();
        let found = choose(&members, |a, b| route(a.0, b.0));
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

    /// Two stages with two replicas each, on one machine.
    #[test]
    fn a_replica_is_the_best_neighbour_unless_the_optimizer_state_is_sharded() {
        let layer = "  - Linear: {in_features: 4, out_features: 4}\n";
        let text = format!("inputs: {{x: [batch, 4]}}\nlayers:\n{layer}{layer}");
        let graph = LayerGraph::from_yaml(&text, "model.yaml").expect("a good model");
        let groups = WorkerGroups::of(&[2, 2]);
        let plan = Plan::new(&graph, &Cuts::Auto, groups, Placement::Plain).expect("a good cut");
        let replicas = |stage| plan.stage_placement.of(StageId(stage)).to_vec();
        let found = neighbours(&plan, |_| "a");
        for stage in 0..2 {
            let [first, second] = replicas(stage)[..] else { panic!("two replicas") };
            assert_eq!(found.get(&first), Some(&second));
            assert!(has_same_state(&plan, first, second));
            let sharded = Plan { sharding: Some(Sharding::Optimizer), ..plan.clone() };
            assert!(!has_same_state(&sharded, first, second));
        }
    }
}
