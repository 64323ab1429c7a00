//! Tests imports of GPT-2, whose files store matrices transposed.

use crate::import::test_folder::{named, with, Folder};
use crate::import::ImportOptions;
use serde_json::{json, Value};

pub(in crate::import) fn gpt2(more: &Value) -> Value {
    let config = json!({
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": 32,
        "n_positions": 16,
        "n_embd": 8,
        "n_layer": 2,
        "n_head": 2,
        "n_inner": null,
        "resid_pdrop": 0.0,
        "attn_pdrop": 0.2,
    });
    with(config, more)
}

pub(in crate::import) fn gpt2_tensors(prefix: &str) -> Vec<(String, Vec<i64>)> {
    let outer: [(&str, &[i64]); 4] = [
        ("wte.weight", &[32, 8]),
        ("wpe.weight", &[16, 8]),
        ("ln_f.weight", &[8]),
        ("ln_f.bias", &[8]),
    ];
    let of_layer: [(&str, &[i64]); 14] = [
        ("ln_1.weight", &[8]),
        ("ln_1.bias", &[8]),
        ("attn.bias", &[1, 1, 16, 16]),
        ("attn.masked_bias", &[]),
        ("attn.c_attn.weight", &[8, 24]),
        ("attn.c_attn.bias", &[24]),
        ("attn.c_proj.weight", &[8, 8]),
        ("attn.c_proj.bias", &[8]),
        ("ln_2.weight", &[8]),
        ("ln_2.bias", &[8]),
        ("mlp.c_fc.weight", &[8, 32]),
        ("mlp.c_fc.bias", &[32]),
        ("mlp.c_proj.weight", &[32, 8]),
        ("mlp.c_proj.bias", &[8]),
    ];
    let layers = (0..2).flat_map(|layer| named(&format!("{prefix}h.{layer}."), &of_layer));
    named(prefix, &outer).into_iter().chain(layers).collect()
}

const GPT2: &str = "\
model: small
vars:
  vocab_size: 32
  n_positions: 16
  n_embd: 8
  n_layer: 2
  n_head: 2
  n_inner: 32
  layer_norm_epsilon: 1e-5
inputs:
  input_ids: {shape: [batch, seq], dtype: int64}
layers:
  - name: transformer
    layers:
      - Embedding: {num_embeddings: ${vocab_size}, embedding_dim: ${n_embd}}
        name: wte
      - LearnedPositions: {num_positions: ${n_positions}, d_model: ${n_embd}, batch_first: true}
        name: wpe
      - Dropout: {p: 0.1}
      - name: h
        repeat: ${n_layer}
        layers:
          - Identity:
            out_variables: [residual]
          - LayerNorm: {normalized_shape: ${n_embd}, eps: ${layer_norm_epsilon}}
            name: ln_1
          - MultiheadAttention:
              embed_dim: ${n_embd}
              num_heads: ${n_head}
              dropout: 0.2
              batch_first: true
              is_causal: true
            name: attn
          - Add:
            in_variables: [residual]
            out_variables: [attended]
          - LayerNorm: {normalized_shape: ${n_embd}, eps: ${layer_norm_epsilon}}
            name: ln_2
          - Linear: {in_features: ${n_embd}, out_features: ${n_inner}}
            name: mlp.c_fc
          - GELU: {approximate: tanh}
          - Linear: {in_features: ${n_inner}, out_features: ${n_embd}}
            name: mlp.c_proj
          - Add:
            in_variables: [attended]
      - LayerNorm: {normalized_shape: ${n_embd}, eps: ${layer_norm_epsilon}}
        name: ln_f
  - Linear: {in_features: ${n_embd}, out_features: ${vocab_size}, bias: false}
    name: lm_head
    share: transformer.wte
";

const GPT2_WEIGHTS: &str = r#"
  rename:
    "transformer.h.{i}.attn.in_proj_weight": {transpose: "transformer.h.{i}.attn.c_attn.weight"}
    "transformer.h.{i}.attn.in_proj_bias": "transformer.h.{i}.attn.c_attn.bias"
    "transformer.h.{i}.attn.out_proj.weight": {transpose: "transformer.h.{i}.attn.c_proj.weight"}
    "transformer.h.{i}.attn.out_proj.bias": "transformer.h.{i}.attn.c_proj.bias"
    "transformer.h.{i}.mlp.c_fc.weight": {transpose: "transformer.h.{i}.mlp.c_fc.weight"}
    "transformer.h.{i}.mlp.c_proj.weight": {transpose: "transformer.h.{i}.mlp.c_proj.weight"}
  # Tensors in the files that the model does not use.
  ignore: ["transformer.h.{i}.attn.bias", "transformer.h.{i}.attn.masked_bias"]
"#;

#[test]
fn matrices_of_gpt2_are_transposed() {
    let folder = Folder::new(&gpt2(&json!({})), &gpt2_tensors("transformer."));
    folder.import(&ImportOptions::default()).unwrap();
    assert_eq!(folder.model_text(), GPT2);
    let run = folder.run_text();
    assert!(run.contains(GPT2_WEIGHTS) && run.contains("class_dim: -1"), "{run}");
    let [files, weights] = folder.weights();
    for (name, source) in [
        ("attn.in_proj_weight", "attn.c_attn.weight"),
        ("mlp.c_fc.weight", "mlp.c_fc.weight"),
        ("mlp.c_proj.weight", "mlp.c_proj.weight"),
    ] {
        let found = weights.get(&format!("transformer.h.1.{name}")).unwrap();
        let source = files.get(&format!("transformer.h.1.{source}")).unwrap();
        assert!(found.equal(&source.transpose(0, 1)), "{name}");
    }
}

#[test]
fn gpt2_may_have_names_without_a_prefix_and_no_head() {
    let folder = Folder::new(&gpt2(&json!({})), &gpt2_tensors(""));
    folder.import(&ImportOptions::default()).unwrap();
    let text = folder.model_text();
    assert!(text.contains("    share: wte\n") && !text.contains("transformer"), "{text}");
    folder.weights();
    let config = gpt2(&json!({"architectures": ["GPT2Model"], "activation_function": "relu"}));
    let folder = Folder::new(&config, &gpt2_tensors(""));
    let inputs = vec!["key_padding_mask".to_string()];
    folder.import(&ImportOptions { inputs, ..ImportOptions::default() }).unwrap();
    let text = folder.model_text();
    for part in ["      - ReLU\n", "key_padding_mask: true\n", "in_variables: [key_padding_mask]"] {
        assert!(text.contains(part), "{text}");
    }
    assert!(!text.contains("lm_head"), "{text}");
}

#[test]
fn keys_of_gpt2_may_have_the_names_of_other_families() {
    let mut config = gpt2(&json!({"num_attention_heads": 2}));
    for (own, other) in [
        ("n_embd", "hidden_size"),
        ("n_positions", "max_position_embeddings"),
        ("n_layer", "num_hidden_layers"),
    ] {
        config[other] = config[own].take();
    }
    let folder = Folder::new(&config, &gpt2_tensors("transformer."));
    folder.import(&ImportOptions::default()).unwrap();
    assert_eq!(folder.model_text(), GPT2);
}

#[test]
fn what_gpt2_may_have_and_bossman_does_not_is_refused() {
    let cases = [
        (gpt2(&json!({"num_hidden_layers": 3})), "`num_hidden_layers` is 3: expected the value of"),
        (gpt2(&json!({"activation_function": "quick_gelu"})), "`activation_function` is \"quick"),
        (gpt2(&json!({"scale_attn_by_inverse_layer_idx": true})), "`scale_attn_by_inverse_layer_"),
        (gpt2(&json!({"scale_attn_weights": false})), "`scale_attn_weights` is false"),
        (gpt2(&json!({"add_cross_attention": true})), "`add_cross_attention` is true"),
        (gpt2(&json!({"n_layer": 801})), "`n_layer` is 801: expected 800 at most"),
    ];
    for (config, expected) in cases {
        let folder = Folder::new(&config, &gpt2_tensors(""));
        let error = folder.import(&ImportOptions::default()).unwrap_err();
        assert!(error.contains(expected) && error.contains("config.json: "), "{error}");
        assert!(!folder.place.path().join("to").exists());
    }
}
