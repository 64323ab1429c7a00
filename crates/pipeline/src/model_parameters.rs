//! The parameters and buffers of a model, by their names in its whole state.

use crate::ids::StageId;
use crate::plan::Plan;
use crate::StateName;
use layerspec::{LayerGraph, LayerId};
use std::collections::BTreeMap;

/// The layer of a parameter or buffer, and its name there.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
struct Place {
    layer: LayerId,
    parameter: &'static str,
}

/// Every parameter and buffer of a model. A tied one counts for its owner alone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ModelParameters(BTreeMap<String, Place>);

impl ModelParameters {
    /// Those of a model.
    pub fn of(graph: &LayerGraph) -> Self {
        let mut places = BTreeMap::new();
        for layer in graph.layers() {
            for param in graph.own_params(layer.id) {
                let place = Place { layer: layer.id, parameter: param.name };
                places.insert(format!("{}.{}", layer.name, param.name), place);
            }
        }
        ModelParameters(places)
    }

    /// Their names, ascending.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// The stages that receive a tensor of the state when it is loaded. `None` if the model does
    /// not have its parameter.
    pub fn receivers(&self, plan: &Plan, name: StateName<'_>) -> Option<Vec<StageId>> {
        let Place { layer, parameter } = *self.0.get(name.parameter())?;
        Some(name.receivers(&plan.holders(layer, parameter)).to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replicas::WorkerGroups;
    use crate::{Cuts, Placement};

    #[test]
    fn a_tied_parameter_goes_to_all_its_stages_and_its_optimizer_state_to_the_owner() {
        let text = "
inputs: {x: [batch, 4]}
layers:
  - Linear: {in_features: 4, out_features: 4}
    name: first
  - Linear: {in_features: 4, out_features: 4}
    share: first
    name: second
";
        let graph = LayerGraph::from_yaml(text, "model.yaml").expect("a good model");
        let groups = WorkerGroups::from(2);
        let plan = Plan::new(&graph, &Cuts::Auto, groups, Placement::Plain).expect("a good cut");
        let parameters = ModelParameters::of(&graph);
        assert_eq!(parameters.names().collect::<Vec<_>>(), ["first.bias", "first.weight"]);
        let receivers = |name| parameters.receivers(&plan, StateName::parse(name));
        let stages = |stages: &[u16]| Some(stages.iter().copied().map(StageId).collect::<Vec<_>>());
        assert_eq!(receivers("first.weight"), stages(&[0, 1]));
        assert_eq!(receivers("optimizer/first.weight.exp_avg[4]"), stages(&[0]));
        assert_eq!(receivers("second.weight"), None);
    }
}
