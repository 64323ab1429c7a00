//! User-defined layers, as far as a model file can be checked without their code.

use layerspec::layers::{Arg, Aten, Custom, ParamName, Size};
use layerspec::{Bindings, Init, LayerGraph, LayerKind};

fn graph(layer: &str) -> Result<LayerGraph, String> {
    let text = format!("vars: {{d: 6}}\ninputs: {{x: [batch, seq, 6]}}\nlayers:\n  - {layer}\n");
    LayerGraph::from_yaml(&text, "m.yaml").map_err(|error| error.to_string())
}

fn custom(layer: &str) -> Custom {
    match graph(layer).unwrap().layers()[0].kind.clone() {
        LayerKind::Custom(custom) => custom,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_the_file_says_is_what_the_layer_has() {
    let text = "Custom: {layer: Mix, args: {heads: 2, eps: 0.5, mode: fast, on: true, at: [1, \
                2]}, params: {a.weight: [4, \"${d}\"], bias: [4], gain: {shape: [], init: \
                {constant: 2}}}, out: [[batch, 4], {shape: [batch], dtype: int64}]}";
    let graph = graph(text).unwrap();
    let layer = &graph.layers()[0];
    let types: Vec<String> =
        layer.outputs.iter().map(|value| graph.value(*value).ty.to_string()).collect();
    assert_eq!(types, ["[batch, 4]", "int64 [batch]"]);
    let bound = 1.0 / 6f64.sqrt();
    let params: Vec<_> = layer
        .kind
        .params()
        .into_iter()
        .map(|param| (param.name, param.shape, param.init))
        .collect();
    assert_eq!(params[0], ("a.weight", vec![4, 6], Init::Uniform { low: -bound, high: bound }));
    assert_eq!(params[1], ("bias", vec![4], Init::Zeros));
    assert_eq!(params[2], ("gain", vec![], Init::Constant { value: 2.0 }));
    assert_eq!(graph.param_count(), 24 + 4 + 1);
    let cost = graph.cost(layer.id, &Bindings::new().with("batch", 10)).unwrap();
    assert_eq!(cost.flops, 2 * 10 * 29 + 10 * 4, "as if its parameters were matrices");

    let args = custom(text).args;
    assert_eq!(
        (args.integer("heads"), args.number("heads"), args.number("eps")),
        (Ok(2), Ok(2.0), Ok(0.5))
    );
    assert_eq!((args.text("mode"), args.flag("on")), (Ok("fast"), Ok(true)));
    assert_eq!(args.get("at"), Some(&Arg::List(vec![Arg::Integer(1), Arg::Integer(2)])));
    assert_eq!(
        args.integer("eps"),
        Err("argument `eps`: expected a whole number, found Number(0.5)".to_owned())
    );
}

#[test]
fn output_symbols_are_located_in_the_inputs() {
    let text = "inputs: {y: [batch, 2], x: [batch, seq]}\nlayers:\n  - Custom: {layer: Mix, out: \
                [seq, 4, batch]}\n    in_variables: [x]\n";
    let graph = LayerGraph::from_yaml(text, "m.yaml").unwrap();
    let LayerKind::Custom(custom) = &graph.layers()[0].kind else { panic!("no own layer") };
    let symbol = |symbol: &str, of| Size::Symbol { symbol: symbol.to_owned(), of: Some(of) };
    assert_eq!(
        custom.out.as_ref().unwrap()[0].shape,
        [symbol("seq", (1, 1)), Size::Number(4), symbol("batch", (0, 0))]
    );
}

#[test]
fn a_layer_that_says_nothing_gives_what_it_takes() {
    let graph = graph("Custom: {layer: Same, flops: 7}").unwrap();
    let layer = &graph.layers()[0];
    assert_eq!(graph.value(layer.outputs[0]).ty.to_string(), "[batch, seq, 6]");
    let bindings = Bindings::new().with("batch", 3).with("seq", 5);
    assert_eq!(graph.cost(layer.id, &bindings).map(|cost| cost.flops), Some(3 * 7));
}

#[test]
fn what_cannot_be_is_refused_where_it_stands() {
    let refused = |layer: &str, expected: &str| {
        let said = graph(layer).map(drop).unwrap_err();
        assert!(said.starts_with("m.yaml:4:") && said.contains(expected), "{layer}: {said}");
    };
    refused("Custom", "missing argument `layer`");
    refused(
        "Custom: {layer: A, out: [batch, length]}",
        "`out`: the symbol `length` is in none of its inputs' shapes",
    );
    refused("Custom: {layer: A, out: []}", "`out`: expected a shape");
    refused(
        "Custom: {layer: A, params: {w: [0]}}",
        "`params`: expected a mapping of names to shapes",
    );
    refused(
        "Custom: {layer: A, params: {w: {shape: [2], init: {uniform: [1, 0]}}}}",
        "`params`: expected",
    );
    refused(
        "Custom: {layer: A, params: {w: {shape: [2], init: {uniform: 1}}}}",
        "`params`: expected",
    );
    refused("Custom: {layer: A, params: {\"a b\": [2]}}", "`params`: expected");
    refused("Custom: {layer: A, args: {deep: {er: 1}}}", "`args`: expected");
    refused("TorchScript: {path: \"\"}", "`path`: expected the name of a file");
    refused(
        "TorchScript: {path: a.pt, params: {w: {shape: [2], init: ones}}}",
        "`params`: expected",
    );
    refused("TorchScript: {path: a.pt, sha256: abc}", "`sha256`: expected 64 hexadecimal digits");
}

#[test]
fn it_travels_as_other_layers_do() {
    let kind = LayerKind::Custom(custom(
        "Custom: {layer: Mix, params: {a.weight: [4, 6]}, out: [batch, 4]}",
    ));
    let text = serde_json::to_string(&kind).unwrap();
    assert_eq!(serde_json::from_str::<LayerKind>(&text).unwrap(), kind);
    let error =
        serde_json::from_str::<LayerKind>(&text.replace("a.weight", "a weight")).unwrap_err();
    assert!(error.to_string().contains("no name for a parameter"), "{error}");
    assert_eq!(ParamName::new("a.weight").map(ParamName::as_str), Some("a.weight"));
}

fn aten(layer: &str) -> Aten {
    match graph(layer).unwrap().layers()[0].kind.clone() {
        LayerKind::Aten(aten) => aten,
        other => panic!("{other:?}"),
    }
}

#[test]
fn sizes_among_the_arguments_of_an_operator_are_located_in_the_inputs() {
    let found = aten(
        "Aten: {op: view, args: {size: [batch, seq, 2, 3], mode: mean, train: training, at: seq}, \
         out: [batch, seq, 2, 3]}",
    );
    let size = |symbol: &str, dim| Arg::Size { symbol: symbol.to_owned(), port: 0, dim };
    let sizes = vec![size("batch", 0), size("seq", 1), Arg::Integer(2), Arg::Integer(3)];
    assert_eq!(found.args.get("size"), Some(&Arg::List(sizes)));
    assert_eq!(found.args.get("at"), Some(&size("seq", 1)));
    assert_eq!(found.args.text("mode"), Ok("mean"));
    assert_eq!(found.args.text("train"), Ok("training"));
    let found = LayerKind::Aten(found);
    let text = serde_json::to_string(&found).unwrap();
    assert_eq!(serde_json::from_str::<LayerKind>(&text).unwrap(), found);
}

#[test]
fn an_operator_gives_what_it_takes_unless_the_file_says_otherwise() {
    let graph = graph("Aten: {op: relu}").unwrap();
    let layer = &graph.layers()[0];
    assert_eq!(graph.value(layer.outputs[0]).ty.to_string(), "[batch, seq, 6]");
    assert!(layer.kind.params().is_empty());
    let bindings = Bindings::new().with("batch", 3).with("seq", 5);
    assert_eq!(graph.cost(layer.id, &bindings).map(|cost| cost.flops), Some(3 * 5 * 6));
    assert!(graph.incremental(graph.inputs()).is_err(), "it is in no cache");
}

#[test]
fn an_operator_whose_name_or_arguments_cannot_be_is_refused_where_it_stands() {
    let refused = |layer: &str, expected: &str| {
        let said = graph(layer).map(drop).unwrap_err();
        assert!(said.starts_with("m.yaml:4:") && said.contains(expected), "{layer}: {said}");
    };
    refused("Aten", "missing argument `op`");
    for name in ["Roll", "a b", "a.b.c", "a.", ".a", "\"\"", "3"] {
        refused(&format!("Aten: {{op: {name}}}"), "`op`: expected the name of an operator");
    }
    for args in ["{a: {b: 1}}", "{a: [[1]]}", "[1]"] {
        refused(&format!("Aten: {{op: roll, args: {args}}}"), "`args`: expected a mapping");
    }
    let long = format!("Aten: {{op: roll, args: {{a: {}}}}}", "x".repeat(257));
    refused(&long, "`args`: expected a mapping");
    refused("Aten: {op: roll, out: [length]}", "the symbol `length` is in none");
    let text = "inputs: {x: [training, 2]}\nlayers:\n  - Aten: {op: f, args: {on: training}}\n";
    let said = LayerGraph::from_yaml(text, "m.yaml").map(drop).unwrap_err().to_string();
    assert!(said.contains("`training` says whether the model is being trained"), "{said}");
}
