//! The way of each tensor of a complete snapshot from a worker that stores it to the stages that
//! need it.

use super::{CompleteSnapshot, StoredTensor};
use crate::model_parameters::ModelParameters;
use crate::plan::Plan;
use crate::StateName;
use thiserror::Error;

/// A snapshot has a tensor of a parameter that the model does not have.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("`{0}`: the model has no such parameter")]
pub struct UnknownParameter(pub String);

/// The sender of every tensor to each stage that receives it. A worker that stores what its own
/// stage needs sends it to itself, so that nothing travels.
///
/// # Errors
/// The snapshot is of another model.
pub fn recall(
    plan: &Plan,
    snapshot: &CompleteSnapshot,
    parameters: &ModelParameters,
) -> Result<Vec<StoredTensor>, UnknownParameter> {
    let mut recalled = Vec::new();
    for (text, copies) in snapshot.tensors() {
        let name = StateName::parse(text);
        let unknown = || UnknownParameter(name.parameter().to_string());
        for stage in parameters.receivers(plan, name).ok_or_else(unknown)? {
            let home = plan.home(stage);
            let at_home = copies.iter().find(|copy| Some(copy.holder) == home);
            let Some(copy) = at_home.or(copies.first()) else { continue };
            let (holder, part) = (copy.holder, copy.part);
            recalled.push(StoredTensor { holder, part, name: text.to_string(), stage });
        }
    }
    Ok(recalled)
}

#[cfg(test)]
mod tests {
    use super::super::{PeerSnapshot, SnapshotId, SnapshotNote};
    use super::*;
    use crate::ids::WorkerId;
    use crate::replicas::WorkerGroups;
    use crate::{Cuts, Placement};
    use layerspec::LayerGraph;
    use std::collections::BTreeMap;

    const MODEL: &str = "
inputs: {x: [batch, 4]}
layers:
  - Linear: {in_features: 4, out_features: 4, bias: false}
    name: a
  - Linear: {in_features: 4, out_features: 4, bias: false}
    name: b
  - Linear: {in_features: 4, out_features: 4, bias: false}
    share: a
";

    fn graph() -> LayerGraph {
        LayerGraph::from_yaml(MODEL, "model.yaml").expect("a good model")
    }

    fn plan(graph: &LayerGraph, workers: usize) -> Plan {
        let groups = WorkerGroups::from(workers);
        Plan::new(graph, &Cuts::Auto, groups, Placement::Plain).expect("a good cut")
    }

    /// The snapshot of workers that store these parts, each with its tensors.
    fn snapshot(stored: &[(u16, u32, &[&str])]) -> CompleteSnapshot {
        let id = SnapshotId { run: 1, step: 2, membership: 3 };
        let parts = 1 + stored.iter().map(|(_, part, _)| *part).max().expect("a part");
        let report = |(worker, part, names): &(u16, u32, &[&str])| {
            let names = names.iter().map(|name| name.to_string()).collect();
            let note = SnapshotNote { parts, text: String::new() };
            let parts = BTreeMap::from([(*part, names)]);
            (WorkerId(*worker), PeerSnapshot { snapshot: id, note, parts })
        };
        let complete = CompleteSnapshot::all(1, stored.iter().map(report)).into_iter().next();
        complete.expect("a complete snapshot")
    }

    /// The holder and the part of each tensor, and the stage that it goes to.
    fn recalled(plan: &Plan, graph: &LayerGraph, from: &CompleteSnapshot) -> Vec<String> {
        let tensors = recall(plan, from, &ModelParameters::of(graph)).expect("a fitting snapshot");
        let text = |StoredTensor { holder, part, name, stage }: StoredTensor| {
            format!("{name}: part {part} of {holder} to {stage}")
        };
        tensors.into_iter().map(text).collect()
    }

    /// Both workers of a row have both parts, so each keeps what it has.
    #[test]
    fn a_tensor_that_is_at_home_does_not_travel() {
        let graph = graph();
        let plan = plan(&graph, 3);
        let parts: [&[&str]; 2] = [&["a.weight", "optimizer/a.weight.step"], &["b.weight"]];
        let whole =
            snapshot(&[(0, 0, parts[0]), (0, 1, parts[1]), (1, 0, parts[0]), (1, 1, parts[1])]);
        // The last stage has a copy of the first stage's parameter, without its optimizer state.
        let expected = [
            "a.weight: part 0 of worker 0 to stage 0",
            "a.weight: part 0 of worker 0 to stage 2",
            "b.weight: part 1 of worker 1 to stage 1",
            "optimizer/a.weight.step: part 0 of worker 0 to stage 0",
        ];
        assert_eq!(recalled(&plan, &graph, &whole), expected);
    }

    /// The other worker was lost, and the run goes on with fewer.
    #[test]
    fn the_neighbour_sends_the_part_of_a_lost_worker() {
        let graph = graph();
        let left = snapshot(&[(1, 0, &["a.weight"]), (1, 1, &["b.weight"])]);
        let expected = |second: u16| {
            [
                "a.weight: part 0 of worker 1 to stage 0".to_string(),
                format!("b.weight: part 1 of worker 1 to stage {second}"),
            ]
        };
        assert_eq!(recalled(&plan(&graph, 1), &graph, &left), expected(0));
        let tensors = recalled(&plan(&graph, 3), &graph, &left);
        assert!(expected(1).iter().all(|tensor| tensors.contains(tensor)), "{tensors:?}");
    }

    #[test]
    fn a_tensor_of_another_model_is_named() {
        let graph = graph();
        let strange = snapshot(&[(0, 0, &["optimizer/9.weight.exp_avg[4]"])]);
        let recalled = recall(&plan(&graph, 1), &strange, &ModelParameters::of(&graph));
        let problem = recalled.map_err(|unknown| unknown.to_string());
        assert_eq!(problem, Err("`9.weight`: the model has no such parameter".to_string()));
    }
}
