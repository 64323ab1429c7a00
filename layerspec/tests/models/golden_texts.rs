//! Texts that users see, compared with checked-in files. UPDATE_GOLDEN=1 writes them anew.

use crate::support::{example, root, EXAMPLES};
use layerspec::{layer_manual, Bindings, LayerGraph};
use std::path::Path;
use testkit::golden::assert_golden;

#[test]
fn check_tables_of_the_examples() {
    for name in EXAMPLES {
        let graph = example(name);
        assert!(graph.warnings().is_empty(), "{name}: {:?}", graph.warnings());
        let path = root(&format!("layerspec/tests/golden/check-{name}.txt"));
        assert_golden(&path, &graph.summary(&Bindings::new()));
    }
}

#[test]
fn check_table_with_all_symbols_bound() {
    let bindings = Bindings::new().with("batch", 32).with("seq", 64);
    assert_golden(
        &root("layerspec/tests/golden/check-tied-bound.txt"),
        &example("tied").summary(&bindings),
    );
}

/// `errors.txt` holds cases: a title, a model file, and the one-line error it must give.
#[test]
fn errors_say_what_and_where() {
    let path = root("layerspec/tests/golden/errors.txt");
    let cases = std::fs::read_to_string(&path).unwrap();
    let mut actual = String::new();
    let mut count = 0;
    for case in cases.split("=== ").skip(1) {
        let (title, rest) = case.split_once('\n').unwrap();
        let (yaml, _) = rest.split_once("--->").unwrap_or((rest, ""));
        let error = match LayerGraph::from_yaml(yaml, "model.yaml") {
            Ok(graph) => panic!("`{title}` is accepted:\n{}", graph.summary(&Bindings::new())),
            Err(error) => error.to_string(),
        };
        assert!(!error.contains('\n'), "`{title}`: an error is one line");
        actual.push_str(&format!("=== {title}\n{yaml}---> {error}\n\n"));
        count += 1;
    }
    assert!(count >= 20, "{count} cases");
    assert_golden(&path, &actual);
}

/// The code writes the layer part of the manual. The rest is written by hand.
#[test]
fn manual_of_the_layers() {
    const BEGIN: &str =
        "<!-- layers: begin, written by `UPDATE_GOLDEN=1 cargo test -p layerspec` -->\n";
    const END: &str = "<!-- layers: end -->";
    let path: &Path = &root("docs/reference/model-file.md");
    let manual = std::fs::read_to_string(path).unwrap();
    let (before, rest) = manual.split_once(BEGIN).expect("the mark before the layers");
    let (_, after) = rest.split_once(END).expect("the mark after the layers");
    assert_golden(path, &format!("{before}{BEGIN}\n{}\n{END}{after}", layer_manual()));
}

/// Every model in the manual is valid.
#[test]
fn examples_of_the_manual_parse() {
    let manual = std::fs::read_to_string(root("docs/reference/model-file.md")).unwrap();
    let blocks = manual.split("```yaml\n").skip(1).filter_map(|rest| rest.split_once("```"));
    let models: Vec<&str> =
        blocks.map(|(block, _)| block).filter(|block| block.contains("layers:")).collect();
    assert!(models.len() >= 2, "{} models in the manual", models.len());
    for model in models {
        let graph = LayerGraph::from_yaml(model, "docs/reference/model-file.md")
            .unwrap_or_else(|error| panic!("{error}"));
        assert!(graph.warnings().is_empty(), "{:?}", graph.warnings());
    }
}
