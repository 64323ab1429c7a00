//! The graph of a file: layers, values, names, ties, and the users of values.

use crate::support::{example, model, refused};
use layerspec::{Layer, LayerGraph, LayerId, Producer, Recompute, Use};

fn names(graph: &LayerGraph) -> Vec<&str> {
    graph.layers().iter().map(|layer| layer.name.as_str()).collect()
}

/// Each layer's inputs, as the names of the values.
fn wiring(graph: &LayerGraph) -> Vec<String> {
    let input = |layer: &Layer| -> Vec<String> {
        layer.inputs.iter().map(|id| graph.value(*id).name.clone()).collect()
    };
    graph
        .layers()
        .iter()
        .map(|layer| format!("{}({})", layer.name, input(layer).join(", ")))
        .collect()
}

#[test]
fn positions_are_names_as_in_sequential() {
    let graph = example("residual");
    assert_eq!(names(&graph), ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10"]);
    assert_eq!(graph.layer_by_name("6"), Some(LayerId(6)));
    assert_eq!(graph.layer_by_name("11"), None);
    assert_eq!(graph.batch(), Some("batch"));
    assert_eq!(graph.param_count(), 789_505);
}

#[test]
fn values_know_their_maker_and_users() {
    let graph = example("residual");
    let res = graph.values().iter().find(|value| value.name == "res_1").unwrap();
    assert_eq!(res.producer, Producer::Layer { layer: LayerId(2), port: 0 });
    let users = [Use { layer: LayerId(3), port: 0 }, Use { layer: LayerId(6), port: 1 }];
    assert_eq!(graph.users(res.id), users);
    assert!(graph.users(graph.outputs()[0]).is_empty());
    assert_eq!(graph.value(graph.inputs()[0]).producer, Producer::Input(0));
}

#[test]
fn merges_become_layers() {
    let graph = example("branchy");
    let wiring = wiring(&graph);
    assert!(wiring.contains(&"join.merge(gate, left, right)".to_owned()), "{wiring:?}");
    assert!(wiring.contains(&"join(join.merge)".to_owned()), "{wiring:?}");
    assert!(wiring.contains(&"right(stem)".to_owned()), "{wiring:?}");
    assert_eq!(graph.outputs().len(), 1);
    assert_eq!(graph.value(graph.outputs()[0]).name, "out");
}

#[test]
fn each_repetition_has_its_own_variables() {
    let graph = example("skip");
    let wiring = wiring(&graph);
    for block in 0..3 {
        assert!(wiring.contains(&format!("blocks.{block}.3(blocks.{block}.2, res)")), "{wiring:?}");
        let add = graph.layer(graph.layer_by_name(&format!("blocks.{block}.3")).unwrap());
        let inner = graph.layer(graph.layer_by_name(&format!("blocks.{block}.inner")).unwrap());
        assert_eq!(add.inputs[1], inner.outputs[0], "block {block} uses its own");
    }
}

#[test]
fn names_of_layers_and_blocks_take_numbers() {
    let graph = model(
        "vars: {width: 8, more: '${width // 3}'}
inputs: {x: [batch, 2]}
layers:
  - name: stage_${more}
    layers:
      - Linear: {in_features: 2, out_features: '${width}'}
        name: to_${width}
",
    );
    assert_eq!(graph.layers()[0].name, "stage_2.to_8");
}

#[test]
fn inner_variables_hide_outer_ones() {
    let graph = model(
        "inputs: {x: [batch, 2]}
layers:
  - ReLU:
    name: outer
    out_variables: v
  - name: blocks
    repeat: 2
    layers:
      - Add:                  # `v` is not defined here yet: the outer one
        name: first
        in_variables: v
      - Tanh:
        name: inner
        out_variables: v
      - Add:                  # the inner one
        name: second
        in_variables: v
  - Add:                      # the outer one again
    name: last
    in_variables: v
",
    );
    let input = |layer: &str| graph.layer(graph.layer_by_name(layer).unwrap()).inputs[1];
    let producer = |layer: &str| graph.layer(graph.layer_by_name(layer).unwrap()).outputs[0];
    for block in 0..2 {
        assert_eq!(input(&format!("blocks.{block}.first")), producer("outer"));
        assert_eq!(
            input(&format!("blocks.{block}.second")),
            producer(&format!("blocks.{block}.inner"))
        );
    }
    assert_eq!(input("last"), producer("outer"));
}

#[test]
fn blocks_without_repeat_only_name() {
    let graph = model(
        "inputs: {x: [batch, 2]}
layers:
  - name: encoder
    freeze: true
    layers:
      - Linear: {in_features: 2, out_features: 2}
        out_variables: seen
      - layers: [ReLU]
  - repeat: 1
    layers: [Tanh]
  - Add:
    in_variables: seen
",
    );
    assert_eq!(names(&graph), ["encoder.0", "encoder.1.0", "1.0.0", "2"]);
    assert!(graph.layers()[0].frozen && !graph.layers()[3].frozen);
    let table = graph.summary(&layerspec::Bindings::new());
    assert!(table.contains("parameters       0 trained, 6 frozen"), "{table}");
    assert!(!table.contains(" ("), "a few bytes are told once: {table}");
}

#[test]
fn blocks_say_what_their_layers_recompute() {
    let graph = model(
        "inputs: {x: [batch, 2], y: [batch, 2]}
layers:
  - ReLU
  - name: encoder
    repeat: 1
    recompute: selective
    layers:
      - ReLU
      - ReLU:
        recompute: none
        merge: add
        in_variables: y
      - recompute: full
        layers: [ReLU]
  - Tanh:
    recompute: full
",
    );
    let recompute: Vec<_> =
        graph.layers().iter().map(|layer| (layer.name.as_str(), layer.recompute)).collect();
    let expected = [
        ("0", None),
        ("encoder.0.0", Some(Recompute::Selective)),
        ("encoder.0.1.merge", Some(Recompute::None)),
        ("encoder.0.1", Some(Recompute::None)),
        ("encoder.0.2.0", Some(Recompute::Full)),
        ("2", Some(Recompute::Full)),
    ];
    assert_eq!(recompute, expected);
}

#[test]
fn shared_parameters_count_once() {
    let graph = example("tied");
    let (embed, head) =
        (graph.layer_by_name("embed").unwrap(), graph.layer_by_name("head").unwrap());
    assert_eq!(graph.layer(head).share, Some(embed));
    assert_eq!(graph.shared_params(head), ["weight"]);
    assert!(graph.own_params(head).is_empty());
    assert_eq!(graph.param_count(), 32 * 16 + 2 * 16 + (16 * 64 + 64) + (64 * 16 + 16));
}

#[test]
fn a_shared_layer_keeps_the_rest_of_its_own() {
    let graph = model(
        "inputs: {x: [batch, 2]}
layers:
  - Linear: {in_features: 2, out_features: 2, bias: false}
    name: a
  - Linear: {in_features: 2, out_features: 2}
    name: b
    share: a
",
    );
    let own = graph.own_params(LayerId(1));
    assert_eq!(own.iter().map(|param| param.name).collect::<Vec<_>>(), ["bias"]);
    let chain = "inputs: {x: [batch, 2]}
layers:
  - Linear: {in_features: 2, out_features: 2}
  - Linear: {in_features: 2, out_features: 2}
    share: 0
  - Linear: {in_features: 2, out_features: 2}
    share: 1
";
    assert!(refused(chain).ends_with("`1` itself shares those of `0`; name that one"));
}

#[test]
fn gradients_flow_from_trained_parameters_on() {
    let graph = model(
        "inputs: {x: [batch, 2], ids: {shape: [batch], dtype: int64}}
layers:
  - ReLU:
    name: parameterless
  - Linear: {in_features: 2, out_features: 2}
    name: frozen
    freeze: true
  - Linear: {in_features: 2, out_features: 2}
    name: tied_to_frozen
    freeze: true
    share: frozen
    out_variables: before
  - Embedding: {num_embeddings: 4, embedding_dim: 2}
    name: trained
    input: ids
  - Linear: {in_features: 2, out_features: 2}
    name: frozen_after
    freeze: true
  - Add:
    name: join
    in_variables: before
",
    );
    let grad = |layer: &str| {
        let layer = graph.layer(graph.layer_by_name(layer).unwrap());
        graph.requires_grad(layer.outputs[0])
    };
    for layer in ["parameterless", "frozen", "tied_to_frozen"] {
        assert!(!grad(layer), "{layer}");
    }
    for layer in ["trained", "frozen_after", "join"] {
        assert!(grad(layer), "{layer}");
    }
    assert!(graph.inputs().iter().all(|input| !graph.requires_grad(*input)));
}

#[test]
fn inputs_and_outputs_may_be_several() {
    let graph = model(
        "inputs: {a: [batch, 2], b: [batch, 3]}
layers:
  - Linear: {in_features: 3, out_features: 4}
    input: b
    out_variables: left
  - Linear: {in_features: 2, out_features: 4}
    input: a
    out_variables: right
outputs: [right, left]
",
    );
    assert_eq!(graph.inputs().len(), 2);
    let outputs: Vec<&str> =
        graph.outputs().iter().map(|id| graph.value(*id).name.as_str()).collect();
    assert_eq!(outputs, ["right", "left"]);
    assert!(graph.warnings().is_empty(), "{:?}", graph.warnings());
}

#[test]
fn warnings_name_what_is_for_nothing() {
    let graph = model(
        "inputs: {x: [batch, 2], y: [batch, 2]}
layers:
  - repeat: 3
    layers:
      - ReLU:
        out_variables: unused
  - Tanh
  - Sigmoid:
    input: x
",
    );
    let warnings: Vec<String> = graph.warnings().iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        [
            "model.yaml:1:25: `y` is never used",
            "model.yaml:5:9: layer 0.0.0 (ReLU): no output of the model depends on it",
            "model.yaml:6:24: `unused` is never used",
            "model.yaml:7:5: layer 1 (Tanh): no output of the model depends on it",
        ]
    );
}

#[test]
fn attention_across_samples_is_warned_of() {
    let warnings = |input: &str, argument: &str| {
        let layer = format!("TransformerEncoderLayer: {{d_model: 4, nhead: 2{argument}}}");
        let graph = model(&format!("inputs: {{x: {input}}}\nlayers:\n  - {layer}\n"));
        graph.warnings().iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let expected = "model.yaml:3:5: layer 0 (TransformerEncoderLayer): it goes from \
                    sample to sample of the batch; `batch_first: true` keeps to each sample";
    assert_eq!(warnings("[batch, seq, 4]", ""), [expected]);
    assert!(warnings("[batch, seq, 4]", ", batch_first: true").is_empty());
    assert!(warnings("[7, batch, 4]", "").is_empty());
}

/// A worker sees one microbatch, and prediction a batch of another size.
#[test]
fn a_layer_that_works_across_samples_has_a_warning() {
    let warnings = |layers: &str| -> Vec<String> {
        let yaml = format!("inputs: {{x: [batch, 4]}}\nlayers:\n{layers}");
        let graph = LayerGraph::from_yaml(&yaml, "model.yaml").expect("it is valid");
        graph.warnings().iter().map(ToString::to_string).collect()
    };
    for layer in [
        "Softmax: {dim: 0}",
        "Softmax: {dim: -2}",
        "LogSoftmax: {dim: 0}",
        "Softmin: {dim: 0}",
        "Mean: {dim: 0, keepdim: true}",
        "Sum: {dim: [1, 0], keepdim: true}",
        "Roll: {shifts: 1, dims: 0}",
        "Flip: {dims: [0]}",
        "Slice: {dim: 0, end: -1}",
    ] {
        let found = warnings(&format!("  - {layer}\n"));
        let [line] = &found[..] else { panic!("{layer}: {found:?}") };
        assert!(line.starts_with("model.yaml:3:") && line.contains("`microbatches`"), "{line}");
        let along = layer.replace("dim: 0", "dim: 1").replace("dims: 0", "dims: 1");
        let along = along.replace("[1, 0]", "[1]").replace("[0]", "[1]").replace("-2", "-1");
        assert!(warnings(&format!("  - {along}\n")).is_empty(), "{along}");
    }
    // The samples are elsewhere by then.
    let turned = "  - Transpose: {dim0: 0, dim1: 1}\n  - Softmax: {dim: 0}\n";
    assert!(warnings(turned).is_empty());
    let turned = "  - Transpose: {dim0: 0, dim1: 1}\n  - Softmax: {dim: 1}\n";
    assert_eq!(warnings(turned).len(), 1);
}
