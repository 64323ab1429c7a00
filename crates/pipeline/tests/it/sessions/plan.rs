//! Plans: the inputs and outputs of each stage, the order in which gradients are summed, and
//! refused cuts.

use layerspec::{LayerGraph, ValueId};
use pipeline::ids::{StageId, WorkerId};
use pipeline::plan::{StageInput, StageSpec};
use pipeline::replicas::{buckets, BucketBytes, StagePlacement, WorkerGroups};
use pipeline::{Cuts, Placement, Plan, ScheduleKind};
use std::path::Path;
use testkit::assert_golden;

/// `res` is used by the layers 2 and 4, and twice by 5.
const MODEL: &str = "
inputs: {x: [batch, 4], scale: [batch, 4]}
layers:
  - Linear: {in_features: 4, out_features: 4}
  - Linear: {in_features: 4, out_features: 4}
    out_variables: [res]
  - Linear: {in_features: 4, out_features: 4}
    out_variables: [mid]
  - Mul: {}
    in_variables: [scale]
  - Add: {}
    in_variables: [res, mid]
  - Add: {}
    in_variables: [res, res]
  - Linear: {in_features: 4, out_features: 1}
    out_variables: [y]
";

fn graph(text: &str) -> LayerGraph {
    LayerGraph::from_yaml(text, "model.yaml").expect("a good model")
}

fn plan(graph: &LayerGraph, cuts: &[&str]) -> Plan {
    let names = cuts.iter().map(|name| name.to_string()).collect();
    Plan::new(graph, &Cuts::At(names), cuts.len() + 1, Placement::Plain).expect("a good cut")
}

fn value(graph: &LayerGraph, name: &str) -> ValueId {
    graph.values().iter().find(|v| v.name == name).expect("a variable of the model").id
}

fn input(spec: &StageSpec, value: ValueId) -> StageInput {
    *spec.inputs.iter().find(|i| i.value == value).expect("an input of the stage")
}

#[test]
fn a_variable_goes_from_its_maker_to_each_stage_that_uses_it() {
    let graph = graph(MODEL);
    let plan = plan(&graph, &["2", "4", "5"]);
    let stages = |pairs: &[(u16, u16)]| {
        pairs.iter().map(|(a, b)| (StageId(*a), StageId(*b))).collect::<Vec<_>>()
    };
    assert_eq!(plan.edges, stages(&[(0, 1), (0, 2), (0, 3), (1, 2), (2, 3)]));
    assert_eq!(plan.stage_placement, StagePlacement::single([0, 1, 2, 3].map(WorkerId)));
    let peers: Vec<u16> = plan.peers_of(WorkerId(0)).into_iter().map(|w| w.0).collect();
    assert_eq!(peers, [1, 2, 3]);
    let peers: Vec<u16> = plan.peers_of(WorkerId(1)).into_iter().map(|w| w.0).collect();
    assert_eq!(peers, [0, 2], "stage 1 exchanges nothing with stage 3");

    let res = value(&graph, "res");
    let output =
        plan.stages[0].outputs.iter().find(|o| o.value == res).expect("it leaves its stage");
    assert_eq!(output.to, [3, 2, 1].map(StageId), "the order in which gradients are summed");
    // An input of the model comes from the boss and needs no gradient.
    let scale = input(&plan.stages[1], value(&graph, "scale"));
    assert_eq!((scale.from, scale.needs_grad), (None, false));
    assert!(
        plan.stages[0].inputs.iter().all(|i| i.value == value(&graph, "x")),
        "stage 0 does not use `scale`"
    );
}

#[test]
fn stages_hold_every_layer_once_in_order() {
    let graph = graph(MODEL);
    for cuts in [vec![], vec!["1"], vec!["6"], vec!["1", "2", "3", "4", "5", "6"]] {
        let plan = plan(&graph, &cuts);
        let layers: Vec<_> =
            plan.stages.iter().flat_map(|s| s.layers.iter().map(|l| l.id)).collect();
        assert_eq!(layers, graph.layers().iter().map(|l| l.id).collect::<Vec<_>>());
        assert_eq!(plan.stages.len(), cuts.len() + 1);
        for (index, cut) in cuts.iter().enumerate() {
            assert_eq!(plan.stages[index + 1].layers[0].name, *cut);
            let layer = plan.stages[index + 1].layers[0].id;
            assert_eq!(plan.home_of_layer(layer), Some(WorkerId(index as u16 + 1)));
        }
    }
}

#[test]
fn gradients_are_summed_before_they_are_sent_where_that_keeps_the_order() {
    let model = graph(MODEL);
    let res = value(&model, "res");
    let cut = plan(&model, &["2", "5"]);
    assert!(input(&cut.stages[2], res).sum_here, "the last stage that uses it begins the sum");
    assert!(
        !input(&cut.stages[1], res).sum_here,
        "its two terms follow those of stage 2, one by one"
    );
    let cut = plan(&model, &["2", "4", "5"]);
    assert!(input(&cut.stages[1], res).sum_here, "a single term is its own sum");

    // The boss's gradient of an output comes first, so nothing may be summed before it.
    let output = graph(&format!("{MODEL}outputs: [y, res]\n"));
    let cut = plan(&output, &["2", "5"]);
    assert!(!input(&cut.stages[2], value(&output, "res")).sum_here, "the boss begins the sum");
}

#[test]
fn a_cut_that_cannot_be_is_refused() {
    let model = graph(MODEL);
    let long = format!("inputs: {{x: [batch, 1]}}\nlayers:\n{}", "  - ReLU\n".repeat(20));
    let long = graph(&long);
    let at = |names: &[&str]| Cuts::At(names.iter().map(|n| n.to_string()).collect());
    let cases = [
        ("a name that no layer has", &model, at(&["4", "head"]), 3),
        ("a name that none of many layers has", &long, at(&["head"]), 2),
        ("the first layer", &model, at(&["0"]), 2),
        ("layers in the wrong order", &model, at(&["4", "2"]), 3),
        ("a layer twice", &model, at(&["4", "4"]), 3),
        ("more stages than workers", &model, at(&["2", "4"]), 2),
        ("fewer stages than workers", &model, at(&[]), 2),
        ("more workers than layers", &model, Cuts::Auto, 9),
        ("no worker", &model, Cuts::Auto, 0),
    ];
    let mut text = String::new();
    let cases =
        cases.map(|(what, graph, cuts, workers)| (what, graph, cuts, workers, Placement::Plain));
    let turns = Placement::Interleaved { chunks: 2 };
    let more = [
        ("too few cuts for two stages a worker", &model, at(&["2", "4"]), 2, Placement::V),
        ("too few layers for two stages a worker", &model, Cuts::Auto, 4, turns),
    ];
    for (what, graph, cuts, workers, placement) in cases.into_iter().chain(more) {
        let error = Plan::new(graph, &cuts, workers, placement).expect_err(what);
        text += &format!("{what}\n  {error}\n");
    }
    assert_golden!("plan-errors.txt", &text);
}

#[test]
fn a_stage_with_more_replicas_gets_more_layers() {
    let layer = "{Linear: {in_features: 64, out_features: 64}}";
    let text = format!("inputs: {{x: [batch, 64]}}\nlayers: [{}]\n", [layer; 6].join(", "));
    let graph = graph(&text);
    for (replicas, layers) in [
        (&[1, 1][..], &[3, 3][..]),
        (&[2, 2], &[3, 3]),
        (&[1, 2], &[2, 4]),
        (&[2, 1], &[4, 2]),
        (&[1, 4, 1], &[1, 4, 1]),
    ] {
        let plan = Plan::new(&graph, &Cuts::Auto, WorkerGroups::of(replicas), Placement::Plain);
        let stages = plan.expect("a good cut").stages;
        let found: Vec<usize> = stages.iter().map(|stage| stage.layers.len()).collect();
        assert_eq!(found, layers, "{replicas:?}");
    }
}

#[test]
fn every_example_is_cut_evenly() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/models");
    let files =
        std::fs::read_dir(folder).expect("the examples").map(|entry| entry.expect("a file").path());
    let mut files: Vec<_> =
        files.filter(|path| path.extension().is_some_and(|e| e == "yaml")).collect();
    files.sort();
    assert!(!files.is_empty());
    for file in files {
        let graph = LayerGraph::from_file(&file).unwrap_or_else(|error| panic!("{error}"));
        let mut bindings = layerspec::Bindings::new();
        graph.symbols().iter().for_each(|word| bindings.set(word, 8));
        let flops =
            |layer: &layerspec::Layer| graph.cost(layer.id, &bindings).expect("a cost").flops + 1;
        let all: u64 = graph.layers().iter().map(flops).sum();
        let largest = graph.layers().iter().map(flops).max().expect("a layer");
        for workers in 2..=4 {
            let Ok(plan) = Plan::new(&graph, &Cuts::Auto, workers, Placement::Plain) else {
                continue;
            };
            assert_eq!(plan.stages.len(), workers);
            let heaviest =
                plan.stages.iter().map(|s| s.layers.iter().map(flops).sum::<u64>()).max();
            // A stage is at most a layer heavier than an equal share.
            let most = all / workers as u64 + largest;
            assert!(
                heaviest <= Some(most),
                "{}: {heaviest:?} of {all} in {workers} stages",
                file.display()
            );
            for kind in [
                ScheduleKind::GPipe,
                ScheduleKind::OneFOneB,
                ScheduleKind::ZbH1,
                ScheduleKind::Ready,
            ] {
                plan.schedule(kind, 4).expect("a good schedule");
            }
        }
    }
}

#[test]
fn replicas_exchange_gradients_of_trained_layers_alone() {
    let used = |freeze: bool, bias: bool| -> Vec<(usize, usize, u64)> {
        let text = format!(
            "inputs: {{x: {{shape: [batch], dtype: int64}}}}\nlayers:\n  - Embedding: \
             {{num_embeddings: 5, embedding_dim: 2}}\n    name: embed\n    freeze: {freeze}\n  - \
             Linear: {{in_features: 2, out_features: 5, bias: {bias}}}\n    share: embed\n"
        );
        let graph = graph(&text);
        let groups = WorkerGroups::of(&[2]);
        let plan = Plan::new(&graph, &Cuts::Auto, groups, Placement::Plain).expect("a plan");
        let buckets = buckets(&plan.stages[0], BucketBytes::default(), None);
        let uses = buckets.iter().flat_map(|bucket| &bucket.uses);
        uses.map(|used| (used.layer, used.number, used.elements)).collect()
    };
    let (table, head, bias) = ((0, 0, 10), (1, 0, 10), (1, 1, 5));
    assert_eq!(used(false, false), [head, table]);
    // What the layer does not share with a frozen one is its own.
    assert_eq!(used(true, true), [bias]);
    assert_eq!(used(false, true), [head, bias, table]);
}
