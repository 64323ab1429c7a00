//! Layers that several families share.

use crate::import::hf_config::HfConfig;
use crate::import::model_text::{var, Entry, LayerText, ModelInput, SEQUENCES};
use crate::run_file::yaml_text::Yaml;
use crate::BossManError;

/// The input that tells which tokens are padding. `attention_mask` of transformers is its opposite.
pub(in crate::import) const PADDING: ModelInput =
    ModelInput { name: "key_padding_mask", shape: SEQUENCES, dtype: "bool" };

/// The input of tokens.
pub(in crate::import) const INPUT_IDS: ModelInput =
    ModelInput { name: "input_ids", shape: SEQUENCES, dtype: "int64" };

/// The most repeated blocks. A model file has 10,000 layers at most, and each of these is 11.
const MAX_BLOCKS: u64 = 800;

/// The number of repeated blocks.
pub(in crate::import) fn depth(
    config: &HfConfig,
    key: &str,
    default: u64,
) -> Result<u64, BossManError> {
    match config.size_or(key, default)? {
        count if count > MAX_BLOCKS => {
            Err(config.refused(key, &format!("expected {MAX_BLOCKS} at most")))
        }
        count => Ok(count),
    }
}

/// The function that a key names.
pub(in crate::import) fn activation(
    config: &HfConfig,
    key: &str,
    default: &str,
) -> Result<LayerText, BossManError> {
    Ok(match config.text(key)?.unwrap_or(default) {
        "relu" => LayerText::new("ReLU"),
        "gelu" | "gelu_python" => LayerText::new("GELU"),
        // The same function, written differently.
        "gelu_new" | "gelu_pytorch_tanh" | "gelu_python_tanh" | "gelu_fast" => {
            LayerText::new("GELU").argument("approximate", "tanh")
        }
        "silu" | "swish" => LayerText::new("SiLU"),
        "tanh" => LayerText::new("Tanh"),
        _ => {
            let known = "relu, gelu, gelu_new, gelu_pytorch_tanh, gelu_fast, silu, swish or tanh";
            return Err(config.refused(key, &format!("expected {known}")));
        }
    })
}

/// Attention of positions to each other. Its projections of the input are one parameter.
pub(in crate::import) fn attention(
    name: &str,
    [width, heads]: [&str; 2],
    dropout: f64,
    inputs: &[ModelInput],
) -> LayerText {
    let mut layer = LayerText::new("MultiheadAttention")
        .argument("embed_dim", var(width))
        .argument("num_heads", var(heads));
    if dropout != 0.0 {
        layer = layer.argument("dropout", dropout);
    }
    layer = layer.argument("batch_first", true).named(name);
    match inputs.iter().any(|input| input.name == PADDING.name) {
        true => layer.argument("key_padding_mask", true).takes(&[PADDING.name.into()]),
        false => layer,
    }
}

/// Dropout, unless it does nothing.
pub(in crate::import) fn dropout(p: f64) -> Option<Entry> {
    (p != 0.0).then(|| LayerText::new("Dropout").argument("p", p).into())
}

/// A linear layer between these sizes.
pub(in crate::import) fn linear(name: &str, [from, to]: [Yaml; 2]) -> LayerText {
    LayerText::new("Linear").argument("in_features", from).argument("out_features", to).named(name)
}

/// A layer norm over a size.
pub(in crate::import) fn layer_norm(name: &str, [width, eps]: [&str; 2]) -> LayerText {
    LayerText::new("LayerNorm")
        .argument("normalized_shape", var(width))
        .argument("eps", var(eps))
        .named(name)
}

/// Keeps the input of a block for its residual connection.
pub(in crate::import) fn keep(variable: &str) -> Entry {
    LayerText::new("Identity").gives(&[variable.into()]).into()
}

/// Adds what was kept.
pub(in crate::import) fn add(variable: &str) -> LayerText {
    LayerText::new("Add").takes(&[variable.into()])
}
