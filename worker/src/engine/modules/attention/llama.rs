use crate::engine::layers::lowered_layer::LoweredLayer;
use crate::engine::modules::attention::head_norm::HeadNorm;
use crate::engine::modules::attention::heads::{Attention, AttentionHeads};
use crate::engine::modules::builder::LayerBuilder;
use crate::engine::modules::by_autograd::AutogradOp;
use layerspec::layers::{LlamaAttention, LlamaMLP, Mul, RotaryEmbedding, SiLU};

pub(crate) fn lower_attention(layer: &LlamaAttention, inputs: usize) -> LoweredLayer {
    let (model, [queries, keys], head_dim) = (layer.hidden_size, layer.widths(), layer.head_size());
    let [query_heads, key_heads] = layer.heads();
    let mut ops = LayerBuilder::new(inputs, layer.has_qkv_bias());
    let q = ops.linear(0, [model, queries], ["q_proj.weight", "q_proj.bias"]);
    let k = ops.linear(0, [model, keys], ["k_proj.weight", "k_proj.bias"]);
    let v = ops.linear(0, [model, keys], ["v_proj.weight", "v_proj.bias"]);
    let mut norm = |slot: usize, weight: &'static str| match layer.qk_norm_eps {
        Some(eps) => {
            let norm = HeadNorm { head_dim, eps };
            ops.add(AutogradOp(norm), vec![slot], vec![("weight", weight)])
        }
        None => slot,
    };
    let (q, k) = (norm(q, "q_norm.weight"), norm(k, "k_norm.weight"));
    let mut rotate = |slot: usize, heads: u64| {
        let Some(base) = layer.rope_theta else {
            return slot;
        };
        let rotary = RotaryEmbedding {
            head_dim,
            base,
            interleaved: false,
            num_heads: Some(heads),
            rope_scaling: layer.rope_scaling.clone(),
            max_position_embeddings: layer.max_position_embeddings,
        };
        ops.add(AutogradOp(rotary), vec![slot], Vec::new())
    };
    let (q, k) = (rotate(q, query_heads), rotate(k, key_heads));
    let number = |heads: u64| i64::try_from(heads).unwrap_or(i64::MAX);
    let attention = Attention::new(AttentionHeads {
        queries: number(query_heads),
        keys: number(key_heads),
        batch_first: true,
        dropout: layer.attention_dropout,
        purpose: "attention",
        causal: layer.is_causal,
        window: layer.sliding_window.map(number),
        mask: false,
        padding_mask: layer.key_padding_mask,
    });
    let attended = ops.add(attention, [q, k, v].into_iter().chain(1..inputs).collect(), Vec::new());
    ops.set_bias(layer.attention_bias);
    let output = ops.linear(attended, [queries, model], ["o_proj.weight", "o_proj.bias"]);
    ops.finish(output)
}

pub(crate) fn lower_mlp(layer: &LlamaMLP) -> LoweredLayer {
    let (model, inner) = (layer.hidden_size, layer.intermediate_size);
    let mut ops = LayerBuilder::new(1, layer.mlp_bias);
    let gate = ops.linear(0, [model, inner], ["gate_proj.weight", "gate_proj.bias"]);
    let gate = ops.add(SiLU {}, vec![gate], Vec::new());
    let up = ops.linear(0, [model, inner], ["up_proj.weight", "up_proj.bias"]);
    let product = ops.add(AutogradOp(Mul {}), vec![gate, up], Vec::new());
    let output = ops.linear(product, [inner, model], ["down_proj.weight", "down_proj.bias"]);
    ops.finish(output)
}
