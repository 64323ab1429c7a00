//! Tests imports of ViT, and of the pictures it takes.

use crate::import::test_folder::{named, with, Folder};
use crate::import::{Head, ImportOptions};
use crate::run_file::RunFile;
use serde_json::{json, Value};

fn vit(architecture: &str, more: &Value) -> Value {
    let config = json!({
        "architectures": [architecture],
        "image_size": 8,
        "patch_size": 4,
        "hidden_size": 6,
        "intermediate_size": 10,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "id2label": {"0": "a", "1": "b", "2": "c"},
    });
    with(config, more)
}

fn tensors(prefix: &str) -> Vec<(String, Vec<i64>)> {
    let embeddings: [(&str, &[i64]); 4] = [
        ("embeddings.cls_token", &[1, 1, 6]),
        ("embeddings.position_embeddings", &[1, 5, 6]),
        ("embeddings.patch_embeddings.projection.weight", &[6, 3, 4, 4]),
        ("embeddings.patch_embeddings.projection.bias", &[6]),
    ];
    let mut tensors = named(prefix, &embeddings);
    let layer = "encoder.layer.0.";
    let linear: [(&str, [i64; 2]); 6] = [
        ("attention.attention.query", [6, 6]),
        ("attention.attention.key", [6, 6]),
        ("attention.attention.value", [6, 6]),
        ("attention.output.dense", [6, 6]),
        ("intermediate.dense", [10, 6]),
        ("output.dense", [6, 10]),
    ];
    for (name, [to, from]) in linear {
        tensors.push((format!("{prefix}{layer}{name}.weight"), vec![to, from]));
        tensors.push((format!("{prefix}{layer}{name}.bias"), vec![to]));
    }
    let before = format!("{layer}layernorm_before");
    let after = format!("{layer}layernorm_after");
    for norm in [before.as_str(), after.as_str(), "layernorm"] {
        for part in ["weight", "bias"] {
            tensors.push((format!("{prefix}{norm}.{part}"), vec![6]));
        }
    }
    tensors
}

fn classifier() -> Vec<(String, Vec<i64>)> {
    named("classifier.", &[("weight", &[3, 6]), ("bias", &[3])])
}

fn prepared(folder: &Folder, preprocessor: &Value) {
    let path = folder.place.path().join("small/preprocessor_config.json");
    std::fs::write(path, preprocessor.to_string()).unwrap();
}

const VIT: &str = "\
model: small
vars:
  num_channels: 3
  image_size: 8
  patch_size: 4
  num_positions: 5
  hidden_size: 6
  intermediate_size: 10
  num_hidden_layers: 1
  num_attention_heads: 2
  layer_norm_eps: 1e-12
  num_labels: 3
inputs:
  pixel_values: {shape: [batch, ${num_channels}, ${image_size}, ${image_size}], dtype: float32}
layers:
  - name: vit
    layers:
      - name: embeddings
        layers:
          - Conv2d:
              in_channels: ${num_channels}
              out_channels: ${hidden_size}
              kernel_size: ${patch_size}
              stride: ${patch_size}
            name: patch_embeddings.projection
          - Flatten: {start_dim: 2}
          - Transpose: {dim0: 1, dim1: 2}
            out_variables: [patches]
          - Parameter: {shape: [1, 1, ${hidden_size}]}
            name: cls_token
          - Concat: {dim: 1}
            in_variables: [patches]
            out_variables: [tokens]
          - Parameter: {shape: [1, ${num_positions}, ${hidden_size}]}
            name: position_embeddings
          - Add:
            in_variables: [tokens]
      - name: encoder.layer
        repeat: ${num_hidden_layers}
        layers:
          - Identity:
            out_variables: [residual]
          - LayerNorm: {normalized_shape: ${hidden_size}, eps: ${layer_norm_eps}}
            name: layernorm_before
          - MultiheadAttention:
              embed_dim: ${hidden_size}
              num_heads: ${num_attention_heads}
              batch_first: true
            name: attention.attention
          - Add:
            in_variables: [residual]
            out_variables: [attended]
          - LayerNorm: {normalized_shape: ${hidden_size}, eps: ${layer_norm_eps}}
            name: layernorm_after
          - Linear: {in_features: ${hidden_size}, out_features: ${intermediate_size}}
            name: intermediate.dense
          - GELU
          - Linear: {in_features: ${intermediate_size}, out_features: ${hidden_size}}
            name: output.dense
          - Add:
            in_variables: [attended]
      - LayerNorm: {normalized_shape: ${hidden_size}, eps: ${layer_norm_eps}}
        name: layernorm
  - Select: {dim: 1, index: 0}
  - Linear: {in_features: ${hidden_size}, out_features: ${num_labels}}
    name: classifier
";

#[test]
fn a_classifier_of_pictures_has_their_numbers_and_folder() {
    let config = vit("ViTForImageClassification", &json!({}));
    let folder = Folder::new(&config, &[tensors("vit."), classifier()].concat());
    prepared(
        &folder,
        &json!({"rescale_factor": 0.003_921_568_627_450_98, "image_mean": [0.25, 0.5, 0.75]}),
    );
    let pictures = folder.place.path().join("pictures");
    std::fs::create_dir(&pictures).unwrap();
    let options = ImportOptions { data: Some(pictures), ..ImportOptions::default() };
    let imported = folder.import(&options).unwrap();
    assert_eq!(folder.model_text(), VIT);
    let run = folder.run_text();
    for part in [
        "  normalize: {divide: 255.0, mean: [0.25, 0.5, 0.75], std: [0.5]}\n",
        "Pictures have 8 x 8 points; they are not resized.\n",
        "\nloss: CrossEntropyLoss\n",
        "    vit.embeddings.cls_token.value: vit.embeddings.cls_token\n",
    ] {
        assert!(run.contains(part), "{part} in {run}");
    }
    let [warning] = &imported.warnings[..] else { panic!("{:?}", imported.warnings) };
    assert!(warning.contains("they must have 8 x 8 points"), "{warning}");
    RunFile::from_file(&imported.run).unwrap().data().unwrap();
    let [files, weights] = folder.weights();
    let token = "vit.embeddings.cls_token";
    let found = weights.get(&format!("{token}.value")).unwrap();
    assert!(found.equal(files.get(token).unwrap()));
}

/// Version 5 of transformers has them, and writes those of before unless it is told not to.
const NEW_NAMES: [(&str, &str); 7] = [
    ("encoder.layer", "layers"),
    ("attention.attention.query", "attention.q_proj"),
    ("attention.attention.key", "attention.k_proj"),
    ("attention.attention.value", "attention.v_proj"),
    ("attention.output.dense", "attention.o_proj"),
    ("intermediate.dense", "mlp.fc1"),
    ("output.dense", "mlp.fc2"),
];

#[test]
fn files_with_the_names_of_transformers_5_are_taken() {
    let config = vit("ViTForImageClassification", &json!({}));
    let renamed = |mut name: String| {
        NEW_NAMES.iter().for_each(|(old, new)| name = name.replace(old, new));
        name
    };
    let tensors = [tensors("vit."), classifier()].concat().into_iter();
    let tensors: Vec<_> = tensors.map(|(name, tensor)| (renamed(name), tensor)).collect();
    let folder = Folder::new(&config, &tensors);
    prepared(&folder, &json!({"image_std": [0.5]}));
    folder.import(&ImportOptions::default()).unwrap();
    let (text, old) = (folder.model_text(), VIT.replace("attention.attention", "attention"));
    assert_eq!(text, renamed(old));
    folder.weights();
}

#[test]
fn a_bare_vit_gives_hidden_states_without_its_pooler() {
    let pooler = named("pooler.dense.", &[("weight", &[6, 6]), ("bias", &[6])]);
    let folder = Folder::new(&vit("ViTModel", &json!({})), &[tensors(""), pooler].concat());
    prepared(&folder, &json!({"do_resize": false, "do_rescale": false, "do_normalize": false}));
    let imported = folder.import(&ImportOptions::default()).unwrap();
    assert_eq!(imported.warnings, [""; 0]);
    let text = folder.model_text();
    assert!(!text.contains("classifier") && !text.contains("name: vit\n"), "{text}");
    let run = folder.run_text();
    for part in [
        "  ignore: [pooler.dense.bias, pooler.dense.weight]\n",
        "# data: {train: train.safetensors}\n",
        "\nloss: MSELoss\n",
    ] {
        assert!(run.contains(part), "{part} in {run}");
    }
    folder.weights();
}

#[test]
fn data_of_another_kind_is_refused() {
    let config = vit("ViTForImageClassification", &json!({}));
    let folder = Folder::new(&config, &[tensors("vit."), classifier()].concat());
    let text = folder.place.path().join("text.txt");
    std::fs::write(&text, "text").unwrap();
    let options = ImportOptions { data: Some(text), ..ImportOptions::default() };
    let error = folder.import(&options).unwrap_err();
    assert!(error.contains("text.txt: is no folder; the model takes pictures"), "{error}");
    let error = folder.import(&ImportOptions { head: Head::None, ..options }).unwrap_err();
    assert!(error.contains("the model needs its head"), "{error}");
    let imported = folder.import(&ImportOptions::default()).unwrap();
    assert!(imported.warnings[0].contains("preprocessor_config.json: is missing"));
}

#[test]
fn what_vit_may_have_and_bossman_does_not_is_refused() {
    let cases = [
        (json!({"qkv_bias": false}), json!({}), "`qkv_bias` is false"),
        (json!({"patch_size": 9}), json!({}), "`patch_size` is 9: expected image_size (8) at most"),
        (json!({"image_size": [8, 9]}), json!({}), "`image_size` is [8,9]: expected a number, or"),
        (json!({"hidden_act": "mish"}), json!({}), "`hidden_act` is \"mish\""),
        (json!({}), json!({"rescale_factor": 0}), "`rescale_factor` is 0: expected a number"),
        (json!({}), json!({"image_std": [1, 0, 1]}), "`image_std` is [1,0,1]: expected a number"),
        (json!({}), json!({"image_mean": [1, 0]}), "`image_mean` is [1,0]: expected a number"),
    ];
    for (more, preprocessor, expected) in cases {
        let config = vit("ViTModel", &more);
        let folder = Folder::new(&config, &tensors(""));
        prepared(&folder, &preprocessor);
        let error = folder.import(&ImportOptions::default()).unwrap_err();
        assert!(error.contains(expected) && error.contains("config.json: "), "{error}");
        assert!(!folder.place.path().join("to").exists());
    }
}
