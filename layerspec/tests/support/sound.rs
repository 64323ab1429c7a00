//! What holds for any text that is read as a model file. The fuzz of `fuzz/fuzz_targets/spec.rs` looks at it, too.

use layerspec::{Bindings, LayerGraph, Source};

/// Whether the file is a model.
pub(crate) fn check(yaml: &str) -> bool {
    match LayerGraph::from_yaml(yaml, "fuzz") {
        Ok(graph) => {
            check_graph(&graph);
            true
        }
        Err(error) => {
            let text = error.to_string();
            assert!(!text.contains('\n') && text.len() < 2000, "{text}");
            let place = error.place.expect("an error of a text has a place");
            // YAML also ends a line with a carriage return alone.
            let lines = yaml.replace("\r\n", "\n").replace('\r', "\n").lines().count();
            assert!(place.line as usize <= lines + 1, "{text}");
            false
        }
    }
}

fn check_graph(graph: &LayerGraph) {
    for layer in graph.layers() {
        for input in &layer.inputs {
            match graph.value(*input).made_by {
                Source::Input(_) => {}
                Source::Layer { layer: maker, .. } => assert!(maker < layer.id),
            }
            assert!(graph.users(*input).iter().any(|user| user.layer == layer.id));
        }
        let _ = graph.cost(layer.id, &Bindings::new().with("batch", u64::MAX));
    }
    assert!(!graph.outputs().is_empty());
    assert!(!graph.table(&Bindings::new()).is_empty());
    assert!(!graph.table(&Bindings::new().with("batch", 3).with("seq", u64::MAX)).is_empty());
}
