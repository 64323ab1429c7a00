//! SmolLM3: as Llama, with layers that turn nothing in between.

use super::decoder::{decoder, Defaults};
use super::decoder_layer::{LayerStyle, Rotation};
use super::llama::biases;
use super::windows::windows;
use crate::import::family::{Family, FamilyModel, Request};
use crate::import::hf_config::HfConfig;
use crate::BossManError;

pub(in crate::import) const SMOLLM3: Family =
    Family { architectures: &["SmolLM3ForCausalLM", "SmolLM3Model"], model: smollm3 };

/// Of `SmolLM3Config`.
const DEFAULTS: Defaults = Defaults {
    vocab_size: 128_256,
    hidden_size: 2048,
    intermediate_size: 11008,
    num_hidden_layers: 36,
    num_attention_heads: 16,
    num_key_value_heads: Some(4),
    head_dim: None,
    max_position_embeddings: 32768,
    rms_norm_eps: 1e-6,
    rope_theta: 2_000_000.0,
    tie_word_embeddings: true,
    pad_token_id: Some(128_004),
};

fn smollm3(request: &Request<'_>) -> Result<FamilyModel, BossManError> {
    let config = request.config;
    decoder(request, &DEFAULTS, biases(config)?, |count| {
        let rotations = rotations(config, count)?;
        let slides = config.flag_or("use_sliding_window", false)?;
        // Without `layer_types`, layers that turn nothing have the window.
        let windows = windows(config, config.size("sliding_window")?, count, |layer| {
            slides && rotations.get(layer) == Some(&Rotation::Off)
        })?;
        let both = rotations.iter().zip(windows);
        Ok(both.map(|(&rotation, window)| LayerStyle { rotation, window }).collect())
    })
}

/// Which layers turn queries and keys.
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
    let mut rotations = rotations.collect::<Result<Vec<_>, _>>()?;
    if rotations.len() < count {
        let why = format!("expected a list of at least num_hidden_layers ({count}) numbers");
        return Err(config.refused(key, &why));
    }
    rotations.truncate(count);
    Ok(rotations)
}
