//! A decoder layer of Llama and its like: `LlamaAttention` and `LlamaMLP`, each with a norm before
//! it and a sum after it.

use super::model_text::{null, var, Entry, LayerText};
use super::rope::Rope;

/// Whether the positions of a decoder layer are turned into queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rotation {
    On,
    Off,
}

/// What may differ from one decoder layer of a model to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LayerStyle {
    pub(super) rotation: Rotation,
    /// The positions that each attends to, if not all before it.
    pub(super) window: Option<u64>,
}

/// The projections of an attention that add a bias.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum AttentionBias {
    #[default]
    None,
    /// Those to queries, keys and values.
    Qkv,
    All,
}

/// What differs from one family to the next.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FamilyStyle {
    pub(super) attention_bias: AttentionBias,
    pub(super) mlp_bias: bool,
    /// Whether queries and keys pass a norm.
    pub(super) qk_norm: bool,
}

/// What all decoder layers of a model share. Their sizes are in `vars`.
pub(super) struct DecoderLayers {
    pub(super) style: FamilyStyle,
    pub(super) has_head_dim: bool,
    pub(super) attention_dropout: f64,
    pub(super) rope: Rope,
    pub(super) max_positions: u64,
    /// The model's inputs after the first, which are masks.
    pub(super) masks: Vec<String>,
}

impl DecoderLayers {
    /// The entries of a decoder layer, whose variables end so.
    pub(super) fn layer(&self, style: LayerStyle, ending: &str) -> Vec<Entry> {
        let [residual, attended] = ["residual", "attended"].map(|name| [format!("{name}{ending}")]);
        let mut mlp = LayerText::new("LlamaMLP")
            .argument("hidden_size", var("hidden_size"))
            .argument("intermediate_size", var("intermediate_size"));
        if self.style.mlp_bias {
            mlp = mlp.argument("mlp_bias", true);
        }
        vec![
            LayerText::new("Identity").gives(&residual).into(),
            norm("input_layernorm").into(),
            self.attention(style).into(),
            LayerText::new("Add").takes(&residual).gives(&attended).into(),
            norm("post_attention_layernorm").into(),
            mlp.named("mlp").into(),
            LayerText::new("Add").takes(&attended).into(),
        ]
    }

    /// Its attention. Arguments with their default are left out.
    fn attention(&self, style: LayerStyle) -> LayerText {
        let mut layer = LayerText::new("LlamaAttention")
            .argument("hidden_size", var("hidden_size"))
            .argument("num_attention_heads", var("num_attention_heads"))
            .argument("num_key_value_heads", var("num_key_value_heads"));
        if self.has_head_dim {
            layer = layer.argument("head_dim", var("head_dim"));
        }
        layer = match (style.rotation, &self.rope.scaling) {
            (Rotation::Off, _) => layer.argument("rope_theta", null()),
            (Rotation::On, None) => layer.argument("rope_theta", self.rope.theta),
            (Rotation::On, Some(scaling)) => layer
                .argument("rope_theta", self.rope.theta)
                .argument("rope_scaling", scaling.clone())
                .argument("max_position_embeddings", self.max_positions),
        };
        layer = match self.style.attention_bias {
            AttentionBias::None => layer,
            AttentionBias::Qkv => layer.argument("qkv_bias", true),
            AttentionBias::All => layer.argument("attention_bias", true),
        };
        if self.style.qk_norm {
            layer = layer.argument("qk_norm_eps", var("rms_norm_eps"));
        }
        if self.attention_dropout != 0.0 {
            layer = layer.argument("attention_dropout", self.attention_dropout);
        }
        if style.window.is_some() {
            layer = layer.argument("sliding_window", var("sliding_window"));
        }
        match self.masks.is_empty() {
            true => layer.named("self_attn"),
            false => layer.argument("key_padding_mask", true).named("self_attn").takes(&self.masks),
        }
    }
}

/// A norm over the hidden size.
pub(super) fn norm(name: &str) -> LayerText {
    LayerText::new("RMSNorm")
        .argument("normalized_shape", var("hidden_size"))
        .argument("eps", var("rms_norm_eps"))
        .named(name)
}
