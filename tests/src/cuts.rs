//! Lists every way to cut a model.

use bossman::Model;
use layerspec::LayerGraph;
use pipeline::{Cuts, Placement, Plan, ScheduleKind};

/// Returns every cut into `stages` stages, as the names of the layers that start the stages after
/// the first.
pub fn into_stages(graph: &LayerGraph, stages: usize) -> Vec<Vec<String>> {
    let names: Vec<&str> = graph.layers().iter().skip(1).map(|layer| layer.name.as_str()).collect();
    let mut cuts: Vec<Vec<usize>> = vec![Vec::new()];
    for _ in 1..stages {
        let longer = cuts.iter().flat_map(|cut| {
            let from = cut.last().map_or(0, |last| last + 1);
            (from..names.len()).map(|next| [cut.as_slice(), &[next]].concat())
        });
        cuts = longer.collect();
    }
    cuts.into_iter().map(|cut| cut.into_iter().map(|i| names[i].to_string()).collect()).collect()
}

/// Returns the plans for a list of layers that start stages: one for each way to place the stages
/// on workers.
pub fn plans(model: &Model, starts: &[String]) -> Vec<(Placement, Plan)> {
    let stages = starts.len() + 1;
    let placements = [Placement::Plain, Placement::Interleaved { chunks: 2 }, Placement::V];
    let fitting =
        placements.into_iter().filter(|placement| stages.is_multiple_of(placement.chunks()));
    let plan = |placement: Placement| {
        let workers = stages / placement.chunks();
        Plan::new(model.graph(), &Cuts::At(starts.to_vec()), workers, placement).unwrap()
    };
    fitting.map(|placement| (placement, plan(placement))).collect()
}

/// Returns the kinds of schedule that stages with this placement can run.
pub fn kinds(placement: Placement) -> &'static [ScheduleKind] {
    use ScheduleKind::{GPipe, Interleaved, OneFOneB, Ready, ZbH1, ZbV};
    match placement {
        Placement::Plain => &[GPipe, OneFOneB, ZbH1, Ready],
        Placement::Interleaved { .. } => &[Interleaved, Ready],
        Placement::V => &[ZbV, Ready],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_as_many_cuts_as_choices_of_places() {
        let text = "{model: m, inputs: {x: [batch, 2]}, layers: [ReLU, Tanh, ReLU, Tanh]}";
        let graph = LayerGraph::from_yaml(text, "m").unwrap();
        assert_eq!(into_stages(&graph, 1), [Vec::<String>::new()]);
        assert_eq!(into_stages(&graph, 2), [["1"], ["2"], ["3"]]);
        assert_eq!(into_stages(&graph, 3), [["1", "2"], ["1", "3"], ["2", "3"]]);
        assert!(into_stages(&graph, 5).is_empty());
    }
}
