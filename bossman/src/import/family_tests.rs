//! Tests imports of families whose files have other names or shapes than the model.

use super::*;
use crate::run_file::RunFile;
use crate::StateDict;
use serde_json::{json, Value};
use tch::{Device, Kind, Tensor};
use tempfile::TempDir;

/// A folder as transformers writes it, and a place to import to.
struct Folder {
    place: TempDir,
}

impl Folder {
    /// A folder with this configuration and tensors, whose elements differ.
    fn new(config: &Value, tensors: &[(String, Vec<i64>)]) -> Self {
        let folder = Folder { place: tempfile::tempdir().unwrap() };
        std::fs::create_dir(folder.path()).unwrap();
        std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        let mut weights = StateDict::default();
        for (name, sizes) in tensors {
            weights.insert(name, &Tensor::randn(&sizes[..], (Kind::Float, Device::Cpu)));
        }
        weights.save(folder.path().join("model.safetensors")).unwrap();
        folder
    }

    fn path(&self) -> PathBuf {
        self.place.path().join("small")
    }

    fn import(&self, options: &ImportOptions) -> Result<Imported, String> {
        import(&self.path(), &self.place.path().join("to"), options).map_err(|e| e.to_string())
    }

    /// The model file without its comments.
    fn model_text(&self) -> String {
        let text = std::fs::read_to_string(self.place.path().join("to/model.yaml")).unwrap();
        text.lines().filter(|line| !line.starts_with('#')).map(|line| format!("{line}\n")).collect()
    }

    fn run_text(&self) -> String {
        std::fs::read_to_string(self.place.path().join("to/run.yaml")).unwrap()
    }

    /// The files' tensors, and the weights that the run begins with.
    fn weights(&self) -> [StateDict; 2] {
        let run = RunFile::from_file(self.place.path().join("to/run.yaml")).unwrap();
        let model = Model::from_file(&run.model).unwrap();
        let named = run.weights.unwrap();
        let files = StateDict::load(&named.path).unwrap();
        let weights = named.rename.apply(&files, &model).unwrap().fit_to(model.graph()).unwrap();
        [files, weights]
    }
}

fn with(mut config: Value, more: &Value) -> Value {
    for (key, value) in more.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

/// Names with sizes, after a prefix.
fn named(prefix: &str, sizes: &[(&str, &[i64])]) -> Vec<(String, Vec<i64>)> {
    sizes.iter().map(|(name, sizes)| (format!("{prefix}{name}"), sizes.to_vec())).collect()
}

fn gpt2(more: &Value) -> Value {
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

fn gpt2_tensors(prefix: &str) -> Vec<(String, Vec<i64>)> {
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

fn bert(architecture: &str, more: &Value) -> Value {
    let config = json!({
        "architectures": [architecture],
        "vocab_size": 32,
        "hidden_size": 8,
        "intermediate_size": 12,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 16,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    });
    with(config, more)
}

fn bert_tensors(prefix: &str, norm: [&str; 2]) -> Vec<(String, Vec<i64>)> {
    let embeddings: [(&str, &[i64]); 3] = [
        ("word_embeddings.weight", &[32, 8]),
        ("position_embeddings.weight", &[16, 8]),
        ("token_type_embeddings.weight", &[2, 8]),
    ];
    let linear: [(&str, [i64; 2]); 6] = [
        ("attention.self.query", [8, 8]),
        ("attention.self.key", [8, 8]),
        ("attention.self.value", [8, 8]),
        ("attention.output.dense", [8, 8]),
        ("intermediate.dense", [12, 8]),
        ("output.dense", [8, 12]),
    ];
    let mut tensors = named(&format!("{prefix}embeddings."), &embeddings);
    let mut norms = vec![format!("{prefix}embeddings.LayerNorm")];
    for layer in 0..2 {
        let layer = format!("{prefix}encoder.layer.{layer}.");
        for (name, [to, from]) in linear {
            tensors.push((format!("{layer}{name}.weight"), vec![to, from]));
            tensors.push((format!("{layer}{name}.bias"), vec![to]));
        }
        norms.extend(["attention.output", "output"].map(|part| format!("{layer}{part}.LayerNorm")));
    }
    let names = norms.iter().flat_map(|layer| norm.map(|part| format!("{layer}.{part}")));
    tensors.extend(names.map(|name| (name, vec![8])));
    tensors
}

fn dense(layer: &str, [to, from]: [i64; 2]) -> Vec<(String, Vec<i64>)> {
    vec![(format!("{layer}.weight"), vec![to, from]), (format!("{layer}.bias"), vec![to])]
}

const NORM: [&str; 2] = ["weight", "bias"];

const BERT: &str = "\
layers:
  - name: embeddings
    layers:
      - Embedding: {num_embeddings: ${vocab_size}, embedding_dim: ${hidden_size}, padding_idx: 0}
        name: word_embeddings
        out_variables: [words]
      - Slice: {dim: 1, end: 1}
      - Scale: {factor: 0.0}
      - LearnedPositions:
          num_positions: ${type_vocab_size}
          d_model: ${hidden_size}
          batch_first: true
        name: token_type_embeddings
      - Add:
        in_variables: [words]
      - LearnedPositions:
          num_positions: ${max_position_embeddings}
          d_model: ${hidden_size}
          batch_first: true
        name: position_embeddings
      - LayerNorm: {normalized_shape: ${hidden_size}, eps: ${layer_norm_eps}}
        name: LayerNorm
  - name: encoder.layer
    repeat: ${num_hidden_layers}
    layers:
      - Identity:
        out_variables: [residual]
      - MultiheadAttention:
          embed_dim: ${hidden_size}
          num_heads: ${num_attention_heads}
          batch_first: true
        name: attention.self
      - Add:
        in_variables: [residual]
      - LayerNorm: {normalized_shape: ${hidden_size}, eps: ${layer_norm_eps}}
        name: attention.output.LayerNorm
        out_variables: [attended]
      - Linear: {in_features: ${hidden_size}, out_features: ${intermediate_size}}
        name: intermediate.dense
      - GELU
      - Linear: {in_features: ${intermediate_size}, out_features: ${hidden_size}}
        name: output.dense
      - Add:
        in_variables: [attended]
      - LayerNorm: {normalized_shape: ${hidden_size}, eps: ${layer_norm_eps}}
        name: output.LayerNorm
";

#[test]
fn a_bare_bert_gives_hidden_states() {
    let pooler = dense("pooler.dense", [8, 8]);
    let tensors = [bert_tensors("", NORM), pooler].concat();
    let folder = Folder::new(&bert("BertModel", &json!({})), &tensors);
    folder.import(&ImportOptions::default()).unwrap();
    let text = folder.model_text();
    assert!(text.ends_with(BERT), "{text}");
    let run = folder.run_text();
    let ignored = "  ignore: [pooler.dense.bias, pooler.dense.weight]\n";
    assert!(run.contains(ignored) && run.contains("loss: MSELoss\n"), "{run}");
    let [files, weights] = folder.weights();
    let of = |part: &str| files.get(&format!("encoder.layer.1.attention.self.{part}")).unwrap();
    let joined = Tensor::cat(&["query.bias", "key.bias", "value.bias"].map(of), 0);
    let name = "encoder.layer.1.attention.self.in_proj_bias";
    assert!(weights.get(name).unwrap().equal(&joined));
}

#[test]
fn a_classifier_has_its_labels_and_loss() {
    let tensors = [
        bert_tensors("bert.", ["gamma", "beta"]),
        dense("bert.pooler.dense", [8, 8]),
        dense("classifier", [3, 8]),
    ];
    let labels = json!({"id2label": {"0": "a", "1": "b", "2": "c"}, "classifier_dropout": 0.3});
    let config = bert("BertForSequenceClassification", &labels);
    let folder = Folder::new(&config, &tensors.concat());
    let inputs = ["input_ids", "token_type_ids", "key_padding_mask"].map(String::from).to_vec();
    folder.import(&ImportOptions { inputs, ..ImportOptions::default() }).unwrap();
    let text = folder.model_text();
    let head = "\
      - Select: {dim: 1, index: 0}
      - Linear: {in_features: ${hidden_size}, out_features: ${hidden_size}}
        name: pooler.dense
      - Tanh
  - Dropout: {p: 0.3}
  - Linear: {in_features: ${hidden_size}, out_features: ${num_labels}}
    name: classifier
";
    assert!(text.ends_with(head), "{text}");
    for part in ["  num_labels: 3\n", "        input: token_type_ids\n", "[key_padding_mask]\n"] {
        assert!(text.contains(part), "{text}");
    }
    assert!(folder.run_text().contains("\nloss: CrossEntropyLoss\n"), "{}", folder.run_text());
    let [files, weights] = folder.weights();
    let gamma = files.get("bert.encoder.layer.0.output.LayerNorm.gamma").unwrap();
    assert!(weights.get("bert.encoder.layer.0.output.LayerNorm.weight").unwrap().equal(gamma));
    for (more, loss) in [
        (json!({"num_labels": 3, "problem_type": "regression"}), "\nloss: MSELoss\n"),
        (json!({"num_labels": 3, "problem_type": "multi_label_classification"}), "BCEWithLogits"),
    ] {
        let config = bert("BertForSequenceClassification", &more);
        let folder = Folder::new(&config, &tensors.concat());
        folder.import(&ImportOptions::default()).unwrap();
        assert!(folder.run_text().contains(loss), "{}", folder.run_text());
    }
}

#[test]
fn positions_of_roberta_begin_after_the_padding_token() {
    let tensors = [
        bert_tensors("roberta.", NORM),
        dense("classifier.dense", [8, 8]),
        dense("classifier.out_proj", [1, 8]),
    ];
    let one = json!({"id2label": {"0": "a"}, "hidden_dropout_prob": 0.1});
    let config = bert("RobertaForSequenceClassification", &one);
    let folder = Folder::new(&config, &tensors.concat());
    folder.import(&ImportOptions::default()).unwrap();
    let text = folder.model_text();
    let head = "\
  - Select: {dim: 1, index: 0}
  - Dropout: {p: 0.1}
  - Linear: {in_features: ${hidden_size}, out_features: ${hidden_size}}
    name: classifier.dense
  - Tanh
  - Dropout: {p: 0.1}
  - Linear: {in_features: ${hidden_size}, out_features: ${num_labels}}
    name: classifier.out_proj
";
    assert!(text.ends_with(head) && text.contains("offset: 2\n"), "{text}");
    assert!(text.contains("padding_idx: 1}\n"), "{text}");
    assert!(folder.run_text().contains("\nloss: MSELoss\n"), "{}", folder.run_text());
    folder.weights();
}

#[test]
fn a_head_that_is_not_known_is_left_out_on_request() {
    let tensors = [bert_tensors("bert.", NORM), dense("cls.predictions.transform.dense", [8, 8])];
    let config = bert("BertForMaskedLM", &json!({"pad_token_id": null}));
    let folder = Folder::new(&config, &tensors.concat());
    let error = folder.import(&ImportOptions::default()).unwrap_err();
    assert!(error.contains("BossMan has no head for MaskedLM; `--head none`"), "{error}");
    folder.import(&ImportOptions { head: Head::None, ..ImportOptions::default() }).unwrap();
    let text = folder.model_text();
    assert!(!text.contains("padding_idx") && !text.contains("cls"), "{text}");
}

#[test]
fn what_bossman_does_not_have_is_refused_with_key_and_file() {
    let cases = [
        (gpt2(&json!({"activation_function": "quick_gelu"})), "`activation_function` is \"quick"),
        (gpt2(&json!({"scale_attn_by_inverse_layer_idx": true})), "`scale_attn_by_inverse_layer_"),
        (gpt2(&json!({"reorder_and_upcast_attn": true})), "`reorder_and_upcast_attn` is true"),
        (gpt2(&json!({"scale_attn_weights": false})), "`scale_attn_weights` is false"),
        (gpt2(&json!({"add_cross_attention": true})), "`add_cross_attention` is true"),
        (gpt2(&json!({"n_layer": 801})), "`n_layer` is 801: expected 800 at most"),
        (bert("BertModel", &json!({"hidden_act": "mish"})), "`hidden_act` is \"mish\""),
        (bert("BertModel", &json!({"is_decoder": true})), "`is_decoder` is true"),
        (
            bert("BertModel", &json!({"position_embedding_type": "relative_key"})),
            "`position_embedding_type` is \"relative_key\"",
        ),
        (bert("RobertaModel", &json!({"pad_token_id": 15})), "expected more than 16"),
        (bert("RobertaModel", &json!({"pad_token_id": null})), "`pad_token_id` is null"),
        (
            bert("BertForSequenceClassification", &json!({"problem_type": "other"})),
            "`problem_type` is \"other\": expected regression",
        ),
    ];
    for (config, expected) in cases {
        let tensors = [bert_tensors("", NORM), gpt2_tensors("")].concat();
        let folder = Folder::new(&config, &tensors);
        let error = folder.import(&ImportOptions::default()).unwrap_err();
        assert!(error.contains(expected) && error.contains("config.json: "), "{error}");
        assert!(!folder.place.path().join("to").exists());
    }
}

#[test]
fn text_is_no_data_for_a_classifier() {
    let config = bert("BertForSequenceClassification", &json!({}));
    let tensors = [
        bert_tensors("bert.", NORM),
        dense("bert.pooler.dense", [8, 8]),
        dense("classifier", [2, 8]),
    ];
    let folder = Folder::new(&config, &tensors.concat());
    let options = ImportOptions { data: Some("text.txt".into()), ..ImportOptions::default() };
    let error = folder.import(&options).unwrap_err();
    assert!(error.contains("the model tells of whole sequences"), "{error}");
}
