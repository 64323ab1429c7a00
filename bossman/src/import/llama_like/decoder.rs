//! The table from keys of `config.json` to a model of decoder layers, which Llama and its like
//! share. Blocks have the names of transformers' modules, so that parameters have the names of the
//! files.

use super::decoder_layer::{Activation, DecoderLayers, FamilyStyle, LayerStyle};
use super::rope::{Rope, Ropes};
use crate::import::family::{FamilyModel, Output, Request, Samples};
use crate::import::hf_config::HfConfig;
use crate::import::model_text::{var, Block, Entry, LayerText, ModelInput, SEQUENCES};
use crate::run_file::yaml_text::Yaml;
use crate::BossManError;
use serde_json::json;

const INPUTS: [ModelInput; 2] = [
    ModelInput { name: "input_ids", shape: SEQUENCES, dtype: "int64" },
    ModelInput { name: "key_padding_mask", shape: SEQUENCES, dtype: "bool" },
];

/// The most decoder layers. A model file has 10,000 layers at most, and each of these is 7 to 9.
const MAX_DECODER_LAYERS: u64 = 1000;

/// The values that a configuration class of transformers takes for keys that are absent.
pub(super) struct Defaults {
    pub(super) vocab_size: u64,
    pub(super) hidden_size: u64,
    pub(super) intermediate_size: u64,
    pub(super) num_hidden_layers: u64,
    pub(super) num_attention_heads: u64,
    /// `None` is `num_attention_heads`.
    pub(super) num_key_value_heads: Option<u64>,
    /// `None` is `hidden_size` by `num_attention_heads`.
    pub(super) head_dim: Option<u64>,
    pub(super) max_position_embeddings: u64,
    pub(super) rms_norm_eps: f64,
    pub(super) rope_theta: f64,
    pub(super) tie_word_embeddings: bool,
    pub(super) pad_token_id: Option<u64>,
}

/// Builds a model. `styles` tells the layers apart; it gets their number.
pub(super) fn decoder(
    request: &Request<'_>,
    defaults: &Defaults,
    style: FamilyStyle,
    styles: impl Fn(usize) -> Result<Vec<LayerStyle>, BossManError>,
) -> Result<FamilyModel, BossManError> {
    let ropes = |config: &HfConfig| Rope::of(config, defaults.rope_theta).map(Ropes::from);
    decoder_with(request, defaults, style, ropes, styles)
}

/// The same with angles that the family reads itself.
pub(super) fn decoder_with(
    request: &Request<'_>,
    defaults: &Defaults,
    style: FamilyStyle,
    ropes: impl Fn(&HfConfig) -> Result<Ropes, BossManError>,
    styles: impl Fn(usize) -> Result<Vec<LayerStyle>, BossManError>,
) -> Result<FamilyModel, BossManError> {
    let config = request.config;
    expect_plain(config)?;
    expect_activation(config, style.activation)?;
    let size = |key: &str, default: u64| config.size_or(key, default);
    let heads = size("num_attention_heads", defaults.num_attention_heads)?;
    let key_value_heads =
        config.size_or_none("num_key_value_heads", defaults.num_key_value_heads)?;
    let count = size("num_hidden_layers", defaults.num_hidden_layers)?;
    if count > MAX_DECODER_LAYERS {
        let why = format!("expected {MAX_DECODER_LAYERS} at most");
        return Err(config.refused("num_hidden_layers", &why));
    }
    let styles = styles(usize::try_from(count).unwrap_or(usize::MAX))?;
    let vocab_size = size("vocab_size", defaults.vocab_size)?;
    let hidden_size = size("hidden_size", defaults.hidden_size)?;
    let max_positions = size("max_position_embeddings", defaults.max_position_embeddings)?;
    let mut vars: Vec<(&'static str, Yaml)> = vec![
        ("vocab_size", vocab_size.into()),
        ("hidden_size", hidden_size.into()),
        ("intermediate_size", size("intermediate_size", defaults.intermediate_size)?.into()),
        ("num_hidden_layers", count.into()),
        ("num_attention_heads", heads.into()),
        ("num_key_value_heads", key_value_heads.unwrap_or(heads).into()),
    ];
    let head_dim = config.size("head_dim")?.or(defaults.head_dim);
    vars.extend(head_dim.map(|size| ("head_dim", size.into())));
    let window = styles.iter().find_map(|style| style.window);
    vars.extend(window.map(|window| ("sliding_window", window.into())));
    let eps = config.number_or("rms_norm_eps", defaults.rms_norm_eps)?;
    vars.push(("rms_norm_eps", eps.into()));
    let inputs = request.choose_inputs(&INPUTS)?;
    let layers = DecoderLayers {
        style,
        has_head_dim: head_dim.is_some(),
        attention_dropout: config.number_or("attention_dropout", 0.0)?,
        ropes: ropes(config)?,
        max_positions,
        masks: inputs.iter().skip(1).map(|input| input.name.to_string()).collect(),
    };
    let (headers, embedding) = (request.headers, "embed_tokens.weight");
    let is_bare = headers.has(embedding) && !headers.has(&format!("model.{embedding}"));
    let prefix = if is_bare { "" } else { "model." };
    let padding = padding(config, defaults.pad_token_id, vocab_size)?;
    let body = body(&layers, &styles, hidden_size, padding);
    let mut entries: Vec<Entry> = match is_bare {
        true => body,
        false => vec![Block { name: "model".into(), repeat: None, entries: body }.into()],
    };
    let is_tied = config.flag_or("tie_word_embeddings", defaults.tie_word_embeddings)?;
    let output = match (request.has_head(), is_tied) {
        (true, true) => Output::TiedLogits,
        (true, false) => Output::Logits,
        (false, _) => Output::HiddenStates,
    };
    entries.extend(head(output, prefix));
    if let Some(cap) = style.logit_cap.filter(|_| output != Output::HiddenStates) {
        let scale = |factor: f64| LayerText::new("Scale").argument("factor", factor);
        let capped = [scale(1.0 / cap), LayerText::new("Tanh"), scale(cap)];
        entries.extend(capped.map(Entry::from));
    }
    // Angles were saved with the weights by early versions of transformers.
    let mut leftovers = vec![
        format!("{prefix}rotary_emb.inv_freq"),
        format!("{prefix}layers.{{i}}.self_attn.rotary_emb.inv_freq"),
    ];
    if output != Output::Logits {
        leftovers.push("lm_head.weight".into());
    }
    let samples = Samples::Tokens { vocab_size, max_positions };
    Ok(FamilyModel { vars, inputs, entries, samples, leftovers, output })
}

/// Refuses what no family here has.
fn expect_plain(config: &HfConfig) -> Result<(), BossManError> {
    let why = "its tensors are packed; take the folder of the model that is not quantized";
    config.expect("quantization_config", &[], why)?;
    let why = "layers with sizes of their own are not known; take a model without this key";
    config.expect("per_layer_config", &[], why)?;
    let why = "attention to later positions is not known for this family; take a model without it";
    config.expect("is_causal", &[json!(true)], why)
}

/// Refuses an MLP with another function of its gate than the family has.
fn expect_activation(config: &HfConfig, activation: Activation) -> Result<(), BossManError> {
    match activation {
        Activation::Silu => {
            let known = [json!("silu"), json!("swish")];
            config.expect("hidden_act", &known, "this family is known with `silu` alone")
        }
        Activation::GeluTanh => {
            let why = "this family is known with `gelu_pytorch_tanh` alone";
            config.expect("hidden_activation", &[json!("gelu_pytorch_tanh")], why)
        }
    }
}

/// The row of the embedding that is not trained: that of the padding token. A number below 0 counts
/// from the last row, as in PyTorch. One that is no row means none.
fn padding(
    config: &HfConfig,
    default: Option<u64>,
    vocab_size: u64,
) -> Result<Option<u64>, BossManError> {
    let key = "pad_token_id";
    let row = match config.value(key) {
        None if config.is_null(key) => None,
        None => default,
        Some(value) => match value.as_i64().filter(|token| *token < 0) {
            Some(token) => vocab_size.checked_add_signed(token),
            None => config.count(key)?,
        },
    };
    Ok(row.filter(|row| *row < vocab_size))
}

/// From the embedding to the last norm. Equal layers are one block that repeats.
fn body(
    layers: &DecoderLayers,
    styles: &[LayerStyle],
    hidden_size: u64,
    padding: Option<u64>,
) -> Vec<Entry> {
    let mut embedding = LayerText::new("Embedding")
        .argument("num_embeddings", var("vocab_size"))
        .argument("embedding_dim", var("hidden_size"));
    if let Some(row) = padding {
        embedding = embedding.argument("padding_idx", row);
    }
    let mut entries: Vec<Entry> = vec![embedding.named("embed_tokens").into()];
    if layers.style.scales_embedding {
        let factor = (hidden_size as f64).sqrt();
        entries.push(LayerText::new("Scale").argument("factor", factor).into());
    }
    match styles.split_first() {
        Some((first, others)) if others.iter().all(|other| other == first) => {
            let repeat = Some(var("num_hidden_layers"));
            let one = layers.layer(*first, "");
            entries.push(Block { name: "layers".into(), repeat, entries: one }.into());
        }
        _ => {
            for (number, style) in styles.iter().enumerate() {
                let name = format!("layers.{number}");
                // Blocks without `repeat` share their variables with those beside them.
                let one = layers.layer(*style, &format!("_{number}"));
                entries.push(Block { name, repeat: None, entries: one }.into());
            }
        }
    }
    entries.push(layers.norm("norm").into());
    entries
}

/// The layer that makes logits, if the model has one.
fn head(output: Output, prefix: &str) -> Option<Entry> {
    let head = LayerText::new("Linear")
        .argument("in_features", var("hidden_size"))
        .argument("out_features", var("vocab_size"))
        .argument("bias", false)
        .named("lm_head");
    match output {
        Output::Logits => Some(head.into()),
        Output::TiedLogits => Some(head.shares(&format!("{prefix}embed_tokens")).into()),
        // Decoders of texts have no other outputs.
        _ => None,
    }
}
