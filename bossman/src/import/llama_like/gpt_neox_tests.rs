//! Tests imports of GPT-NeoX.

use crate::import::test_folder::{named, with, Folder};
use crate::import::ImportOptions;
use serde_json::{json, Value};

fn neox(architecture: &str, more: &Value) -> Value {
    let config = json!({
        "architectures": [architecture],
        "vocab_size": 32,
        "hidden_size": 16,
        "intermediate_size": 12,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 64,
    });
    with(config, more)
}

fn tensors(prefix: &str, has_bias: bool) -> Vec<(String, Vec<i64>)> {
    let mut tensors = named(prefix, &[("embed_in.weight", &[32, 16])]);
    let mut norms = vec![format!("{prefix}final_layer_norm")];
    let linear: [(&str, [i64; 2]); 4] = [
        ("attention.query_key_value", [48, 16]),
        ("attention.dense", [16, 16]),
        ("mlp.dense_h_to_4h", [12, 16]),
        ("mlp.dense_4h_to_h", [16, 12]),
    ];
    for layer in 0..2 {
        let layer = format!("{prefix}layers.{layer}.");
        for (name, [to, from]) in linear {
            tensors.push((format!("{layer}{name}.weight"), vec![to, from]));
            if has_bias || name.starts_with("mlp") {
                tensors.push((format!("{layer}{name}.bias"), vec![to]));
            }
        }
        let parts = ["input_layernorm", "post_attention_layernorm"];
        norms.extend(parts.map(|name| format!("{layer}{name}")));
        tensors.push((format!("{layer}attention.rotary_emb.inv_freq"), vec![1]));
    }
    for norm in norms {
        tensors.extend(["weight", "bias"].map(|part| (format!("{norm}.{part}"), vec![16])));
    }
    tensors
}

const NEOX: &str = "\
model: small
vars:
  vocab_size: 32
  hidden_size: 16
  intermediate_size: 12
  num_hidden_layers: 2
  num_attention_heads: 2
  layer_norm_eps: 1e-5
inputs:
  input_ids: {shape: [batch, seq], dtype: int64}
layers:
  - name: gpt_neox
    layers:
      - Embedding: {num_embeddings: ${vocab_size}, embedding_dim: ${hidden_size}}
        name: embed_in
      - name: layers
        repeat: ${num_hidden_layers}
        layers:
          - Identity:
            out_variables: [residual]
          - LayerNorm: {normalized_shape: ${hidden_size}, eps: ${layer_norm_eps}}
            name: input_layernorm
          - LlamaAttention:
              hidden_size: ${hidden_size}
              num_attention_heads: ${num_attention_heads}
              rope_theta: 10000.0
              partial_rotary_factor: 0.25
              fused: true
              fused_by_head: true
              attention_bias: true
            name: attention
          - Identity:
            out_variables: [attended]
          - LayerNorm: {normalized_shape: ${hidden_size}, eps: ${layer_norm_eps}}
            name: post_attention_layernorm
            input: residual
          - Linear: {in_features: ${hidden_size}, out_features: ${intermediate_size}}
            name: mlp.dense_h_to_4h
          - GELU
          - Linear: {in_features: ${intermediate_size}, out_features: ${hidden_size}}
            name: mlp.dense_4h_to_h
          - Add:
            in_variables: [attended, residual]
      - LayerNorm: {normalized_shape: ${hidden_size}, eps: ${layer_norm_eps}}
        name: final_layer_norm
  - Linear: {in_features: ${hidden_size}, out_features: ${vocab_size}, bias: false}
    name: embed_out
";

#[test]
fn attention_and_linear_layers_take_the_same_input() {
    let head = named("embed_out.", &[("weight", &[32, 16])]);
    let tensors = [tensors("gpt_neox.", true), head].concat();
    let folder = Folder::new(&neox("GPTNeoXForCausalLM", &json!({})), &tensors);
    folder.import(&ImportOptions::default()).unwrap();
    assert_eq!(folder.model_text(), NEOX);
    let run = folder.run_text();
    let ignored = "ignore: [\"gpt_neox.layers.{i}.attention.rotary_emb.inv_freq\"]\n";
    assert!(run.contains(ignored) && run.contains("class_dim: -1"), "{run}");
    let [files, weights] = folder.weights();
    let layer = "gpt_neox.layers.1.attention";
    for (name, source) in
        [("qkv_proj.weight", "query_key_value.weight"), ("o_proj.bias", "dense.bias")]
    {
        let found = weights.get(&format!("{layer}.{name}")).unwrap();
        assert!(found.equal(files.get(&format!("{layer}.{source}")).unwrap()), "{name}");
    }
}

#[test]
fn the_head_may_have_its_name_in_transformers_5() {
    let head = named("lm_head.", &[("weight", &[32, 16])]);
    let tensors = [tensors("gpt_neox.", true), head].concat();
    let folder = Folder::new(&neox("GPTNeoXForCausalLM", &json!({})), &tensors);
    folder.import(&ImportOptions::default()).unwrap();
    assert_eq!(folder.model_text(), NEOX.replace("embed_out", "lm_head"));
    folder.weights();
}

#[test]
fn further_arguments_are_written_if_they_are_not_the_defaults() {
    let more = json!({
        "use_parallel_residual": false,
        "attention_bias": false,
        "attention_dropout": 0.5,
        "hidden_dropout": 0.25,
        "rotary_pct": 1.0,
        "rotary_emb_base": 500,
        "rope_scaling": {"type": "linear", "factor": 2.0},
        "tie_word_embeddings": true,
        "hidden_act": "gelu_new",
    });
    let folder = Folder::new(&neox("GPTNeoXForCausalLM", &more), &tensors("gpt_neox.", false));
    let inputs = vec!["key_padding_mask".to_string()];
    folder.import(&ImportOptions { inputs, ..ImportOptions::default() }).unwrap();
    let text = folder.model_text();
    let middle = "\
              rope_theta: 500.0
              rope_scaling: {rope_type: linear, factor: 2.0}
              max_position_embeddings: 64
              fused: true
              fused_by_head: true
              attention_dropout: 0.5
              key_padding_mask: true
            name: attention
            in_variables: [key_padding_mask]
          - Dropout: {p: 0.25}
          - Add:
            in_variables: [residual]
            out_variables: [attended]
          - LayerNorm: {normalized_shape: ${hidden_size}, eps: ${layer_norm_eps}}
            name: post_attention_layernorm
          - Linear:";
    assert!(text.contains(middle) && text.contains("GELU: {approximate: tanh}"), "{text}");
    assert!(text.ends_with("    share: gpt_neox.embed_in\n"), "{text}");
    folder.weights();
}

#[test]
fn a_bare_neox_has_no_head_and_keys_of_transformers_5() {
    let parameters = json!({"rope_theta": 100.0, "partial_rotary_factor": 0.5});
    let more = json!({"rope_parameters": parameters, "rotary_pct": 0.125});
    let folder = Folder::new(&neox("GPTNeoXModel", &more), &tensors("", true));
    folder.import(&ImportOptions::default()).unwrap();
    let text = folder.model_text();
    assert!(!text.contains("embed_out") && !text.contains("name: gpt_neox"), "{text}");
    assert!(text.contains("rope_theta: 100.0\n"), "{text}");
    assert!(text.contains("partial_rotary_factor: 0.5\n"), "{text}");
}

#[test]
fn what_neox_may_have_and_bossman_does_not_is_refused() {
    let cases = [
        (json!({"hidden_act": "mish"}), "`hidden_act` is \"mish\""),
        (json!({"num_hidden_layers": 801}), "`num_hidden_layers` is 801: expected 800 at most"),
        (json!({"rotary_pct": "all"}), "`rotary_pct` is \"all\": expected a number"),
        (json!({"rotary_pct": 0.4}), "with an even number of elements"),
    ];
    for (more, expected) in cases {
        let folder = Folder::new(&neox("GPTNeoXModel", &more), &tensors("", true));
        let error = folder.import(&ImportOptions::default()).unwrap_err();
        assert!(error.contains(expected) && error.contains("config.json: "), "{error}");
    }
}
