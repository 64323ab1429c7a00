//! A decoder layer of Llama and its like: `LlamaAttention` and `LlamaMLP`, each with a norm before
//! it, perhaps one behind it, and a sum after it.

use super::rope::Ropes;
use crate::import::model_text::{null, var, Entry, LayerText};

/// Whether and how the positions of a decoder layer are turned into queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rotation {
    On,
    /// By the angles of layers with a window.
    Local,
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

/// The function of an MLP's gate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Activation {
    #[default]
    Silu,
    GeluTanh,
}

/// What differs from one family to the next.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FamilyStyle {
    pub(super) attention_bias: AttentionBias,
    pub(super) mlp_bias: bool,
    /// Whether queries and keys pass a norm.
    pub(super) qk_norm: bool,
    pub(super) activation: Activation,
    /// Whether projections that read the same are one.
    pub(super) fused: bool,
    /// Added to the weights of norms.
    pub(super) norm_offset: f64,
    /// Whether there is a norm behind attention and MLP, too.
    pub(super) norms_behind: bool,
    /// Whether embeddings are multiplied by the root of their size.
    pub(super) scales_embedding: bool,
    /// The argument `query_pre_attn_scalar`.
    pub(super) query_scalar: Option<f64>,
    /// The numbers that scores of attention and logits stay below, in size.
    pub(super) score_cap: Option<f64>,
    pub(super) logit_cap: Option<f64>,
    /// Of what attention and MLP add.
    pub(super) dropout: f64,
}

/// What all decoder layers of a model share. Their sizes are in `vars`.
pub(super) struct DecoderLayers {
    pub(super) style: FamilyStyle,
    pub(super) has_head_dim: bool,
    pub(super) attention_dropout: f64,
    pub(super) ropes: Ropes,
    pub(super) max_positions: u64,
    /// The model's inputs after the first, which are masks.
    pub(super) masks: Vec<String>,
}

impl DecoderLayers {
    /// The entries of a decoder layer, whose variables end so.
    pub(super) fn layer(&self, style: LayerStyle, ending: &str) -> Vec<Entry> {
        let [residual, attended] = ["residual", "attended"].map(|name| [format!("{name}{ending}")]);
        let [behind_attention, before_mlp] = match self.style.norms_behind {
            true => [Some("post_attention_layernorm"), Some("pre_feedforward_layernorm")],
            false => [None, Some("post_attention_layernorm")],
        };
        let behind_mlp = self.style.norms_behind.then_some("post_feedforward_layernorm");
        let norm = |name: Option<&str>| name.map(|name| self.norm(name));
        let entries = [
            Some(LayerText::new("Identity").gives(&residual)),
            norm(Some("input_layernorm")),
            Some(self.attention(style)),
            norm(behind_attention),
            self.dropout(),
            Some(LayerText::new("Add").takes(&residual).gives(&attended)),
            norm(before_mlp),
            Some(self.mlp()),
            norm(behind_mlp),
            self.dropout(),
            Some(LayerText::new("Add").takes(&attended)),
        ];
        entries.into_iter().flatten().map(Entry::from).collect()
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
        layer = self.rotation(layer, style.rotation);
        if self.style.fused {
            layer = layer.argument("fused", true);
        }
        layer = match self.style.attention_bias {
            AttentionBias::None => layer,
            AttentionBias::Qkv => layer.argument("qkv_bias", true),
            AttentionBias::All => layer.argument("attention_bias", true),
        };
        if self.style.qk_norm {
            layer = layer.argument("qk_norm_eps", var("rms_norm_eps"));
            if self.style.norm_offset != 0.0 {
                layer = layer.argument("qk_norm_offset", self.style.norm_offset);
            }
        }
        if let Some(scalar) = self.style.query_scalar {
            layer = layer.argument("query_pre_attn_scalar", scalar);
        }
        if let Some(cap) = self.style.score_cap {
            layer = layer.argument("attn_logit_softcapping", cap);
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

    /// The same attention with its angles.
    fn rotation(&self, layer: LayerText, rotation: Rotation) -> LayerText {
        let usual = &self.ropes.usual;
        let rope = match rotation {
            Rotation::Off => return layer.argument("rope_theta", null()),
            Rotation::On => usual,
            Rotation::Local => self.ropes.local.as_ref().unwrap_or(usual),
        };
        let mut layer = layer.argument("rope_theta", rope.theta);
        if let Some(scaling) = &rope.scaling {
            layer = layer
                .argument("rope_scaling", scaling.clone())
                .argument("max_position_embeddings", self.max_positions);
        }
        match rope.part {
            1.0 => layer,
            part => layer.argument("partial_rotary_factor", part),
        }
    }

    fn mlp(&self) -> LayerText {
        let mut layer = LayerText::new("LlamaMLP")
            .argument("hidden_size", var("hidden_size"))
            .argument("intermediate_size", var("intermediate_size"));
        if self.style.mlp_bias {
            layer = layer.argument("mlp_bias", true);
        }
        if self.style.activation == Activation::GeluTanh {
            layer = layer.argument("activation", "gelu_tanh");
        }
        if self.style.fused {
            layer = layer.argument("fused", true);
        }
        layer.named("mlp")
    }

    /// The dropout of what is added, if there is one.
    fn dropout(&self) -> Option<LayerText> {
        match self.style.dropout {
            0.0 => None,
            p => Some(LayerText::new("Dropout").argument("p", p)),
        }
    }

    /// A norm over the hidden size.
    pub(super) fn norm(&self, name: &str) -> LayerText {
        let layer = LayerText::new("RMSNorm")
            .argument("normalized_shape", var("hidden_size"))
            .argument("eps", var("rms_norm_eps"));
        match self.style.norm_offset {
            0.0 => layer.named(name),
            offset => layer.argument("offset", offset).named(name),
        }
    }
}
