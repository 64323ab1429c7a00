//! Tests whole imports, of small folders that are written here.

use super::*;
use crate::run_file::RunFile;
use crate::StateDict;
use serde_json::{json, Value};
use tch::{Device, Kind, Tensor};
use tempfile::TempDir;

/// A folder as transformers writes it, and a place to import to.
pub(super) struct Folder {
    place: TempDir,
    weights: StateDict,
}

impl Folder {
    /// A folder with this configuration and the weights of two small decoder layers, whose names
    /// begin with `prefix`.
    pub(super) fn new(config: &Value, prefix: &str) -> Self {
        let folder = Folder { place: tempfile::tempdir().unwrap(), weights: StateDict::default() };
        std::fs::create_dir(folder.path()).unwrap();
        std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        let mut folder = folder.with(&format!("{prefix}embed_tokens.weight"), &[32, 8]);
        folder = folder.with(&format!("{prefix}norm.weight"), &[8]);
        let of_layer: [(&str, &[i64]); 9] = [
            ("input_layernorm", &[8]),
            ("self_attn.q_proj", &[8, 8]),
            ("self_attn.k_proj", &[4, 8]),
            ("self_attn.v_proj", &[4, 8]),
            ("self_attn.o_proj", &[8, 8]),
            ("post_attention_layernorm", &[8]),
            ("mlp.gate_proj", &[16, 8]),
            ("mlp.up_proj", &[16, 8]),
            ("mlp.down_proj", &[8, 16]),
        ];
        for (name, sizes) in of_layer {
            for layer in 0..2 {
                folder = folder.with(&format!("{prefix}layers.{layer}.{name}.weight"), sizes);
            }
        }
        folder
    }

    /// The same folder with a further tensor.
    pub(super) fn with(mut self, name: &str, sizes: &[i64]) -> Self {
        self.weights.insert(name, &Tensor::zeros(sizes, (Kind::BFloat16, Device::Cpu)));
        self
    }

    fn save_weights(&self) {
        self.weights.save(self.path().join("model.safetensors")).unwrap();
    }

    /// The same folder with a tokenizer.
    fn with_tokenizer(self) -> Self {
        let tokenizer = r#"{"model": {"vocab": {"a": 0, "</s>": 31}}}"#;
        std::fs::write(self.path().join("tokenizer.json"), tokenizer).unwrap();
        self
    }

    pub(super) fn path(&self) -> PathBuf {
        self.place.path().join("small")
    }

    fn to(&self) -> PathBuf {
        self.place.path().join("imported")
    }

    pub(super) fn import(&self, options: &ImportOptions) -> Result<Imported, String> {
        self.save_weights();
        import(&self.path(), &self.to(), options).map_err(|e| e.to_string())
    }

    /// The model file without its comments.
    fn model_text(&self) -> String {
        let text = std::fs::read_to_string(self.to().join("model.yaml")).unwrap();
        text.lines().filter(|line| !line.starts_with('#')).map(|line| format!("{line}\n")).collect()
    }

    fn page(&self) -> String {
        std::fs::read_to_string(self.to().join("MODEL.md")).unwrap()
    }
}

pub(super) fn config(architecture: &str, more: &Value) -> Value {
    let mut config = json!({
        "architectures": [architecture],
        "vocab_size": 32,
        "hidden_size": 8,
        "intermediate_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "max_position_embeddings": 64,
        "eos_token_id": 31,
        "use_cache": true,
    });
    for (key, value) in more.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

const UNTIED: &str = "\
model: small
vars:
  vocab_size: 32
  hidden_size: 8
  intermediate_size: 16
  num_hidden_layers: 2
  num_attention_heads: 2
  num_key_value_heads: 1
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
            name: self_attn
          - Add:
            in_variables: [residual]
            out_variables: [attended]
          - RMSNorm: {normalized_shape: ${hidden_size}, eps: ${rms_norm_eps}}
            name: post_attention_layernorm
          - LlamaMLP: {hidden_size: ${hidden_size}, intermediate_size: ${intermediate_size}}
            name: mlp
          - Add:
            in_variables: [attended]
      - RMSNorm: {normalized_shape: ${hidden_size}, eps: ${rms_norm_eps}}
        name: norm
  - Linear: {in_features: ${hidden_size}, out_features: ${vocab_size}, bias: false}
    name: lm_head
";

#[test]
fn an_untied_llama_has_the_names_of_its_files() {
    let config = config("LlamaForCausalLM", &json!({"tie_word_embeddings": false}));
    let folder = Folder::new(&config, "model.").with("lm_head.weight", &[32, 8]);
    let imported = folder.import(&ImportOptions::default()).unwrap();
    assert_eq!(folder.model_text(), UNTIED);
    assert_eq!(imported.architecture, "LlamaForCausalLM");
    assert_eq!(imported.parameters, 2 * 256 + 8 + 2 * (2 * 64 + 2 * 32 + 16 + 3 * 128));
    assert!(imported.warnings[0].contains("has no tokenizer.json"), "{:?}", imported.warnings);
    // The weights fit the model without a rule.
    let model = Model::from_file(&imported.model).unwrap();
    StateDict::load(folder.path()).unwrap().fit_to(model.graph()).unwrap();
    let page = folder.page();
    for part in ["- Architecture: LlamaForCausalLM\n", "bfloat16 (21 tensors)", "| head | 256 |"] {
        assert!(page.contains(part), "{page}");
    }
    let again = folder.import(&ImportOptions::default()).unwrap_err();
    assert!(again.ends_with("imported: is not empty; name a new folder"), "{again}");
}

#[test]
fn a_tied_llama_shares_and_ignores_what_is_left() {
    let config = config("LlamaForCausalLM", &json!({"tie_word_embeddings": true}));
    let folder = Folder::new(&config, "model.")
        .with("lm_head.weight", &[32, 8])
        .with("model.layers.1.self_attn.rotary_emb.inv_freq", &[2])
        .with_tokenizer();
    let data = folder.place.path().join("text.txt");
    let options = ImportOptions { data: Some(data.clone()), ..ImportOptions::default() };
    for (content, problem) in [
        (&b" \n"[..], "text.txt: has no text to train on"),
        (b"caf\xe9 au lait", "text.txt: is not text in UTF-8"),
    ] {
        std::fs::write(&data, content).unwrap();
        let error = folder.import(&options).unwrap_err();
        assert!(error.ends_with(problem) && !folder.to().exists(), "{error}");
    }
    std::fs::write(&data, "some text").unwrap();
    let imported = folder.import(&options).unwrap();
    assert_eq!(folder.model_text(), format!("{UNTIED}    share: model.embed_tokens\n"));
    assert!(imported.warnings.is_empty(), "{:?}", imported.warnings);
    let run = RunFile::from_file(imported.run).unwrap();
    let model = Model::from_file(&run.model).unwrap();
    let weights = run.weights.unwrap();
    let files = StateDict::load(&weights.path).unwrap();
    weights.rename.apply(&files, &model).unwrap().fit_to(model.graph()).unwrap();
    let page = folder.page();
    assert!(page.contains("tied to the embedding") && page.contains("- `lm_head.weight`\n"));
}

#[test]
fn a_head_with_other_numbers_than_the_embedding_is_not_tied() {
    let config = config("LlamaForCausalLM", &json!({"tie_word_embeddings": true}));
    let mut folder = Folder::new(&config, "model.").with_tokenizer();
    let head = Tensor::ones([32, 8], (Kind::BFloat16, Device::Cpu));
    folder.weights.insert("lm_head.weight", &head);
    let error = folder.import(&ImportOptions::default()).unwrap_err().to_string();
    let expected = "model.safetensors: `lm_head.weight` differs from `model.embed_tokens.weight`";
    assert!(error.contains(expected), "{error}");
    // Without a head nothing is tied.
    let options = ImportOptions { head: Head::None, ..ImportOptions::default() };
    assert_eq!(folder.import(&options).unwrap().warnings, [""; 0]);
}

#[test]
fn a_bare_model_has_no_head_and_no_outer_block() {
    let config = config("LlamaModel", &json!({}));
    let folder = Folder::new(&config, "");
    folder.import(&ImportOptions::default()).unwrap();
    let text = folder.model_text();
    assert!(!text.contains("lm_head") && !text.contains("name: model\n"), "{text}");
    assert!(folder.page().contains("Head: none"));
}

#[test]
fn a_head_is_left_out_and_a_mask_put_in_on_request() {
    let config = config("LlamaForCausalLM", &json!({}));
    let folder = Folder::new(&config, "model.").with("lm_head.weight", &[32, 8]);
    let inputs = vec!["key_padding_mask".to_string()];
    let options = ImportOptions { head: Head::None, inputs, ..ImportOptions::default() };
    folder.import(&options).unwrap();
    let text = folder.model_text();
    for part in [
        "  key_padding_mask: {shape: [batch, seq], dtype: bool}\n",
        "              key_padding_mask: true\n",
        "            in_variables: [key_padding_mask]\n",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert!(!text.contains("lm_head"), "{text}");
    std::fs::remove_dir_all(folder.to()).unwrap();
    let with_data = ImportOptions { data: Some("x".into()), ..options };
    assert!(folder.import(&with_data).unwrap_err().contains("the model needs its head"));
    let other = ImportOptions { inputs: vec!["pixels".into()], ..ImportOptions::default() };
    let error = folder.import(&other).unwrap_err();
    assert!(error.contains("has no input `pixels`; it has input_ids, key_padding_mask"), "{error}");
    assert!(!folder.to().exists());
}

/// The text of a family's model. Its sizes need not be those of the weights.
pub(super) fn text_of(config: &Value) -> Result<String, String> {
    let folder = Folder::new(config, "model.").with("lm_head.weight", &[32, 8]);
    folder.save_weights();
    let config = HfConfig::read(&folder.path()).unwrap();
    let headers = TensorHeaders::read(&folder.path()).unwrap();
    let (family, architecture) = family_of(&config).map_err(|e| e.to_string())?;
    let request = Request {
        architecture,
        config: &config,
        headers: &headers,
        head: Head::Architecture,
        inputs: &[],
    };
    let FamilyModel { vars, inputs, entries, .. } =
        (family.model)(&request).map_err(|e| e.to_string())?;
    let (comments, name) = (Vec::new(), "m".to_string());
    Ok(model_text(&ModelFile { comments, name, vars, inputs, entries }))
}

#[test]
fn layers_that_differ_are_written_one_by_one() {
    let more = json!({"no_rope_layers": [1, 0], "tie_word_embeddings": false});
    let text = text_of(&config("SmolLM3ForCausalLM", &more)).unwrap();
    for part in [
        "      - name: layers.0\n        layers:\n          - Identity:\n",
        "            out_variables: [residual_0]\n",
        "      - name: layers.1\n",
        "rope_theta: 10000.0\n",
        "rope_theta: null\n",
        "in_variables: [attended_1]\n",
    ] {
        assert!(text.contains(part), "{text}");
    }
    // The names are those of the files, whatever the angles.
    let model = Model::from_yaml(&text).unwrap();
    let repeated = Model::from_yaml(UNTIED).unwrap();
    assert_eq!(StateDict::names(model.graph()), StateDict::names(repeated.graph()));
    // Every fourth layer has no rotation by default, and two layers have none of these.
    let text = text_of(&config("SmolLM3ForCausalLM", &json!({}))).unwrap();
    assert!(text.contains("repeat: ${num_hidden_layers}"), "{text}");
    assert!(text.contains("share: model.embed_tokens"), "tied by default: {text}");
    let every_second = json!({"no_rope_layer_interval": 2});
    let text = text_of(&config("SmolLM3ForCausalLM", &every_second)).unwrap();
    assert!(text.contains("- name: layers.1\n"), "{text}");
}

#[test]
fn further_arguments_are_written_if_they_are_not_the_defaults() {
    let more = json!({
        "rope_theta": 5e5,
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0},
        "attention_bias": true,
        "attention_dropout": 0.5,
        "mlp_bias": true,
        "head_dim": 4,
    });
    let text = text_of(&config("LlamaForCausalLM", &more)).unwrap();
    let arguments = "\
              head_dim: ${head_dim}
              rope_theta: 500000.0
              rope_scaling: {rope_type: llama3, factor: 8.0}
              max_position_embeddings: 64
              attention_bias: true
              attention_dropout: 0.5
            name: self_attn
";
    assert!(text.contains(arguments) && text.contains("mlp_bias: true"), "{text}");
}

#[test]
fn what_bossman_does_not_have_is_refused_with_key_and_file() {
    let cases = [
        ("LlamaForCausalLM", json!({"hidden_act": "gelu"}), "`hidden_act` is \"gelu\""),
        ("LlamaForCausalLM", json!({"quantization_config": {"bits": 4}}), "is not quantized"),
        (
            "LlamaForCausalLM",
            json!({"num_hidden_layers": 1_000_000_000u64}),
            "expected 1000 at most",
        ),
        ("LlamaForCausalLM", json!({"vocab_size": 0}), "`vocab_size` is 0: expected a whole"),
        ("LlamaForCausalLM", json!({"mlp_bias": 1}), "`mlp_bias` is 1: expected `true`"),
        ("SmolLM3Model", json!({"no_rope_layers": [1]}), "num_hidden_layers (2) numbers"),
        ("SmolLM3Model", json!({"no_rope_layers": [1, 2]}), "expected a list of 1 and 0"),
    ];
    for (architecture, more, expected) in cases {
        let error = text_of(&config(architecture, &more)).unwrap_err();
        assert!(error.contains(expected) && error.contains("config.json: "), "{error}");
    }
}

#[test]
fn other_shapes_and_too_few_rows_are_refused_before_anything_is_written() {
    let config = |more: &Value| config("LlamaModel", more);
    let folder = Folder::new(&config(&json!({"intermediate_size": 12})), "");
    let error = folder.import(&ImportOptions::default()).unwrap_err();
    let part = "`layers.0.mlp.down_proj.weight`: expected float32 [8, 12], got bfloat16 [8, 16]";
    assert!(error.contains(part) && error.contains("model.safetensors: "), "{error}");
    let folder = Folder::new(&config(&json!({"num_attention_heads": 3})), "");
    let error = folder.import(&ImportOptions::default()).unwrap_err();
    assert!(error.contains("config.json: makes a model that BossMan refuses"), "{error}");
    let folder = Folder::new(&config(&json!({})), "").with_tokenizer();
    let wide = r#"{"model": {"vocab": {"x": 32}}}"#;
    std::fs::write(folder.path().join("tokenizer.json"), wide).unwrap();
    let error = folder.import(&ImportOptions::default()).unwrap_err();
    assert!(error.contains("tokenizer.json: its last token has the number 32"), "{error}");
    assert!(!folder.to().exists());
}
