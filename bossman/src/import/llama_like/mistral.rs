//! Mistral: as Llama, with a sliding window in all layers and no biases.

use super::decoder::{decoder, Defaults};
use super::decoder_layer::{FamilyStyle, LayerStyle, Rotation};
use crate::import::family::{Family, FamilyModel, Request};
use crate::BossManError;

pub(in crate::import) const MISTRAL: Family =
    Family { architectures: &["MistralForCausalLM", "MistralModel"], model: mistral };

/// Of `MistralConfig`.
const DEFAULTS: Defaults = Defaults {
    vocab_size: 32000,
    hidden_size: 4096,
    intermediate_size: 14336,
    num_hidden_layers: 32,
    num_attention_heads: 32,
    num_key_value_heads: Some(8),
    head_dim: None,
    max_position_embeddings: 131_072,
    rms_norm_eps: 1e-6,
    rope_theta: 10000.0,
    tie_word_embeddings: false,
    pad_token_id: None,
};
const WINDOW: u64 = 4096;

fn mistral(request: &Request<'_>) -> Result<FamilyModel, BossManError> {
    let config = request.config;
    // Transformers reads over it, too, and warns.
    let why = "the layers of MistralModel are all the same; remove the key, or take the class of \
               the model that has it";
    config.expect("layer_types", &[], why)?;
    // A configuration says `null` for no window.
    let window = config.size_or_none("sliding_window", Some(WINDOW))?;
    let layer = LayerStyle { rotation: Rotation::On, window };
    decoder(request, &DEFAULTS, FamilyStyle::default(), |count| Ok(vec![layer; count]))
}
