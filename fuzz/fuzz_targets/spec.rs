//! Any text as a model file: a graph or an error, in bounded time and memory.
#![no_main]

use layerspec::LayerGraph;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Err(error) = LayerGraph::from_yaml(text, "fuzz.yaml") {
        assert!(!error.to_string().is_empty());
    }
});
