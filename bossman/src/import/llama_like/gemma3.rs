//! Gemma 3, of texts: as Gemma 2, with norms of heads in place of caps of scores, and angles of
//! their own in layers with a window.

use super::decoder::{decoder_with, Defaults};
use super::decoder_layer::{FamilyStyle, LayerStyle, Rotation};
use super::gemma2::gemma_style;
use super::rope::{Rope, Ropes};
use super::windows::windows;
use crate::import::family::{Family, FamilyModel, Request};
use crate::import::hf_config::HfConfig;
use crate::BossManError;

pub(in crate::import) const GEMMA3: Family =
    Family { architectures: &["Gemma3ForCausalLM", "Gemma3TextModel"], model: gemma3 };

/// Of `Gemma3TextConfig`.
const DEFAULTS: Defaults = Defaults {
    vocab_size: 262_208,
    hidden_size: 2304,
    intermediate_size: 9216,
    num_hidden_layers: 26,
    num_attention_heads: 8,
    num_key_value_heads: Some(4),
    head_dim: Some(256),
    max_position_embeddings: 131_072,
    rms_norm_eps: 1e-6,
    rope_theta: 1_000_000.0,
    tie_word_embeddings: true,
    pad_token_id: Some(0),
};
const WINDOW: u64 = 4096;
const LOCAL_ROPE_THETA: f64 = 10000.0;
/// One layer of so many has no window.
const WINDOW_PATTERN: u64 = 6;

fn gemma3(request: &Request<'_>) -> Result<FamilyModel, BossManError> {
    let config = request.config;
    // Its layers read over `attn_logit_softcapping`.
    let style = FamilyStyle {
        qk_norm: true,
        logit_cap: config.number("final_logit_softcapping")?,
        ..gemma_style(config)?
    };
    decoder_with(request, &DEFAULTS, style, ropes, |count| {
        let window = config.size_or_none("sliding_window", Some(WINDOW))?;
        if window.is_none() {
            let why = "expected a whole number, 1 or more, as layers with a window have angles of \
                       their own";
            return Err(config.refused("sliding_window", why));
        }
        let pattern = config.size_or("sliding_window_pattern", WINDOW_PATTERN)?;
        let slides = |layer: usize| !(layer as u64 + 1).is_multiple_of(pattern);
        let layer = |window: Option<u64>| match window {
            Some(_) => LayerStyle { rotation: Rotation::Local, window },
            None => LayerStyle { rotation: Rotation::On, window },
        };
        Ok(windows(config, window, count, slides)?.into_iter().map(layer).collect())
    })
}

/// The angles of both kinds of layer. `rope_scaling` is of transformers 4 and scales those without
/// a window alone.
fn ropes(config: &HfConfig) -> Result<Ropes, BossManError> {
    let parameters = config.mapping("rope_parameters")?;
    if let Some(parameters) = &parameters {
        for key in ["rope_type", "rope_theta"] {
            let why = "angles are named for `full_attention` and `sliding_attention` here";
            parameters.expect(key, &[], why)?;
        }
    }
    let of_kind = |kind: &str| match &parameters {
        Some(parameters) => parameters.mapping(kind),
        None => Ok(None),
    };
    let (full, local) = (of_kind("full_attention")?, of_kind("sliding_attention")?);
    let theta = config.number_or("rope_theta", DEFAULTS.rope_theta)?;
    let mut usual = Rope::of_parameters(full.as_ref(), theta)?;
    if let Some(scaling) = config.mapping("rope_scaling")? {
        usual = Rope::of_parameters(Some(&scaling), usual.theta)?;
    }
    let theta = config.number_or("rope_local_base_freq", LOCAL_ROPE_THETA)?;
    Ok(Ropes { usual, local: Some(Rope::of_parameters(local.as_ref(), theta)?) })
}
