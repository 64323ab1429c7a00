//! Llama and SmolLM3: decoder layers of `LlamaAttention` and `LlamaMLP`. Blocks have the names of
//! transformers' modules, so that parameters have the names of the files.

use super::family::{Family, FamilyModel, Output, Request};
use super::hf_config::HfConfig;
use super::model_text::{null, var, Block, Entry, LayerText, ModelInput};
use super::rope::Rope;
use crate::run_file::yaml_text::Yaml;
use crate::BossManError;
use serde_json::json;

pub(super) const LLAMA: Family =
    Family { architectures: &["LlamaForCausalLM", "LlamaModel"], model: llama };
pub(super) const SMOLLM3: Family =
    Family { architectures: &["SmolLM3ForCausalLM", "SmolLM3Model"], model: smollm3 };

const INPUTS: [ModelInput; 2] = [
    ModelInput { name: "input_ids", dtype: "int64" },
    ModelInput { name: "key_padding_mask", dtype: "bool" },
];

/// The most decoder layers. A model file has 10,000 layers at most, and each of these is 7.
const MAX_DECODER_LAYERS: u64 = 1000;

/// The values that transformers' class takes for keys that are absent.
struct Defaults {
    vocab_size: u64,
    hidden_size: u64,
    intermediate_size: u64,
    num_hidden_layers: u64,
    num_attention_heads: u64,
    /// `None` is `num_attention_heads`.
    num_key_value_heads: Option<u64>,
    max_position_embeddings: u64,
    rope_theta: f64,
    tie_word_embeddings: bool,
}

/// Of `LlamaConfig`.
const LLAMA_DEFAULTS: Defaults = Defaults {
    vocab_size: 32000,
    hidden_size: 4096,
    intermediate_size: 11008,
    num_hidden_layers: 32,
    num_attention_heads: 32,
    num_key_value_heads: None,
    max_position_embeddings: 2048,
    rope_theta: 10000.0,
    tie_word_embeddings: false,
};

/// Of `SmolLM3Config`.
const SMOLLM3_DEFAULTS: Defaults = Defaults {
    vocab_size: 128_256,
    hidden_size: 2048,
    intermediate_size: 11008,
    num_hidden_layers: 36,
    num_attention_heads: 16,
    num_key_value_heads: Some(4),
    max_position_embeddings: 32768,
    rope_theta: 2_000_000.0,
    tie_word_embeddings: true,
};

/// Whether the positions of a decoder layer are turned into queries and keys.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rotation {
    On,
    Off,
}

fn llama(request: &Request<'_>) -> Result<FamilyModel, BossManError> {
    let config = request.config;
    config.expect(
        "pretraining_tp",
        &[json!(1)],
        "products are not cut in parts; only 1 is known",
    )?;
    decoder(request, &LLAMA_DEFAULTS, |count| Ok(vec![Rotation::On; count]))
}

fn smollm3(request: &Request<'_>) -> Result<FamilyModel, BossManError> {
    let config = request.config;
    let why = "BossMan's LlamaAttention has no sliding window";
    config.expect("use_sliding_window", &[json!(false)], why)?;
    let layer_types = config.list("layer_types")?.unwrap_or_default();
    if layer_types.iter().any(|kind| kind != "full_attention") {
        return Err(config.refused("layer_types", why));
    }
    decoder(request, &SMOLLM3_DEFAULTS, |count| rotations(config, count))
}

/// Which of SmolLM3's layers turn queries and keys.
fn rotations(config: &HfConfig, count: usize) -> Result<Vec<Rotation>, BossManError> {
    let key = "no_rope_layers";
    let Some(listed) = config.list(key)?.filter(|listed| !listed.is_empty()) else {
        let interval = config.size_or("no_rope_layer_interval", 4)?;
        let rotation = |number: u64| match number.is_multiple_of(interval) {
            true => Rotation::Off,
            false => Rotation::On,
        };
        return Ok((1..).map(rotation).take(count).collect());
    };
    let rotations = listed.iter().map(|value| match value.as_u64() {
        Some(1) => Ok(Rotation::On),
        Some(0) => Ok(Rotation::Off),
        _ => Err(config.refused(key, "expected a list of 1 and 0")),
    });
    let rotations = rotations.collect::<Result<Vec<_>, _>>()?;
    match rotations.len() == count {
        true => Ok(rotations),
        false => {
            let why = format!("expected a list of num_hidden_layers ({count}) numbers");
            Err(config.refused(key, &why))
        }
    }
}

/// The table from keys to layers.
fn decoder(
    request: &Request<'_>,
    defaults: &Defaults,
    rotations: impl Fn(usize) -> Result<Vec<Rotation>, BossManError>,
) -> Result<FamilyModel, BossManError> {
    let config = request.config;
    let why = "its tensors are packed; take the folder of the model that is not quantized";
    config.expect("quantization_config", &[], why)?;
    let silu = [json!("silu"), json!("swish")];
    config.expect("hidden_act", &silu, "BossMan's LlamaMLP has `silu` alone")?;
    let size = |key: &str, default: u64| config.size_or(key, default);
    let heads = size("num_attention_heads", defaults.num_attention_heads)?;
    let key_value_heads = defaults.num_key_value_heads.unwrap_or(heads);
    let count = size("num_hidden_layers", defaults.num_hidden_layers)?;
    if count > MAX_DECODER_LAYERS {
        let why = format!("expected {MAX_DECODER_LAYERS} at most");
        return Err(config.refused("num_hidden_layers", &why));
    }
    let vocab_size = size("vocab_size", defaults.vocab_size)?;
    let max_positions = size("max_position_embeddings", defaults.max_position_embeddings)?;
    let mut vars: Vec<(&'static str, Yaml)> = vec![
        ("vocab_size", vocab_size.into()),
        ("hidden_size", size("hidden_size", defaults.hidden_size)?.into()),
        ("intermediate_size", size("intermediate_size", defaults.intermediate_size)?.into()),
        ("num_hidden_layers", count.into()),
        ("num_attention_heads", heads.into()),
        ("num_key_value_heads", size("num_key_value_heads", key_value_heads)?.into()),
    ];
    vars.extend(config.size("head_dim")?.map(|size| ("head_dim", size.into())));
    vars.push(("rms_norm_eps", config.number_or("rms_norm_eps", 1e-6)?.into()));
    let rotations = rotations(usize::try_from(count).unwrap_or(usize::MAX))?;
    let inputs = request.choose_inputs(&INPUTS)?;
    let parts = Parts {
        config,
        rope: Rope::of(config, defaults.rope_theta)?,
        max_positions,
        masks: inputs.iter().skip(1).map(|input| input.name.to_string()).collect(),
    };
    let (headers, embedding) = (request.headers, "embed_tokens.weight");
    let is_bare = headers.has(embedding) && !headers.has(&format!("model.{embedding}"));
    let prefix = if is_bare { "" } else { "model." };
    let body = parts.body(&rotations)?;
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
    if output != Output::HiddenStates {
        let head = LayerText::new("Linear")
            .argument("in_features", var("hidden_size"))
            .argument("out_features", var("vocab_size"))
            .argument("bias", false)
            .named("lm_head");
        entries.push(match output {
            Output::TiedLogits => head.shares(&format!("{prefix}embed_tokens")).into(),
            _ => head.into(),
        });
    }
    // Angles were saved with the weights by early versions of transformers.
    let mut leftovers = vec![
        format!("{prefix}rotary_emb.inv_freq"),
        format!("{prefix}layers.{{i}}.self_attn.rotary_emb.inv_freq"),
    ];
    if output != Output::Logits {
        leftovers.push("lm_head.weight".into());
    }
    Ok(FamilyModel { vars, inputs, entries, vocab_size, max_positions, leftovers, output })
}

/// What all decoder layers share.
struct Parts<'a> {
    config: &'a HfConfig,
    rope: Rope,
    max_positions: u64,
    /// The model's inputs after the first, which are masks.
    masks: Vec<String>,
}

impl Parts<'_> {
    /// From the embedding to the last norm.
    fn body(&self, rotations: &[Rotation]) -> Result<Vec<Entry>, BossManError> {
        let embedding = LayerText::new("Embedding")
            .argument("num_embeddings", var("vocab_size"))
            .argument("embedding_dim", var("hidden_size"))
            .named("embed_tokens");
        let mut entries: Vec<Entry> = vec![embedding.into()];
        match rotations.split_first() {
            Some((first, others)) if others.iter().all(|other| other == first) => {
                let repeat = Some(var("num_hidden_layers"));
                let layers = self.decoder_layer(*first, "")?;
                entries.push(Block { name: "layers".into(), repeat, entries: layers }.into());
            }
            _ => {
                for (number, rotation) in rotations.iter().enumerate() {
                    let name = format!("layers.{number}");
                    // Blocks without `repeat` share their variables with those beside them.
                    let layers = self.decoder_layer(*rotation, &format!("_{number}"))?;
                    entries.push(Block { name, repeat: None, entries: layers }.into());
                }
            }
        }
        entries.push(norm("norm").into());
        Ok(entries)
    }

    /// A decoder layer, whose variables end so.
    fn decoder_layer(&self, rotation: Rotation, ending: &str) -> Result<Vec<Entry>, BossManError> {
        let [residual, attended] = ["residual", "attended"].map(|name| [format!("{name}{ending}")]);
        let mut mlp = LayerText::new("LlamaMLP")
            .argument("hidden_size", var("hidden_size"))
            .argument("intermediate_size", var("intermediate_size"));
        if self.config.flag_or("mlp_bias", false)? {
            mlp = mlp.argument("mlp_bias", true);
        }
        Ok(vec![
            LayerText::new("Identity").gives(&residual).into(),
            norm("input_layernorm").into(),
            self.attention(rotation)?.into(),
            LayerText::new("Add").takes(&residual).gives(&attended).into(),
            norm("post_attention_layernorm").into(),
            mlp.named("mlp").into(),
            LayerText::new("Add").takes(&attended).into(),
        ])
    }

    fn attention(&self, rotation: Rotation) -> Result<LayerText, BossManError> {
        let mut layer = LayerText::new("LlamaAttention")
            .argument("hidden_size", var("hidden_size"))
            .argument("num_attention_heads", var("num_attention_heads"))
            .argument("num_key_value_heads", var("num_key_value_heads"));
        if self.config.size("head_dim")?.is_some() {
            layer = layer.argument("head_dim", var("head_dim"));
        }
        layer = match (rotation, &self.rope.scaling) {
            (Rotation::Off, _) => layer.argument("rope_theta", null()),
            (Rotation::On, None) => layer.argument("rope_theta", self.rope.theta),
            (Rotation::On, Some(scaling)) => layer
                .argument("rope_theta", self.rope.theta)
                .argument("rope_scaling", scaling.clone())
                .argument("max_position_embeddings", self.max_positions),
        };
        if self.config.flag_or("attention_bias", false)? {
            layer = layer.argument("attention_bias", true);
        }
        let dropout = self.config.number_or("attention_dropout", 0.0)?;
        if dropout != 0.0 {
            layer = layer.argument("attention_dropout", dropout);
        }
        if !self.masks.is_empty() {
            layer = layer.argument("key_padding_mask", true);
        }
        layer = layer.named("self_attn");
        Ok(if self.masks.is_empty() { layer } else { layer.takes(&self.masks) })
    }
}

fn norm(name: &str) -> LayerText {
    LayerText::new("RMSNorm")
        .argument("normalized_shape", var("hidden_size"))
        .argument("eps", var("rms_norm_eps"))
        .named(name)
}
