//! What Mistral, Qwen2, Qwen3, Gemma and Phi-3 add to `LlamaAttention`, its norms and `LlamaMLP`.

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

#[test]
fn a_fused_projection_has_the_rows_of_all_three() {
    let fused = params(&model(&text(", fused: true")));
    assert_eq!(fused, "qkv_proj.weight [20, 12], o_proj.weight [12, 12]");
    let biased = params(&model(&text(", fused: true, qkv_bias: true")));
    let expected = "qkv_proj.weight [20, 12], qkv_proj.bias [20], o_proj.weight [12, 12]";
    assert_eq!(biased, expected);
    let mlp = |arguments: &str| {
        params(&model(&format!(
            "inputs: {{x: [batch, 12]}}\nlayers:\n  - LlamaMLP: {{hidden_size: 12, \
             intermediate_size: 5{arguments}}}\n"
        )))
    };
    assert_eq!(mlp(", fused: true"), "gate_up_proj.weight [10, 12], down_proj.weight [12, 5]");
    let gelu = mlp(", activation: gelu_tanh");
    let expected = "gate_proj.weight [5, 12], up_proj.weight [5, 12], down_proj.weight [12, 5]";
    assert_eq!(gelu, expected);
}

#[test]
fn a_cap_costs_and_a_scalar_does_not() {
    let flops = |arguments: &str| {
        let graph = model(&text(arguments));
        let bindings = Bindings::new().with("batch", 2).with("seq", 5);
        graph.cost(graph.layers()[0].id, &bindings).unwrap().flops
    };
    // Three for each score of three heads.
    assert_eq!(flops(", attn_logit_softcapping: 50") - flops(""), 2 * 5 * 5 * 3 * 3);
    assert_eq!(flops(", query_pre_attn_scalar: 256, fused: true"), flops(""));
}

#[test]
fn what_gemma_and_phi_add_continues() {
    let more = ", qk_norm_eps: 1e-6, qk_norm_offset: 1.0, attn_logit_softcapping: 50.0, fused: \
                true, partial_rotary_factor: 0.5, query_pre_attn_scalar: 256, sliding_window: 3";
    let graph = model(&text(more));
    assert_eq!(graph.incremental(graph.inputs()).map(|layers| layers.len()), Ok(1));
}

#[test]
fn what_cannot_turn_or_be_capped_is_refused() {
    for (arguments, expected) in [
        (
            ", partial_rotary_factor: 0.25",
            "`partial_rotary_factor`: expected a share of a head (4) with an even number of \
             elements, and not 1",
        ),
        (
            ", partial_rotary_factor: 0",
            "`partial_rotary_factor`: expected a share of a head (4) with an even number of \
             elements, and not 0",
        ),
        (
            ", partial_rotary_factor: 0.5, rope_theta: null",
            "`partial_rotary_factor`: expected 1.0, as `rope_theta: null` turns nothing",
        ),
        (
            ", partial_rotary_factor: 2",
            "`partial_rotary_factor`: expected a number between 0 and 1, found `2`",
        ),
        (", qk_norm_offset: 1.0", "`qk_norm_offset`: expected 0.0, as `qk_norm_eps: null` is no"),
        (
            ", attn_logit_softcapping: 0",
            "`attn_logit_softcapping`: expected a number above 0, or null, found `0`",
        ),
        (
            ", query_pre_attn_scalar: -1",
            "`query_pre_attn_scalar`: expected a number above 0, or null, found `-1`",
        ),
    ] {
        let error = refused(&text(arguments));
        assert!(error.contains(expected), "{error}");
    }
    let norm = "inputs: {x: [batch, 4]}\nlayers:\n  - RMSNorm: {normalized_shape: 4, offset: 1, \
                elementwise_affine: false}\n";
    let error = refused(norm);
    let expected = "`offset`: expected 0.0, as `elementwise_affine: false` has no weight";
    assert!(error.contains(expected), "{error}");
}
