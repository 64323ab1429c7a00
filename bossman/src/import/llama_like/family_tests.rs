//! Tests the models of Mistral, Qwen2, Qwen3 and SmolLM3's windows.

use crate::import::tests::{config, text_of, Folder};
use crate::import::*;
use crate::StateDict;
use serde_json::json;

/// The lines of a text that begin so, without spaces around them.
pub(super) fn lines<'a>(text: &'a str, start: &str) -> Vec<&'a str> {
    text.lines().map(str::trim).filter(|line| line.starts_with(start)).collect()
}

/// The weights fit the imported model without a rule.
fn fits(folder: &Folder) {
    let imported = folder.import(&ImportOptions::default()).unwrap();
    let model = Model::from_file(&imported.model).unwrap();
    StateDict::load(folder.path()).unwrap().fit_to(model.graph()).unwrap();
}

const QWEN3: &str = "\
model: m
vars:
  vocab_size: 32
  hidden_size: 8
  intermediate_size: 16
  num_hidden_layers: 2
  num_attention_heads: 2
  num_key_value_heads: 1
  head_dim: 128
  sliding_window: 5
  rms_norm_eps: 1e-5
inputs:
  input_ids: {shape: [batch, seq], dtype: int64}
layers:
  - name: model
    layers:
      - Embedding: {num_embeddings: ${vocab_size}, embedding_dim: ${hidden_size}}
        name: embed_tokens
      - name: layers.0
        layers:
          - Identity:
            out_variables: [residual_0]
          - RMSNorm: {normalized_shape: ${hidden_size}, eps: ${rms_norm_eps}}
            name: input_layernorm
          - LlamaAttention:
              hidden_size: ${hidden_size}
              num_attention_heads: ${num_attention_heads}
              num_key_value_heads: ${num_key_value_heads}
              head_dim: ${head_dim}
              rope_theta: 10000.0
              qk_norm_eps: ${rms_norm_eps}
            name: self_attn
          - Add:
            in_variables: [residual_0]
            out_variables: [attended_0]
          - RMSNorm: {normalized_shape: ${hidden_size}, eps: ${rms_norm_eps}}
            name: post_attention_layernorm
          - LlamaMLP: {hidden_size: ${hidden_size}, intermediate_size: ${intermediate_size}}
            name: mlp
          - Add:
            in_variables: [attended_0]
      - name: layers.1
        layers:
          - Identity:
            out_variables: [residual_1]
          - RMSNorm: {normalized_shape: ${hidden_size}, eps: ${rms_norm_eps}}
            name: input_layernorm
          - LlamaAttention:
              hidden_size: ${hidden_size}
              num_attention_heads: ${num_attention_heads}
              num_key_value_heads: ${num_key_value_heads}
              head_dim: ${head_dim}
              rope_theta: 10000.0
              qk_norm_eps: ${rms_norm_eps}
              sliding_window: ${sliding_window}
            name: self_attn
          - Add:
            in_variables: [residual_1]
            out_variables: [attended_1]
          - RMSNorm: {normalized_shape: ${hidden_size}, eps: ${rms_norm_eps}}
            name: post_attention_layernorm
          - LlamaMLP: {hidden_size: ${hidden_size}, intermediate_size: ${intermediate_size}}
            name: mlp
          - Add:
            in_variables: [attended_1]
      - RMSNorm: {normalized_shape: ${hidden_size}, eps: ${rms_norm_eps}}
        name: norm
  - Linear: {in_features: ${hidden_size}, out_features: ${vocab_size}, bias: false}
    name: lm_head
";

#[test]
fn qwen3_has_norms_of_heads_and_windows_after_its_first_layers() {
    let more = json!({"use_sliding_window": true, "sliding_window": 5, "max_window_layers": 1});
    assert_eq!(text_of(&config("Qwen3ForCausalLM", &more)).unwrap(), QWEN3);
    Model::from_yaml(QWEN3).unwrap();
    let listed = json!({
        "use_sliding_window": true,
        "sliding_window": 5,
        "layer_types": ["full_attention", "sliding_attention"],
    });
    assert_eq!(text_of(&config("Qwen3ForCausalLM", &listed)).unwrap(), QWEN3);
    let all = json!({"use_sliding_window": true, "max_window_layers": 0, "attention_bias": true});
    let text = text_of(&config("Qwen3Model", &all)).unwrap();
    let windows = ["sliding_window: 4096", "sliding_window: ${sliding_window}"];
    assert_eq!(lines(&text, "sliding_window"), windows);
    assert!(text.contains("repeat: ") && text.contains("attention_bias: true"), "{text}");
    let mut folder = Folder::new(&config("Qwen3ForCausalLM", &json!({"head_dim": 4})), "model.")
        .with("lm_head.weight", &[32, 8]);
    for layer in 0..2 {
        for name in ["q_norm", "k_norm"] {
            let name = format!("model.layers.{layer}.self_attn.{name}.weight");
            folder = folder.with(&name, &[4]);
        }
    }
    fits(&folder);
}

#[test]
fn qwen2_has_biases_of_queries_keys_and_values() {
    // The keys of files that have a window and do not use it.
    let more = json!({"sliding_window": 32768, "max_window_layers": 1, "use_mrope": false});
    let config = config("Qwen2ForCausalLM", &more);
    let text = text_of(&config).unwrap();
    assert!(text.contains("qkv_bias: true") && !text.contains("sliding_window"), "{text}");
    assert!(!text.contains("head_dim") && text.contains("repeat: "), "{text}");
    let mut folder = Folder::new(&config, "model.").with("lm_head.weight", &[32, 8]);
    for layer in 0..2 {
        for (name, size) in [("q_proj", 8), ("k_proj", 4), ("v_proj", 4)] {
            let name = format!("model.layers.{layer}.self_attn.{name}.bias");
            folder = folder.with(&name, &[size]);
        }
    }
    fits(&folder);
}

#[test]
fn mistral_has_a_window_in_all_layers_unless_it_is_null() {
    let text = text_of(&config("MistralForCausalLM", &json!({"head_dim": 4}))).unwrap();
    assert!(text.contains("  sliding_window: 4096\n") && text.contains("head_dim: 4"), "{text}");
    assert!(text.contains("repeat: ") && text.contains("${sliding_window}"), "{text}");
    let null = json!({"sliding_window": null, "attention_bias": true});
    let text = text_of(&config("MistralForCausalLM", &null)).unwrap();
    assert!(!text.contains("sliding_window") && !text.contains("bias: true"), "{text}");
    let config = config("MistralModel", &json!({"sliding_window": 3}));
    fits(&Folder::new(&config, ""));
}

#[test]
fn defaults_are_those_of_the_configuration_classes() {
    let sizes = |architecture: &str| {
        let text = text_of(&json!({"architectures": [architecture]})).unwrap();
        let vars = text.split("inputs:").next().unwrap_or_default();
        let numbers = vars.lines().skip(2).map(|line| line.split(": ").last().unwrap().to_string());
        (numbers.collect::<Vec<_>>().join(" "), lines(&text, "rope_theta")[0].to_string())
    };
    for (architecture, numbers, theta) in [
        ("LlamaModel", "32000 4096 11008 32 32 32 1e-6", "10000.0"),
        ("MistralModel", "32000 4096 14336 32 32 8 4096 1e-6", "10000.0"),
        ("Qwen2Model", "151936 4096 22016 32 32 32 1e-6", "10000.0"),
        ("Qwen3Model", "151936 4096 22016 32 32 32 128 1e-6", "10000.0"),
        ("SmolLM3Model", "128256 2048 11008 36 16 4 1e-6", "2000000.0"),
        ("Gemma2Model", "256000 2304 9216 26 8 4 256 4096 1e-6", "10000.0"),
        ("Gemma3TextModel", "262208 2304 9216 26 8 4 256 4096 1e-6", "10000.0"),
        ("Phi3Model", "32064 3072 8192 32 32 32 1e-5", "10000.0"),
    ] {
        let expected = (numbers.to_string(), format!("rope_theta: {theta}"));
        assert_eq!(sizes(architecture), expected, "{architecture}");
    }
    // Heads of keys that are null are as many as those of queries.
    let null = json!({"num_key_value_heads": null});
    let text = text_of(&config("SmolLM3Model", &null)).unwrap();
    assert!(text.contains("num_key_value_heads: 2\n"), "{text}");
}

#[test]
fn smollm3_has_windows_where_nothing_turns() {
    let more = json!({"no_rope_layers": [1, 0], "use_sliding_window": true, "sliding_window": 4});
    let text = text_of(&config("SmolLM3Model", &more)).unwrap();
    let shown = "rope_theta: null\n              sliding_window: ${sliding_window}\n";
    assert!(text.contains(shown), "{text}");
    assert_eq!(text.matches("${sliding_window}").count(), 1, "{text}");
}

#[test]
fn what_is_wrong_is_named() {
    let sliding = json!(["sliding_attention", "full_attention"]);
    let cases = [
        ("MistralModel", json!({"sliding_window": 0}), "`sliding_window` is 0: expected a whole"),
        ("MistralModel", json!({"layer_types": sliding}), "are all the same; remove the key"),
        ("Qwen2Model", json!({"layer_types": sliding}), "see `use_sliding_window`"),
        ("Qwen3Model", json!({"layer_types": ["full_attention"]}), "num_hidden_layers (2) names"),
        ("Qwen3Model", json!({"layer_types": ["x", "x"]}), "expected a list of `full_attention`"),
        ("Qwen3Model", json!({"max_window_layers": -1}), "expected a whole number, 0 or more"),
        ("Qwen3Model", json!({"per_layer_config": {"0": {}}}), "take a model without this key"),
        ("SmolLM3Model", json!({"layer_types": sliding}), "needs a `sliding_window`"),
        ("Qwen2Model", json!({"rope_scaling": {"type": "mrope"}}), "expected one of default,"),
    ];
    for (architecture, more, expected) in cases {
        let error = text_of(&config(architecture, &more)).unwrap_err();
        assert!(error.contains(expected) && error.contains("config.json: "), "{error}");
    }
}

#[test]
fn the_row_of_the_padding_token_is_not_trained() {
    let padding = |architecture: &str, token: serde_json::Value| {
        let text = text_of(&config(architecture, &json!({"pad_token_id": token}))).unwrap();
        Model::from_yaml(&text).unwrap();
        let row = text.split_once("padding_idx: ").map(|(_, rest)| rest.split_once('}').unwrap().0);
        row.map(ToString::to_string)
    };
    let families = [
        "LlamaForCausalLM",
        "MistralModel",
        "Qwen2Model",
        "Qwen3Model",
        "SmolLM3ForCausalLM",
        "Gemma2Model",
        "Phi3ForCausalLM",
    ];
    for family in families {
        assert_eq!(padding(family, json!(3)).as_deref(), Some("3"), "{family}");
        // As in PyTorch, from the last row.
        assert_eq!(padding(family, json!(-1)).as_deref(), Some("31"), "{family}");
        for none in [json!(null), json!(-33), json!(32)] {
            assert_eq!(padding(family, none), None, "{family}");
        }
    }
    // A key that is absent has the default of the configuration class.
    for (family, is_padded) in [
        ("LlamaModel", false),
        ("SmolLM3Model", true),
        ("Phi3Model", true),
        ("Gemma3TextModel", true),
    ] {
        let text = text_of(&config(family, &json!({"vocab_size": 262_144}))).unwrap();
        assert_eq!(text.contains("padding_idx: "), is_padded, "{text}");
    }
    let error = text_of(&config("LlamaModel", &json!({"pad_token_id": "x"}))).unwrap_err();
    assert!(error.contains("`pad_token_id` is \"x\": expected a whole number"), "{error}");
}
