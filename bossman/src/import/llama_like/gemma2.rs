//! Gemma 2: as Llama, with norms behind attention and MLP, GELU, caps of scores and logits, and a
//! window in every second layer.

use super::decoder::{decoder, Defaults};
use super::decoder_layer::{Activation, FamilyStyle, LayerStyle, Rotation};
use super::llama::biases;
use super::windows::windows;
use crate::import::family::{Family, FamilyModel, Request};
use crate::import::hf_config::HfConfig;
use crate::BossManError;
use serde_json::json;

pub(in crate::import) const GEMMA2: Family =
    Family { architectures: &["Gemma2ForCausalLM", "Gemma2Model"], model: gemma2 };

/// Of `Gemma2Config`.
const DEFAULTS: Defaults = Defaults {
    vocab_size: 256_000,
    hidden_size: 2304,
    intermediate_size: 9216,
    num_hidden_layers: 26,
    num_attention_heads: 8,
    num_key_value_heads: Some(4),
    head_dim: Some(256),
    max_position_embeddings: 8192,
    rms_norm_eps: 1e-6,
    rope_theta: 10000.0,
    tie_word_embeddings: true,
    pad_token_id: Some(0),
};
const WINDOW: u64 = 4096;
const SCORE_CAP: f64 = 50.0;
const LOGIT_CAP: f64 = 30.0;
/// Of `Gemma2Config` and `Gemma3TextConfig`.
const QUERY_SCALAR: f64 = 256.0;

fn gemma2(request: &Request<'_>) -> Result<FamilyModel, BossManError> {
    let config = request.config;
    let style = FamilyStyle {
        score_cap: config.number_or_none("attn_logit_softcapping", Some(SCORE_CAP))?,
        logit_cap: config.number_or_none("final_logit_softcapping", Some(LOGIT_CAP))?,
        ..gemma_style(config)?
    };
    decoder(request, &DEFAULTS, style, |count| {
        let window = config.size_or_none("sliding_window", Some(WINDOW))?;
        let windows = windows(config, window, count, |layer| layer.is_multiple_of(2))?;
        let layer = |window| LayerStyle { rotation: Rotation::On, window };
        Ok(windows.into_iter().map(layer).collect())
    })
}

/// What Gemma 2 and Gemma 3 share.
pub(super) fn gemma_style(config: &HfConfig) -> Result<FamilyStyle, BossManError> {
    let why = "attention to later positions, too, is not known; take a model without this key";
    config.expect("use_bidirectional_attention", &[json!(false)], why)?;
    Ok(FamilyStyle {
        // Its MLP never has a bias.
        mlp_bias: false,
        activation: Activation::GeluTanh,
        norm_offset: 1.0,
        norms_behind: true,
        scales_embedding: true,
        query_scalar: Some(config.number_or("query_pre_attn_scalar", QUERY_SCALAR)?),
        ..biases(config)?
    })
}
