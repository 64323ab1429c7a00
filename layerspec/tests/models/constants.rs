//! Tensors of files that are not learned, as far as a model file can be checked without the file.

use layerspec::layers::FileContent;
use layerspec::{DType, LayerGraph};

fn graph(arguments: &str) -> Result<LayerGraph, String> {
    let text = format!(
        "inputs: {{x: [batch, 6]}}\nlayers:\n  - Linear: {{in_features: 6, out_features: 2}}\n  - \
         Constant: {{{arguments}}}\n"
    );
    LayerGraph::from_yaml(&text, "m.yaml").map_err(|error| error.to_string())
}

fn output(arguments: &str) -> String {
    let graph = graph(arguments).unwrap();
    graph.value(graph.outputs()[0]).ty.to_string()
}

#[test]
fn the_file_says_what_the_output_is() {
    assert_eq!(output("path: c, tensor: mask, shape: [1, 3]"), "[1, 3]");
    assert_eq!(output("path: c, tensor: mask, shape: 5, dtype: bool"), "bool [5]");
    let expanded = "path: c, tensor: mask, shape: [1, 4, 3], dtype: int64, expand: true";
    assert_eq!(output(expanded), "int64 [batch, 4, 3]");
}

#[test]
fn no_gradient_flows_through_a_constant() {
    let graph = graph("path: c, tensor: t, shape: 2").unwrap();
    let [linear, constant] = graph.layers() else { panic!("two layers") };
    assert!(graph.requires_grad(linear.outputs[0]));
    assert!(!graph.requires_grad(constant.outputs[0]));
    assert!(constant.kind.params().is_empty());
    assert_eq!(graph.param_count(), 6 * 2 + 2);
}

#[test]
fn the_tensor_of_the_file_is_told() {
    let mut graph = graph("path: c, tensor: t, shape: [7, 7], dtype: int64").unwrap();
    let file = graph.files_mut().next().unwrap();
    let FileContent::Tensor { name, dtype, shape } = file.content else { panic!("all of it") };
    assert_eq!((file.path, name, dtype, shape), ("c", "t", DType::Int64, &[7, 7][..]));
    *file.sha256 = Some("hash".into());
    let hashes: Vec<_> = graph.files_mut().map(|file| file.sha256.clone()).collect();
    assert_eq!(hashes, [Some("hash".to_owned())]);
}

#[test]
fn arguments_that_cannot_be_are_refused() {
    for (arguments, expected) in [
        ("tensor: t, shape: 2", "missing argument `path`"),
        ("path: c, shape: 2", "missing argument `tensor`"),
        ("path: c, tensor: t", "missing argument `shape`"),
        ("path: \"\", tensor: t, shape: 2", "`path`: expected the name of a file"),
        ("path: c, tensor: \"\", shape: 2", "`tensor`: expected the name of a tensor"),
        ("path: c, tensor: t, shape: [2, 0]", "`shape`: expected a whole number, 1 or more"),
        ("path: c, tensor: t, shape: 2, expand: true", "`shape`: expected sizes that begin with 1"),
        ("path: c, tensor: t, shape: 2, dtype: int7", "`dtype`: expected float32, float64"),
        ("path: c, tensor: t, shape: 2, sha256: abc", "`sha256`: expected 64 hexadecimal digits"),
        (
            "path: c, tensor: t, shape: [33554433], dtype: int64",
            "`shape`: expected a tensor of at most 256 MiB",
        ),
        (
            "path: c, tensor: t, shape: [4294967296, 4294967296]",
            "`shape`: expected a tensor of at most 256 MiB",
        ),
    ] {
        let error = graph(arguments).map(drop).unwrap_err();
        assert!(error.starts_with("m.yaml:4:") && error.contains(expected), "{arguments}: {error}");
    }
}
