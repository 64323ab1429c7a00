//! Phi-3, Phi-3.5 and Phi-4: as Llama, with fused projections, heads that turn in part, and dropout
//! of what attention and MLP add.

use super::decoder::{decoder_with, Defaults};
use super::decoder_layer::{FamilyStyle, LayerStyle, Rotation};
use super::rope::{parameters, Rope, Ropes};
use crate::import::family::{Family, FamilyModel, Request};
use crate::import::hf_config::HfConfig;
use crate::run_file::yaml_text::Yaml;
use crate::BossManError;
use serde_json::json;

pub(in crate::import) const PHI3: Family =
    Family { architectures: &["Phi3ForCausalLM", "Phi3Model"], model: phi3 };

/// Of `Phi3Config`.
const DEFAULTS: Defaults = Defaults {
    vocab_size: 32064,
    hidden_size: 3072,
    intermediate_size: 8192,
    num_hidden_layers: 32,
    num_attention_heads: 32,
    num_key_value_heads: None,
    head_dim: None,
    max_position_embeddings: 4096,
    rms_norm_eps: 1e-5,
    rope_theta: 10000.0,
    tie_word_embeddings: false,
    pad_token_id: Some(32000),
};
const ORIGINAL_POSITIONS: u64 = 4096;

fn phi3(request: &Request<'_>) -> Result<FamilyModel, BossManError> {
    let config = request.config;
    // Transformers does nothing with `embd_pdrop`.
    let dropout = config.number_or("resid_pdrop", 0.0)?;
    let style = FamilyStyle { fused: true, dropout, ..FamilyStyle::default() };
    let layer = LayerStyle { rotation: Rotation::On, window: config.size("sliding_window")? };
    decoder_with(request, &DEFAULTS, style, ropes, |count| Ok(vec![layer; count]))
}

/// The angles, whose first training has its length outside of their mapping.
fn ropes(config: &HfConfig) -> Result<Ropes, BossManError> {
    if let Some(parameters) = parameters(config)? {
        let known = [json!("default"), json!("longrope"), json!("su")];
        for key in ["rope_type", "type"] {
            parameters.expect(key, &known, "expected `default` or `longrope`")?;
        }
    }
    let mut rope = Rope::of_part(config, DEFAULTS.rope_theta)?;
    if let Some(Yaml::Map(entries)) = &mut rope.scaling {
        let key = "original_max_position_embeddings";
        let original = config.size_or(key, ORIGINAL_POSITIONS)?;
        entries.retain(|(name, _)| name != key);
        entries.push((key.to_string(), original.into()));
    }
    Ok(rope.into())
}
