//! Files that are too large, too deep or too long are refused quickly, in little memory.

use crate::support::{model, refused};
use layerspec::{yaml, LayerGraph};
use std::time::{Duration, Instant};

/// The error of a hostile text. It must come quickly.
fn refused_soon(text: &str) -> String {
    let start = Instant::now();
    let error = refused(text);
    assert!(start.elapsed() < Duration::from_secs(60), "{:?} for: {error}", start.elapsed());
    error
}

#[test]
fn ten_megabytes_of_nesting() {
    for pattern in ["[", "{", "{a: ", "- ", "? ", "!a [", "&a [", "'", "\""] {
        let error = refused_soon(&pattern.repeat(10_000_000 / pattern.len()));
        assert!(error.len() < 300, "{pattern:?}: {error}");
    }
    let blocks = |depth: usize| {
        let open: Vec<String> =
            (0..depth).map(|depth| format!("{}- layers:\n", "  ".repeat(depth))).collect();
        format!("inputs: {{x: [b, 2]}}\nlayers:\n{}{}- ReLU\n", open.concat(), "  ".repeat(depth))
    };
    assert_eq!(model(&blocks(20)).layers().len(), 1);
    assert!(refused_soon(&blocks(3000)).contains("nested more than 64 deep"));
}

#[test]
fn ten_megabytes_of_anything_else() {
    let long_list = format!("inputs: {{x: [b, 2]}}\nlayers: [{}]", "ReLU, ".repeat(1_500_000));
    assert!(refused_soon(&long_list).contains("more than 250000 values"));
    let many_keys: String = (0..260_000).map(|key| format!("key{key}: 1\n")).collect();
    assert!(refused_soon(&many_keys).contains("more than 250000 values"));
    let long_name = format!("inputs: {{x: [b, 2]}}\nlayers: [{}]", "R".repeat(1_000_000));
    assert!(refused_soon(&long_name).len() < 500);
    let long_key =
        format!("inputs: {{x: [b, 2]}}\nlayers:\n  - ReLU:\n    {}: 1\n", "k".repeat(900));
    assert!(refused_soon(&long_key).len() < 500);
}

#[test]
fn repeats_are_counted_before_they_are_made() {
    let repeat = |count: &str| {
        format!("inputs: {{x: [b, 2]}}\nlayers:\n  - repeat: {count}\n    layers: [ReLU]\n")
    };
    assert_eq!(model(&repeat("10000")).layers().len(), 10_000);
    assert!(refused_soon(&repeat("10001")).contains("more than 10000 layers"));
    assert!(refused_soon(&repeat("1000000000")).contains("more than 10000 layers"));
    assert!(refused_soon(&repeat("9223372036854775807")).contains("more than 10000 layers"));
    assert!(refused_soon(&repeat("1e9")).contains("expected a whole number"));
    assert!(refused_soon(&repeat("0")).contains("at least one layer"));
    let nested = "inputs: {x: [b, 2]}\nlayers:\n  - repeat: 1000000000\n    layers:\n      - \
                  repeat: 1000000000\n        layers:\n          - repeat: 1000000000\n            \
                  layers: [ReLU]\n";
    assert!(refused_soon(nested).contains("more than 10000 layers"));
    let empty = "inputs: {x: [b, 2]}\nlayers:\n  - repeat: 1000000000\n    layers:\n      - \
                 repeat: 0\n        layers: [ReLU]\n";
    assert!(refused_soon(empty).contains("at least one layer"));
}

#[test]
fn formulas_do_not_grow_without_end() {
    let flatten = "inputs: {x: [a, b, c]}\nlayers:\n  - repeat: 5000\n    layers:\n      - \
                   Concat: {dim: 1}\n        in_variables: x\n      - Transpose: {dim0: 0, dim1: \
                   1}\n";
    let error = refused_soon(flatten);
    assert!(
        error.contains("expected inputs that differ") || error.contains("too long a formula"),
        "{error}"
    );
    let squares: String = (0..70)
        .map(|_| "  - Conv2d: {in_channels: 1, out_channels: 1, kernel_size: 1, stride: 2}\n")
        .collect();
    let error = refused_soon(&format!("inputs: {{x: [b, 1, h, w]}}\nlayers:\n{squares}"));
    assert!(error.contains("too long a formula"), "{error}");
}

#[test]
fn long_names_and_long_lists_in_repeats() {
    let name = "n".repeat(150);
    let deep = format!(
        "inputs: {{x: [b, 2]}}\nlayers:\n  - name: {name}\n    layers:\n      - ReLU:\n        \
         name: {name}\n"
    );
    assert!(refused_soon(&deep).contains("full name is longer than 200"));
    let wide = format!(
        "inputs: {{x: [b, 2]}}\nlayers:\n  - repeat: 9000\n    layers:\n      - Add:\n        \
         in_variables: [{}]\n",
        "x, ".repeat(5000)
    );
    assert!(refused_soon(&wide).contains("more than 10000 layers"));
}

#[test]
fn files_that_are_no_models() {
    let directory = std::env::temp_dir().join(format!("layerspec-bounds-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let error = |name: &str, bytes: &[u8]| {
        let path = directory.join(name);
        std::fs::write(&path, bytes).unwrap();
        let error = LayerGraph::from_file(&path).unwrap_err().to_string();
        error.replace(&directory.display().to_string(), "")
    };
    assert!(error("image.png", b"\x89PNG\r\n\x1a\n\0\0\xff").contains("is not text"));
    assert!(error("large.yaml", &vec![b' '; yaml::MAX_BYTES as usize + 1])
        .contains("larger than 16 MiB"));
    assert_eq!(
        error("empty.yaml", b""),
        "/empty.yaml:1:1: the file is empty: expected `inputs` and `layers`"
    );
    assert_eq!(
        error("script.sh", b"#!/bin/sh\nexit 0\n"),
        "/script.sh:2:1: the model file: expected a mapping of keys, found `exit 0`"
    );
    let missing = LayerGraph::from_file(directory.join("none.yaml")).unwrap_err().to_string();
    assert!(missing.contains("none.yaml: cannot be read"), "{missing}");
    let folder = LayerGraph::from_file(&directory).unwrap_err().to_string();
    assert!(folder.contains("cannot be read"), "{folder}");
    std::fs::remove_dir_all(&directory).unwrap();
}
