//! Llama: all decoder layers are equal.

use super::decoder::{decoder, Defaults};
use super::decoder_layer::{AttentionBias, FamilyStyle, LayerStyle, Rotation};
use crate::import::family::{Family, FamilyModel, Request};
use crate::import::hf_config::HfConfig;
use crate::BossManError;

pub(in crate::import) const LLAMA: Family =
    Family { architectures: &["LlamaForCausalLM", "LlamaModel"], model: llama };

/// Of `LlamaConfig`.
const DEFAULTS: Defaults = Defaults {
    vocab_size: 32000,
    hidden_size: 4096,
    intermediate_size: 11008,
    num_hidden_layers: 32,
    num_attention_heads: 32,
    num_key_value_heads: None,
    head_dim: None,
    max_position_embeddings: 2048,
    rms_norm_eps: 1e-6,
    rope_theta: 10000.0,
    tie_word_embeddings: false,
    pad_token_id: None,
};

fn llama(request: &Request<'_>) -> Result<FamilyModel, BossManError> {
    let layer = LayerStyle { rotation: Rotation::On, window: None };
    decoder(request, &DEFAULTS, biases(request.config)?, |count| Ok(vec![layer; count]))
}

/// The biases that `attention_bias` and `mlp_bias` ask for.
pub(super) fn biases(config: &HfConfig) -> Result<FamilyStyle, BossManError> {
    let attention_bias = match config.flag_or("attention_bias", false)? {
        true => AttentionBias::All,
        false => AttentionBias::None,
    };
    let mlp_bias = config.flag_or("mlp_bias", false)?;
    Ok(FamilyStyle { attention_bias, mlp_bias, ..FamilyStyle::default() })
}
