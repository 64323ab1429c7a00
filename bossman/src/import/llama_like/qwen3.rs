//! Qwen3: as Llama, with a norm of each head of queries and keys.

use super::decoder::{decoder, Defaults};
use super::decoder_layer::{FamilyStyle, LayerStyle, Rotation};
use super::llama::biases;
use super::windows::qwen_windows;
use crate::import::family::{Family, FamilyModel, Request};
use crate::BossManError;

pub(in crate::import) const QWEN3: Family =
    Family { architectures: &["Qwen3ForCausalLM", "Qwen3Model"], model: qwen3 };

/// Of `Qwen3Config`.
const DEFAULTS: Defaults = Defaults {
    vocab_size: 151_936,
    hidden_size: 4096,
    intermediate_size: 22016,
    num_hidden_layers: 32,
    num_attention_heads: 32,
    num_key_value_heads: Some(32),
    head_dim: Some(128),
    max_position_embeddings: 32768,
    rms_norm_eps: 1e-6,
    rope_theta: 10000.0,
    tie_word_embeddings: false,
    pad_token_id: None,
};

fn qwen3(request: &Request<'_>) -> Result<FamilyModel, BossManError> {
    let config = request.config;
    // Its MLP never has a bias.
    let style = FamilyStyle { mlp_bias: false, qk_norm: true, ..biases(config)? };
    decoder(request, &DEFAULTS, style, |count| {
        let windows = qwen_windows(config, count)?;
        let layer = |window| LayerStyle { rotation: Rotation::On, window };
        Ok(windows.into_iter().map(layer).collect())
    })
}
