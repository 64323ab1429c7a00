//! Tests imports of BERT and RoBERTa, and of their classifiers.

use crate::import::test_folder::{named, with, Folder};
use crate::import::{Head, ImportOptions};
use serde_json::{json, Value};
use tch::Tensor;

pub(in crate::import) fn bert(architecture: &str, more: &Value) -> Value {
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

pub(in crate::import) fn bert_tensors(prefix: &str, norm: [&str; 2]) -> Vec<(String, Vec<i64>)> {
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

pub(in crate::import) fn dense(layer: &str, [to, from]: [i64; 2]) -> Vec<(String, Vec<i64>)> {
    vec![(format!("{layer}.weight"), vec![to, from]), (format!("{layer}.bias"), vec![to])]
}

pub(in crate::import) const NORM: [&str; 2] = ["weight", "bias"];

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
    assert!(text.contains("padding_idx: 1\n"), "{text}");
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
fn what_encoders_may_have_and_bossman_does_not_is_refused() {
    let cases = [
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
        let folder = Folder::new(&config, &bert_tensors("", NORM));
        let error = folder.import(&ImportOptions::default()).unwrap_err();
        assert!(error.contains(expected) && error.contains("config.json: "), "{error}");
        assert!(!folder.place.path().join("to").exists());
    }
}

#[test]
fn text_and_attention_masks_are_refused_with_advice() {
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
    let inputs = vec!["attention_mask".to_string()];
    let error = folder.import(&ImportOptions { inputs, ..ImportOptions::default() }).unwrap_err();
    assert!(error.contains("key_padding_mask is its opposite"), "{error}");
}
