//! Tests the models of Gemma 2, Gemma 3 and Phi-3.

use super::family_tests::lines;
use crate::import::tests::{config, text_of, Folder};
use crate::import::*;
use crate::StateDict;
use serde_json::{json, Value};

/// The configuration of a small Gemma.
fn gemma(architecture: &str, more: &Value) -> Value {
    let mut config = config(architecture, more);
    for (key, value) in [("head_dim", 4), ("query_pre_attn_scalar", 16), ("sliding_window", 5)] {
        if config.get(key).is_none() {
            config[key] = value.into();
        }
    }
    config
}

const GEMMA2: &str = "\
model: m
vars:
  vocab_size: 32
  hidden_size: 8
  intermediate_size: 16
  num_hidden_layers: 2
  num_attention_heads: 2
  num_key_value_heads: 1
  head_dim: 4
  sliding_window: 5
  rms_norm_eps: 1e-5
inputs:
  input_ids: {shape: [batch, seq], dtype: int64}
layers:
  - name: model
    layers:
      - Embedding: {num_embeddings: ${vocab_size}, embedding_dim: ${hidden_size}, padding_idx: 0}
        name: embed_tokens
      - Scale: {factor: 2.8284271247461903}
      - name: layers.0
        layers:
          - Identity:
            out_variables: [residual_0]
          - RMSNorm: {normalized_shape: ${hidden_size}, eps: ${rms_norm_eps}, offset: 1.0}
            name: input_layernorm
          - LlamaAttention:
              hidden_size: ${hidden_size}
              num_attention_heads: ${num_attention_heads}
              num_key_value_heads: ${num_key_value_heads}
              head_dim: ${head_dim}
              rope_theta: 10000.0
              query_pre_attn_scalar: 16.0
              attn_logit_softcapping: 50.0
              sliding_window: ${sliding_window}
            name: self_attn
          - RMSNorm: {normalized_shape: ${hidden_size}, eps: ${rms_norm_eps}, offset: 1.0}
            name: post_attention_layernorm
          - Add:
            in_variables: [residual_0]
            out_variables: [attended_0]
          - RMSNorm: {normalized_shape: ${hidden_size}, eps: ${rms_norm_eps}, offset: 1.0}
            name: pre_feedforward_layernorm
          - LlamaMLP:
              hidden_size: ${hidden_size}
              intermediate_size: ${intermediate_size}
              activation: gelu_tanh
            name: mlp
          - RMSNorm: {normalized_shape: ${hidden_size}, eps: ${rms_norm_eps}, offset: 1.0}
            name: post_feedforward_layernorm
          - Add:
            in_variables: [attended_0]
      - name: layers.1
        layers:
          - Identity:
            out_variables: [residual_1]
          - RMSNorm: {normalized_shape: ${hidden_size}, eps: ${rms_norm_eps}, offset: 1.0}
            name: input_layernorm
          - LlamaAttention:
              hidden_size: ${hidden_size}
              num_attention_heads: ${num_attention_heads}
              num_key_value_heads: ${num_key_value_heads}
              head_dim: ${head_dim}
              rope_theta: 10000.0
              query_pre_attn_scalar: 16.0
              attn_logit_softcapping: 50.0
            name: self_attn
          - RMSNorm: {normalized_shape: ${hidden_size}, eps: ${rms_norm_eps}, offset: 1.0}
            name: post_attention_layernorm
          - Add:
            in_variables: [residual_1]
            out_variables: [attended_1]
          - RMSNorm: {normalized_shape: ${hidden_size}, eps: ${rms_norm_eps}, offset: 1.0}
            name: pre_feedforward_layernorm
          - LlamaMLP:
              hidden_size: ${hidden_size}
              intermediate_size: ${intermediate_size}
              activation: gelu_tanh
            name: mlp
          - RMSNorm: {normalized_shape: ${hidden_size}, eps: ${rms_norm_eps}, offset: 1.0}
            name: post_feedforward_layernorm
          - Add:
            in_variables: [attended_1]
      - RMSNorm: {normalized_shape: ${hidden_size}, eps: ${rms_norm_eps}, offset: 1.0}
        name: norm
  - Linear: {in_features: ${hidden_size}, out_features: ${vocab_size}, bias: false}
    name: lm_head
    share: model.embed_tokens
  - Scale: {factor: 0.03333333333333333}
  - Tanh
  - Scale: {factor: 30.0}
";

#[test]
fn gemma2_has_norms_on_both_sides_and_caps() {
    let config = gemma("Gemma2ForCausalLM", &json!({}));
    assert_eq!(text_of(&config).unwrap(), GEMMA2);
    let model = Model::from_yaml(GEMMA2).unwrap();
    // All of it goes on from a key-value cache.
    model.graph().incremental(model.graph().inputs()).unwrap();
    let mut folder = Folder::new(&config, "model.");
    for layer in 0..2 {
        for name in ["pre_feedforward_layernorm", "post_feedforward_layernorm"] {
            folder = folder.with(&format!("model.layers.{layer}.{name}.weight"), &[8]);
        }
    }
    let imported = folder.import(&ImportOptions::default()).unwrap();
    let model = Model::from_file(&imported.model).unwrap();
    StateDict::load(folder.path()).unwrap().fit_to(model.graph()).unwrap();
}

#[test]
fn gemma2_without_caps_and_without_a_head_has_no_hyperbolic_tangent() {
    let null = json!({"attn_logit_softcapping": null, "final_logit_softcapping": null});
    let text = text_of(&gemma("Gemma2ForCausalLM", &null)).unwrap();
    assert!(!text.contains("Tanh") && !text.contains("softcapping"), "{text}");
    let text = text_of(&gemma("Gemma2Model", &json!({}))).unwrap();
    assert!(!text.contains("Tanh") && text.contains("attn_logit_softcapping: 50.0"), "{text}");
}

#[test]
fn gemma3_has_angles_of_two_kinds_and_norms_of_heads() {
    let by_kind = json!({"rope_theta": null, "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
            "full_attention": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 8.0},
        },
    });
    let text = text_of(&gemma("Gemma3ForCausalLM", &by_kind)).unwrap();
    let [local, usual] = ["50.0", "1000.0"].map(|theta| format!("rope_theta: {theta}"));
    assert_eq!(lines(&text, "rope_theta"), [local, usual]);
    let scaled = ["rope_scaling: {rope_type: linear, factor: 8.0}"];
    assert_eq!(lines(&text, "rope_scaling"), scaled);
    assert_eq!(lines(&text, "qk_norm_offset"), ["qk_norm_offset: 1.0"; 2]);
    assert_eq!(lines(&text, "sliding_window: $").len(), 1, "{text}");
    assert!(!text.contains("Tanh"), "{text}");
    Model::from_yaml(&text).unwrap();
    // The keys of transformers 4. One layer of six has no window.
    let older = json!({"num_hidden_layers": 7, "rope_theta": 2000.0, "rope_local_base_freq": 60.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0}, "final_logit_softcapping": 30.0});
    let text = text_of(&gemma("Gemma3ForCausalLM", &older)).unwrap();
    let mut expected = ["rope_theta: 60.0"; 7];
    expected[5] = "rope_theta: 2000.0";
    assert_eq!(lines(&text, "rope_theta"), expected);
    assert_eq!(lines(&text, "rope_scaling"), scaled);
    assert!(text.contains("- Tanh\n"), "{text}");
}

const PHI3: &str = "\
model: m
vars:
  vocab_size: 32
  hidden_size: 8
  intermediate_size: 16
  num_hidden_layers: 2
  num_attention_heads: 2
  num_key_value_heads: 1
  sliding_window: 7
  rms_norm_eps: 1e-5
inputs:
  input_ids: {shape: [batch, seq], dtype: int64}
layers:
  - name: model
    layers:
      - Embedding: {num_embeddings: ${vocab_size}, embedding_dim: ${hidden_size}}
        name: embed_tokens
      - name: layers
        repeat: ${num_hidden_layers}
        layers:
          - Identity:
            out_variables: [residual]
          - RMSNorm: {normalized_shape: ${hidden_size}, eps: ${rms_norm_eps}}
            name: input_layernorm
          - LlamaAttention:
              hidden_size: ${hidden_size}
              num_attention_heads: ${num_attention_heads}
              num_key_value_heads: ${num_key_value_heads}
              rope_theta: 10000.0
              partial_rotary_factor: 0.5
              fused: true
              attention_dropout: 0.2
              sliding_window: ${sliding_window}
            name: self_attn
          - Dropout: {p: 0.1}
          - Add:
            in_variables: [residual]
            out_variables: [attended]
          - RMSNorm: {normalized_shape: ${hidden_size}, eps: ${rms_norm_eps}}
            name: post_attention_layernorm
          - LlamaMLP:
              hidden_size: ${hidden_size}
              intermediate_size: ${intermediate_size}
              fused: true
            name: mlp
          - Dropout: {p: 0.1}
          - Add:
            in_variables: [attended]
      - RMSNorm: {normalized_shape: ${hidden_size}, eps: ${rms_norm_eps}}
        name: norm
  - Linear: {in_features: ${hidden_size}, out_features: ${vocab_size}, bias: false}
    name: lm_head
";

#[test]
fn phi3_has_fused_projections_that_turn_in_part() {
    let more = json!({
        "sliding_window": 7,
        "resid_pdrop": 0.1,
        "embd_pdrop": 0.3,
        "attention_dropout": 0.2,
        "partial_rotary_factor": 0.5,
    });
    assert_eq!(text_of(&config("Phi3ForCausalLM", &more)).unwrap(), PHI3);
    let model = Model::from_yaml(PHI3).unwrap();
    let names: Vec<String> = StateDict::names(model.graph());
    for name in ["self_attn.qkv_proj.weight", "mlp.gate_up_proj.weight"] {
        assert!(names.contains(&format!("model.layers.1.{name}")), "{names:?}");
    }
    let text = text_of(&config("Phi3Model", &json!({}))).unwrap();
    for part in ["Dropout", "sliding_window", "partial_rotary_factor", "rope_scaling"] {
        assert!(!text.contains(part), "{text}");
    }
}

#[test]
fn phi3_scales_angles_from_the_positions_beside_them() {
    let scaling = json!({"type": "su", "short_factor": [1.0, 1.5], "long_factor": [2.0, 3.0],
        "original_max_position_embeddings": 32});
    let own = json!({"rope_scaling": scaling, "original_max_position_embeddings": 16});
    let text = text_of(&config("Phi3Model", &own)).unwrap();
    let argument = |original: u64| {
        format!(
            "rope_scaling: {{rope_type: longrope, short_factor: [1.0, 1.5], long_factor: [2.0, \
             3.0], original_max_position_embeddings: {original}}}"
        )
    };
    assert_eq!(lines(&text, "rope_scaling"), [argument(16)]);
    assert_eq!(lines(&text, "max_position_embeddings: "), ["max_position_embeddings: 64"]);
    Model::from_yaml(&text).unwrap();
    // The default of the configuration class.
    let text = text_of(&config("Phi3Model", &json!({"rope_scaling": scaling}))).unwrap();
    assert_eq!(lines(&text, "rope_scaling"), [argument(4096)]);
}

#[test]
fn what_is_wrong_is_named() {
    let flat = json!({"rope_parameters": {"rope_type": "default"}});
    let cases = [
        ("Gemma2Model", json!({"hidden_activation": "gelu"}), "`gelu_pytorch_tanh` alone"),
        ("Gemma2Model", json!({"use_bidirectional_attention": true}), "later positions, too"),
        ("Gemma2Model", json!({"partial_rotary_factor": 0.5}), "turn whole heads"),
        ("Gemma3TextModel", json!({"use_bidirectional_attention": true}), "later positions, too"),
        ("Gemma3TextModel", json!({"sliding_window": null}), "`sliding_window` is null: expected"),
        ("Gemma3TextModel", flat, "`rope_parameters.rope_type` is \"default\": angles are named"),
        ("Phi3Model", json!({"rope_scaling": {"type": "yarn"}}), "`rope_scaling.type` is \"yarn\""),
        ("Phi3Model", json!({"hidden_act": "gelu"}), "`hidden_act` is \"gelu\""),
    ];
    for (architecture, more, expected) in cases {
        let error = text_of(&config(architecture, &more)).unwrap_err();
        assert!(error.contains(expected) && error.contains("config.json: "), "{error}");
    }
}
