//! GPT-2: blocks that normalise before attention and before the linear layers. Its files store
//! matrices as `[in, out]`, so rules of the run file transpose them.

use super::parts::{
    activation, add, attention, depth, dropout, keep, layer_norm, linear, INPUT_IDS, PADDING,
};
use crate::import::family::{Family, FamilyModel, Output, Request, Samples};
use crate::import::hf_config::HfConfig;
use crate::import::model_text::{var, Block, Entry, LayerText, ModelInput};
use crate::rename::Source;
use crate::run_file::yaml_text::Yaml;
use crate::BossManError;
use serde_json::json;

pub(in crate::import) const GPT2: Family =
    Family { architectures: &["GPT2LMHeadModel", "GPT2Model"], model: gpt2 };

const INPUTS: [ModelInput; 2] = [INPUT_IDS, PADDING];

/// The names that other families have for these keys, and `GPT2Config` takes, too.
const OTHER_NAMES: [(&str, &str); 4] = [
    ("hidden_size", "n_embd"),
    ("max_position_embeddings", "n_positions"),
    ("num_attention_heads", "n_head"),
    ("num_hidden_layers", "n_layer"),
];

/// The table from keys to layers. The defaults are those of `GPT2Config`.
fn gpt2(request: &Request<'_>) -> Result<FamilyModel, BossManError> {
    let config = &request.config.with_own_names(&OTHER_NAMES)?;
    let why = "BossMan's attention divides by the root of the head's size, and by nothing else";
    config.expect("scale_attn_weights", &[json!(true)], why)?;
    config.expect("scale_attn_by_inverse_layer_idx", &[json!(false)], why)?;
    let why = "BossMan imports this family without a second input of states";
    config.expect("add_cross_attention", &[json!(false)], why)?;
    let why = "attention to later positions is not known for this family; take a model without it";
    config.expect("is_causal", &[json!(true)], why)?;
    let size = |key: &str, default: u64| config.size_or(key, default);
    let vocab_size = size("vocab_size", 50257)?;
    let max_positions = size("n_positions", 1024)?;
    let width = size("n_embd", 768)?;
    let vars: Vec<(&'static str, Yaml)> = vec![
        ("vocab_size", vocab_size.into()),
        ("n_positions", max_positions.into()),
        ("n_embd", width.into()),
        ("n_layer", depth(config, "n_layer", 12)?.into()),
        ("n_head", size("n_head", 12)?.into()),
        ("n_inner", size("n_inner", width.saturating_mul(4))?.into()),
        ("layer_norm_epsilon", config.number_or("layer_norm_epsilon", 1e-5)?.into()),
    ];
    let inputs = request.choose_inputs(&INPUTS)?;
    let body = body(config, &inputs)?;
    let headers = request.headers;
    let is_bare = headers.has("wte.weight") && !headers.has("transformer.wte.weight");
    let (prefix, mut entries) = match is_bare {
        true => ("", body),
        false => {
            let block = Block { name: "transformer".into(), repeat: None, entries: body };
            ("transformer.", vec![block.into()])
        }
    };
    let output = match (request.has_head(), config.flag_or("tie_word_embeddings", true)?) {
        (true, true) => Output::TiedLogits,
        (true, false) => Output::Logits,
        (false, _) => Output::HiddenStates,
    };
    let head = linear("lm_head", [var("n_embd"), var("vocab_size")]).argument("bias", false);
    match output {
        Output::TiedLogits => entries.push(head.shares(&format!("{prefix}wte")).into()),
        Output::Logits => entries.push(head.into()),
        _ => {}
    }
    // The causal mask was saved with the weights by early versions of transformers.
    let mut leftovers =
        vec![format!("{prefix}h.{{i}}.attn.bias"), format!("{prefix}h.{{i}}.attn.masked_bias")];
    if output != Output::Logits {
        leftovers.push("lm_head.weight".into());
    }
    let samples = Samples::Tokens { vocab_size, max_positions };
    Ok(FamilyModel { vars, inputs, entries, samples, leftovers, output })
}

/// From the embedding to the last norm.
fn body(config: &HfConfig, inputs: &[ModelInput]) -> Result<Vec<Entry>, BossManError> {
    let tokens = LayerText::new("Embedding")
        .argument("num_embeddings", var("vocab_size"))
        .argument("embedding_dim", var("n_embd"))
        .named("wte");
    let positions = LayerText::new("LearnedPositions")
        .argument("num_positions", var("n_positions"))
        .argument("d_model", var("n_embd"))
        .argument("batch_first", true)
        .named("wpe");
    let mut entries: Vec<Entry> = vec![tokens.into(), positions.into()];
    entries.extend(dropout(config.number_or("embd_pdrop", 0.1)?));
    let (repeat, block) = (Some(var("n_layer")), block(config, inputs)?);
    entries.push(Block { name: "h".into(), repeat, entries: block }.into());
    entries.push(norm("ln_f").into());
    Ok(entries)
}

/// A repeated block.
fn block(config: &HfConfig, inputs: &[ModelInput]) -> Result<Vec<Entry>, BossManError> {
    let of_states = config.number_or("resid_pdrop", 0.1)?;
    let of_weights = config.number_or("attn_pdrop", 0.1)?;
    let attention = attention("attn", ["n_embd", "n_head"], of_weights, inputs)
        .argument("is_causal", true)
        .made_of("in_proj_weight", &[Source::transposed("attn.c_attn.weight")])
        .made_of("in_proj_bias", &["attn.c_attn.bias".into()])
        .made_of("out_proj.weight", &[Source::transposed("attn.c_proj.weight")])
        .made_of("out_proj.bias", &["attn.c_proj.bias".into()]);
    let mut entries = vec![keep("residual"), norm("ln_1").into(), attention.into()];
    entries.extend(dropout(of_states));
    entries.push(add("residual").gives(&["attended".into()]).into());
    entries.push(norm("ln_2").into());
    entries.push(turned("mlp.c_fc", [var("n_embd"), var("n_inner")]).into());
    entries.push(activation(config, "activation_function", "gelu_new")?.into());
    entries.push(turned("mlp.c_proj", [var("n_inner"), var("n_embd")]).into());
    entries.extend(dropout(of_states));
    entries.push(add("attended").into());
    Ok(entries)
}

/// A linear layer that the files call `Conv1D`.
fn turned(name: &str, sizes: [Yaml; 2]) -> LayerText {
    linear(name, sizes).made_of("weight", &[Source::transposed(&format!("{name}.weight"))])
}

fn norm(name: &str) -> LayerText {
    layer_norm(name, ["n_embd", "layer_norm_epsilon"])
}
