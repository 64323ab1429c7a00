//! Qwen2 and Qwen2.5: as Llama, with biases of queries, keys and values.

use super::decoder::{decoder, Defaults};
use super::decoder_layer::{AttentionBias, FamilyStyle, LayerStyle, Rotation};
use super::windows::qwen_windows;
use crate::import::family::{Family, FamilyModel, Request};
use crate::BossManError;

pub(in crate::import) const QWEN2: Family =
    Family { architectures: &["Qwen2ForCausalLM", "Qwen2Model"], model: qwen2 };

/// Of `Qwen2Config`.
const DEFAULTS: Defaults = Defaults {
    vocab_size: 151_936,
    hidden_size: 4096,
    intermediate_size: 22016,
    num_hidden_layers: 32,
    num_attention_heads: 32,
    num_key_value_heads: Some(32),
    head_dim: None,
    max_position_embeddings: 32768,
    rms_norm_eps: 1e-6,
    rope_theta: 10000.0,
    tie_word_embeddings: false,
    pad_token_id: None,
};

fn qwen2(request: &Request<'_>) -> Result<FamilyModel, BossManError> {
    let style = FamilyStyle { attention_bias: AttentionBias::Qkv, ..FamilyStyle::default() };
    decoder(request, &DEFAULTS, style, |count| {
        let windows = qwen_windows(request.config, count)?;
        let layer = |window| LayerStyle { rotation: Rotation::On, window };
        Ok(windows.into_iter().map(layer).collect())
    })
}
