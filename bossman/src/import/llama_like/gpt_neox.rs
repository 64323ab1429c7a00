//! GPT-NeoX, and so Pythia: layer norms and linear layers as GPT-2, and heads of which a part turns
//! as in Llama. Attention and linear layers may take the same input.

use super::rope::{parameters, Rope};
use crate::import::bert_like::parts::{
    activation, add, depth, dropout, keep, layer_norm, linear, INPUT_IDS, PADDING,
};
use crate::import::family::{Family, FamilyModel, Output, Request, Samples};
use crate::import::hf_config::HfConfig;
use crate::import::model_text::{var, Block, Entry, LayerText, ModelInput};
use crate::run_file::yaml_text::Yaml;
use crate::BossManError;
use serde_json::json;

pub(in crate::import) const GPT_NEOX: Family =
    Family { architectures: &["GPTNeoXForCausalLM", "GPTNeoXModel"], model: gpt_neox };

const INPUTS: [ModelInput; 2] = [INPUT_IDS, PADDING];

/// The table from keys to layers. The defaults are those of `GPTNeoXConfig`.
fn gpt_neox(request: &Request<'_>) -> Result<FamilyModel, BossManError> {
    let config = request.config;
    let why = "attention to later positions is not known for this family; take a model without it";
    config.expect("is_causal", &[json!(true)], why)?;
    let size = |key: &str, default: u64| config.size_or(key, default);
    let vocab_size = size("vocab_size", 50432)?;
    let max_positions = size("max_position_embeddings", 2048)?;
    let vars: Vec<(&'static str, Yaml)> = vec![
        ("vocab_size", vocab_size.into()),
        ("hidden_size", size("hidden_size", 6144)?.into()),
        ("intermediate_size", size("intermediate_size", 24576)?.into()),
        ("num_hidden_layers", depth(config, "num_hidden_layers", 44)?.into()),
        ("num_attention_heads", size("num_attention_heads", 64)?.into()),
        ("layer_norm_eps", config.number_or("layer_norm_eps", 1e-5)?.into()),
    ];
    let inputs = request.choose_inputs(&INPUTS)?;
    let attention = attention(config, max_positions, inputs.len() > 1)?;
    let body = body(config, attention)?;
    let (headers, tokens) = (request.headers, "embed_in.weight");
    let is_bare = headers.has(tokens) && !headers.has(&format!("gpt_neox.{tokens}"));
    let (prefix, mut entries) = match is_bare {
        true => ("", body),
        false => {
            let block = Block { name: "gpt_neox".into(), repeat: None, entries: body };
            ("gpt_neox.", vec![block.into()])
        }
    };
    let output = match (request.has_head(), config.flag_or("tie_word_embeddings", false)?) {
        (true, true) => Output::TiedLogits,
        (true, false) => Output::Logits,
        (false, _) => Output::HiddenStates,
    };
    // Version 5 of transformers has a new name, and writes the old one unless it is told not to.
    let (old, new) = ("embed_out", "lm_head");
    let has = |name: &str| headers.has(&format!("{name}.weight"));
    let name = if has(new) && !has(old) { new } else { old };
    let head = linear(name, [var("hidden_size"), var("vocab_size")]).argument("bias", false);
    match output {
        Output::TiedLogits => entries.push(head.shares(&format!("{prefix}embed_in")).into()),
        Output::Logits => entries.push(head.into()),
        _ => {}
    }
    // Early versions of transformers saved masks and angles with the weights.
    let mut leftovers: Vec<String> = ["bias", "masked_bias", "rotary_emb.inv_freq"]
        .map(|name| format!("{prefix}layers.{{i}}.attention.{name}"))
        .to_vec();
    if output != Output::Logits {
        leftovers.extend([old, new].map(|name| format!("{name}.weight")));
    }
    let samples = Samples::Tokens { vocab_size, max_positions };
    Ok(FamilyModel { vars, inputs, entries, samples, leftovers, output })
}

/// From the embedding to the last norm.
fn body(config: &HfConfig, attention: LayerText) -> Result<Vec<Entry>, BossManError> {
    let tokens = LayerText::new("Embedding")
        .argument("num_embeddings", var("vocab_size"))
        .argument("embedding_dim", var("hidden_size"))
        .named("embed_in");
    let mut entries: Vec<Entry> = vec![tokens.into()];
    entries.extend(dropout(config.number_or("hidden_dropout", 0.0)?));
    let (repeat, block) = (Some(var("num_hidden_layers")), block(config, attention)?);
    entries.push(Block { name: "layers".into(), repeat, entries: block }.into());
    entries.push(norm("final_layer_norm").into());
    Ok(entries)
}

/// A repeated block.
fn block(config: &HfConfig, attention: LayerText) -> Result<Vec<Entry>, BossManError> {
    let is_parallel = config.flag_or("use_parallel_residual", true)?;
    let p = config.number_or("hidden_dropout", 0.0)?;
    let (wide, narrow) = ("intermediate_size", "hidden_size");
    let mut entries = vec![keep("residual"), norm("input_layernorm").into(), attention.into()];
    entries.extend(dropout(p));
    let norm = norm("post_attention_layernorm");
    if is_parallel {
        entries.push(keep("attended"));
        entries.push(norm.reads("residual").into());
    } else {
        entries.push(add("residual").gives(&["attended".into()]).into());
        entries.push(norm.into());
    }
    entries.push(linear("mlp.dense_h_to_4h", [var(narrow), var(wide)]).into());
    entries.push(activation(config, "hidden_act", "gelu")?.into());
    entries.push(linear("mlp.dense_4h_to_h", [var(wide), var(narrow)]).into());
    entries.extend(dropout(p));
    entries.push(match is_parallel {
        true => LayerText::new("Add").takes(&["attended".into(), "residual".into()]).into(),
        false => add("attended").into(),
    });
    Ok(entries)
}

/// Attention, whose projections of the input are one parameter with the rows of a head together.
fn attention(
    config: &HfConfig,
    max_positions: u64,
    has_padding: bool,
) -> Result<LayerText, BossManError> {
    let rope = rope(config)?;
    let mut layer = LayerText::new("LlamaAttention")
        .argument("hidden_size", var("hidden_size"))
        .argument("num_attention_heads", var("num_attention_heads"))
        .argument("rope_theta", rope.theta);
    if let Some(scaling) = rope.scaling {
        layer = layer
            .argument("rope_scaling", scaling)
            .argument("max_position_embeddings", max_positions);
    }
    if rope.part != 1.0 {
        layer = layer.argument("partial_rotary_factor", rope.part);
    }
    layer = layer.argument("fused", true).argument("fused_by_head", true);
    let has_bias = config.flag_or("attention_bias", true)?;
    if has_bias {
        layer = layer.argument("attention_bias", true);
    }
    match config.number_or("attention_dropout", 0.0)? {
        0.0 => {}
        p => layer = layer.argument("attention_dropout", p),
    }
    layer = match has_padding {
        true => layer
            .argument("key_padding_mask", true)
            .named("attention")
            .takes(&[PADDING.name.into()]),
        false => layer.named("attention"),
    };
    layer = layer
        .made_of("qkv_proj.weight", &["attention.query_key_value.weight".into()])
        .made_of("o_proj.weight", &["attention.dense.weight".into()]);
    Ok(match has_bias {
        true => layer
            .made_of("qkv_proj.bias", &["attention.query_key_value.bias".into()])
            .made_of("o_proj.bias", &["attention.dense.bias".into()]),
        false => layer,
    })
}

/// The angles, which have keys of their own outside of their mapping.
fn rope(config: &HfConfig) -> Result<Rope, BossManError> {
    let theta = config.number_or("rotary_emb_base", 10000.0)?;
    let part = config.number_or("rotary_pct", 0.25)?;
    let parameters = parameters(config)?;
    let part = match &parameters {
        Some(parameters) => parameters.number_or("partial_rotary_factor", part)?,
        None => part,
    };
    Ok(Rope { part, ..Rope::of_all_layers(config, parameters.as_ref(), theta)? })
}

fn norm(name: &str) -> LayerText {
    layer_norm(name, ["hidden_size", "layer_norm_eps"])
}
