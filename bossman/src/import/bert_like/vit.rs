//! ViT: patches of a picture become tokens, with one more in front, which classifies the picture.
//! Its blocks normalise before attention and before the linear layers.

use super::labels::labels;
use super::parts::{activation, add, attention, depth, dropout, keep, layer_norm, linear};
use crate::import::family::{Family, FamilyModel, Output, Request, Samples};
use crate::import::hf_config::HfConfig;
use crate::import::model_text::{var, Block, Entry, LayerText, ModelInput};
use crate::rename::Source;
use crate::run_file::yaml_text::{list, Yaml};
use crate::BossManError;
use serde_json::json;

pub(in crate::import) const VIT: Family =
    Family { architectures: &["ViTForImageClassification", "ViTModel"], model: vit };

const INPUTS: [ModelInput; 1] = [ModelInput {
    name: "pixel_values",
    shape: "[batch, ${num_channels}, ${image_size}, ${image_size}]",
    dtype: "float32",
}];

/// The table from keys to layers. The defaults are those of `ViTConfig`.
fn vit(request: &Request<'_>) -> Result<FamilyModel, BossManError> {
    let config = request.config;
    let why = "BossMan's attention has biases in all of its projections, or in none";
    config.expect("qkv_bias", &[json!(true)], why)?;
    let channels = config.size_or("num_channels", 3)?;
    let size = side(config, "image_size", 224)?;
    let patch = side(config, "patch_size", 16)?;
    if patch > size {
        return Err(config.refused("patch_size", &format!("expected image_size ({size}) at most")));
    }
    let patches = size / patch;
    // One more for the token in front.
    let positions = patches.saturating_mul(patches).saturating_add(1);
    let vars: Vec<(&'static str, Yaml)> = vec![
        ("num_channels", channels.into()),
        ("image_size", size.into()),
        ("patch_size", patch.into()),
        ("num_positions", positions.into()),
        ("hidden_size", config.size_or("hidden_size", 768)?.into()),
        ("intermediate_size", config.size_or("intermediate_size", 3072)?.into()),
        ("num_hidden_layers", depth(config, "num_hidden_layers", 12)?.into()),
        ("num_attention_heads", config.size_or("num_attention_heads", 12)?.into()),
        ("layer_norm_eps", config.number_or("layer_norm_eps", 1e-12)?.into()),
    ];
    let inputs = request.choose_inputs(&INPUTS)?;
    let (headers, class_token) = (request.headers, "embeddings.cls_token");
    let is_bare = headers.has(class_token) && !headers.has(&format!("vit.{class_token}"));
    let first = format!("{}layers.0.layernorm_before.weight", if is_bare { "" } else { "vit." });
    let body = body(config, if headers.has(&first) { &NEW } else { &OLD })?;
    let (prefix, entries) = match is_bare {
        true => ("", body),
        false => ("vit.", vec![Block { name: "vit".into(), repeat: None, entries: body }.into()]),
    };
    let mut model = FamilyModel {
        vars,
        inputs,
        entries,
        samples: Samples::Pictures { channels, size },
        leftovers: leftovers(prefix),
        output: Output::HiddenStates,
    };
    if request.has_head() {
        let (count, output) = labels(config)?;
        model.output = output;
        model.vars.push(("num_labels", count.into()));
        let first = LayerText::new("Select").argument("dim", 1u64).argument("index", 0u64);
        let classifier = linear("classifier", [var("hidden_size"), var("num_labels")]);
        model.entries.push(first.into());
        model.entries.push(classifier.into());
    } else {
        model.leftovers.extend(["classifier.weight", "classifier.bias"].map(String::from));
    }
    Ok(model)
}

/// The side of a square: a number, or the same one twice.
fn side(config: &HfConfig, key: &str, default: u64) -> Result<u64, BossManError> {
    match config.value(key).and_then(|value| value.as_array()).map(Vec::as_slice) {
        None => config.size_or(key, default),
        Some([height, width]) if height == width && height.as_u64().is_some_and(|one| one > 0) => {
            Ok(height.as_u64().unwrap_or(default))
        }
        Some(_) => Err(config.refused(key, "expected a number, or the same one twice")),
    }
}

/// The names of a block's layers in the files.
struct Names {
    blocks: &'static str,
    attention: &'static str,
    /// The projections to queries, keys and values.
    parts: [&'static str; 3],
    output: &'static str,
    wide: &'static str,
    narrow: &'static str,
}

/// Of folders that `save_pretrained` wrote.
const OLD: Names = Names {
    blocks: "encoder.layer",
    attention: "attention.attention",
    parts: ["attention.attention.query", "attention.attention.key", "attention.attention.value"],
    output: "attention.output.dense",
    wide: "intermediate.dense",
    narrow: "output.dense",
};
/// Of the module itself in version 5 of transformers, which writes the old ones unless it is told
/// not to.
const NEW: Names = Names {
    blocks: "layers",
    attention: "attention",
    parts: ["attention.q_proj", "attention.k_proj", "attention.v_proj"],
    output: "attention.o_proj",
    wide: "mlp.fc1",
    narrow: "mlp.fc2",
};

/// From the picture to the last norm.
fn body(config: &HfConfig, names: &Names) -> Result<Vec<Entry>, BossManError> {
    let mut embeddings = embeddings();
    embeddings.extend(dropout(config.number_or("hidden_dropout_prob", 0.0)?));
    let embeddings = Block { name: "embeddings".into(), repeat: None, entries: embeddings };
    let repeat = Some(var("num_hidden_layers"));
    let blocks = Block { name: names.blocks.into(), repeat, entries: block(config, names)? };
    Ok(vec![embeddings.into(), blocks.into(), norm("layernorm").into()])
}

/// A token for each patch, the one in front, and the positions of all.
fn embeddings() -> Vec<Entry> {
    let patches = LayerText::new("Conv2d")
        .argument("in_channels", var("num_channels"))
        .argument("out_channels", var("hidden_size"))
        .argument("kernel_size", var("patch_size"))
        .argument("stride", var("patch_size"))
        .named("patch_embeddings.projection");
    let flat = LayerText::new("Flatten").argument("start_dim", 2u64);
    let turned = LayerText::new("Transpose").argument("dim0", 1u64).argument("dim1", 2u64);
    let joined = LayerText::new("Concat").argument("dim", 1u64).takes(&["patches".into()]);
    vec![
        patches.into(),
        flat.into(),
        turned.gives(&["patches".into()]).into(),
        parameter("cls_token", 1u64.into()).into(),
        joined.gives(&["tokens".into()]).into(),
        parameter("position_embeddings", var("num_positions")).into(),
        add("tokens").into(),
    ]
}

/// A learned tensor of so many rows, which the files have under the name of its layer.
fn parameter(name: &str, rows: Yaml) -> LayerText {
    LayerText::new("Parameter")
        .argument("shape", list([Yaml::from(1u64), rows, var("hidden_size")]))
        .named(name)
        .made_of("value", &[name.into()])
}

/// A repeated block.
fn block(config: &HfConfig, names: &Names) -> Result<Vec<Entry>, BossManError> {
    let of_states = config.number_or("hidden_dropout_prob", 0.0)?;
    let of_weights = config.number_or("attention_probs_dropout_prob", 0.0)?;
    let three = |kind: &str| names.parts.map(|part| Source::from(format!("{part}.{kind}")));
    let output = |kind: &str| Source::from(format!("{}.{kind}", names.output));
    let sizes = ["hidden_size", "num_attention_heads"];
    let attention = attention(names.attention, sizes, of_weights, &[])
        .made_of("in_proj_weight", &three("weight"))
        .made_of("in_proj_bias", &three("bias"))
        .made_of("out_proj.weight", &[output("weight")])
        .made_of("out_proj.bias", &[output("bias")]);
    let wide = [var("hidden_size"), var("intermediate_size")];
    let narrow = [var("intermediate_size"), var("hidden_size")];
    let mut entries = vec![keep("residual"), norm("layernorm_before").into(), attention.into()];
    entries.extend(dropout(of_states));
    entries.push(add("residual").gives(&["attended".into()]).into());
    entries.push(norm("layernorm_after").into());
    entries.push(linear(names.wide, wide).into());
    entries.push(activation(config, "hidden_act", "gelu")?.into());
    entries.push(linear(names.narrow, narrow).into());
    entries.extend(dropout(of_states));
    entries.push(add("attended").into());
    Ok(entries)
}

fn norm(name: &str) -> LayerText {
    layer_norm(name, ["hidden_size", "layer_norm_eps"])
}

/// The tensors of the pooler and of training without labels.
fn leftovers(prefix: &str) -> Vec<String> {
    ["pooler.dense.weight", "pooler.dense.bias", "embeddings.mask_token"]
        .map(|name| format!("{prefix}{name}"))
        .to_vec()
}
