//! What Mistral, Qwen2 and Qwen3 add to `LlamaAttention`: a window, biases and norms.

use crate::support::{model, refused};
use layerspec::{Bindings, LayerGraph};

fn text(arguments: &str) -> String {
    format!(
        "inputs: {{x: [batch, seq, 12]}}\nlayers:\n  - LlamaAttention: {{hidden_size: 12, \
         num_attention_heads: 3, num_key_value_heads: 1{arguments}}}\n"
    )
}

fn params(graph: &LayerGraph) -> String {
    let params = graph.layers()[0].kind.params();
    let shown = params.iter().map(|param| format!("{} {:?}", param.name, param.shape));
    shown.collect::<Vec<_>>().join(", ")
}

#[test]
fn biases_and_norms_are_parameters() {
    let weights = |bias: &str, last: &str| {
        let [query, key] = match bias {
            "" => [String::new(), String::new()],
            _ => [", q_proj.bias [12]".into(), ", NAME.bias [4]".to_string()],
        };
        format!(
            "q_proj.weight [12, 12]{query}, k_proj.weight [4, 12]{}, v_proj.weight [4, 12]{}, \
             o_proj.weight [12, 12]{last}",
            key.replace("NAME", "k_proj"),
            key.replace("NAME", "v_proj"),
        )
    };
    assert_eq!(params(&model(&text(""))), weights("", ""));
    assert_eq!(params(&model(&text(", qkv_bias: true"))), weights("bias", ""));
    let all = weights("bias", ", o_proj.bias [12]");
    assert_eq!(params(&model(&text(", attention_bias: true"))), all);
    let norms = weights("", ", q_norm.weight [4], k_norm.weight [4]");
    assert_eq!(params(&model(&text(", qk_norm_eps: 1e-6"))), norms);
}

#[test]
fn a_norm_costs_and_a_window_does_not() {
    let flops = |arguments: &str| {
        let graph = model(&text(arguments));
        let bindings = Bindings::new().with("batch", 2).with("seq", 5);
        graph.cost(graph.layers()[0].id, &bindings).unwrap().flops
    };
    // Five for each element of queries and keys.
    assert_eq!(flops(", qk_norm_eps: 0") - flops(""), 2 * 5 * (12 + 4) * 5);
    assert_eq!(flops(", sliding_window: 2"), flops(""));
}

#[test]
fn a_layer_with_a_window_continues() {
    let graph = model(&text(", sliding_window: 2, qk_norm_eps: 1e-6"));
    assert_eq!(graph.incremental(graph.inputs()).map(|layers| layers.len()), Ok(1));
}

#[test]
fn arguments_that_contradict_are_refused() {
    for (arguments, expected) in [
        (
            ", attention_bias: true, qkv_bias: true",
            "`qkv_bias`: expected false, as `attention_bias: true` is these biases, too",
        ),
        (
            ", is_causal: false, sliding_window: 3",
            "`sliding_window`: expected null, as `is_causal: false` has no window",
        ),
        (
            ", sliding_window: 0",
            "`sliding_window`: expected a whole number, 1 or more, or null, found `0`",
        ),
        (", qk_norm_eps: -1", "`qk_norm_eps`: expected a number, 0 or more, or null, found `-1`"),
    ] {
        let error = refused(&text(arguments));
        assert!(error.contains(expected), "{error}");
    }
}
