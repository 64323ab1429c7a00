//! Properties of any text that is read as a model file. `fuzz/fuzz_targets/spec.rs` checks them,
//! too.

use layerspec::{Bindings, LayerGraph, Producer};

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
            let location = error.location.expect("an error of a text has a location");
            // YAML also ends a line with a carriage return alone.
            let lines = yaml.replace("\r\n", "\n").replace('\r', "\n").lines().count();
            assert!(location.line as usize <= lines + 1, "{text}");
            false
        }
    }
}

fn check_graph(graph: &LayerGraph) {
    for layer in graph.layers() {
        for input in &layer.inputs {
            match graph.value(*input).producer {
                Producer::Input(_) => {}
                Producer::Layer { layer: producer, .. } => assert!(producer < layer.id),
            }
            assert!(graph.users(*input).iter().any(|user| user.layer == layer.id));
        }
        let _ = graph.cost(layer.id, &Bindings::new().with("batch", u64::MAX));
    }
    assert!(!graph.outputs().is_empty());
    assert!(!graph.summary(&Bindings::new()).is_empty());
    assert!(!graph.summary(&Bindings::new().with("batch", 3).with("seq", u64::MAX)).is_empty());
}
