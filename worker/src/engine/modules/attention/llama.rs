use crate::engine::layers::lowered_layer::LoweredLayer;
use crate::engine::modules::attention::head_norm::HeadNorm;
use crate::engine::modules::attention::heads::{Attention, AttentionHeads, Scores};
use crate::engine::modules::attention::partial_rotary::PartialRotary;
use crate::engine::modules::builder::LayerBuilder;
use crate::engine::modules::by_autograd::AutogradOp;
use layerspec::layers::{
    Approximate, Flatten, LlamaActivation, LlamaAttention, LlamaMLP, Mul, RotaryEmbedding,
    Sections, SiLU, Split, Unflatten, GELU,
};

pub(crate) fn lower_attention(layer: &LlamaAttention, inputs: usize) -> LoweredLayer {
    let (model, [queries, _], head_dim) = (layer.hidden_size, layer.widths(), layer.head_size());
    let [query_heads, key_heads] = layer.heads();
    let mut ops = LayerBuilder::new(inputs, layer.has_qkv_bias());
    let [q, k, v] = project(&mut ops, layer);
    let mut norm = |slot: usize, weight: &'static str| match layer.qk_norm_eps {
        Some(eps) => {
            let norm = HeadNorm { head_dim, eps, offset: layer.qk_norm_offset };
            ops.add(AutogradOp(norm), vec![slot], vec![("weight", weight)])
        }
        None => slot,
    };
    let (q, k) = (norm(q, "q_norm.weight"), norm(k, "k_norm.weight"));
    let q = rotate(&mut ops, layer, q, query_heads);
    let k = rotate(&mut ops, layer, k, key_heads);
    let number = |heads: u64| i64::try_from(heads).unwrap_or(i64::MAX);
    let attention = Attention::new(AttentionHeads {
        queries: number(query_heads),
        keys: number(key_heads),
        batch_first: true,
        dropout: layer.attention_dropout,
        purpose: "attention",
        causal: layer.is_causal,
        scores: Scores { scale: layer.score_scale(), cap: layer.attn_logit_softcapping },
        window: layer.sliding_window.map(number),
        mask: false,
        padding_mask: layer.key_padding_mask,
    });
    let attended = ops.add(attention, [q, k, v].into_iter().chain(1..inputs).collect(), Vec::new());
    ops.set_bias(layer.attention_bias);
    let output = ops.linear(attended, [queries, model], ["o_proj.weight", "o_proj.bias"]);
    ops.finish(output)
}

/// Queries, keys and values of the layer's input.
fn project(ops: &mut LayerBuilder, layer: &LlamaAttention) -> [usize; 3] {
    let (model, [queries, keys]) = (layer.hidden_size, layer.widths());
    if layer.fused {
        // Too large a width stays too large.
        let all = queries.saturating_add(keys.saturating_mul(2));
        let qkv = ops.linear(0, [model, all], ["qkv_proj.weight", "qkv_proj.bias"]);
        if layer.fused_by_head {
            return by_heads(ops, layer, qkv);
        }
        let parts = parts(vec![queries, keys, keys]);
        let first = ops.add_multi_output(parts, vec![qkv], Vec::new(), 3);
        return [first, first + 1, first + 2];
    }
    [
        ops.linear(0, [model, queries], ["q_proj.weight", "q_proj.bias"]),
        ops.linear(0, [model, keys], ["k_proj.weight", "k_proj.bias"]),
        ops.linear(0, [model, keys], ["v_proj.weight", "v_proj.bias"]),
    ]
}

/// Queries, keys and values that lie beside each other for each head.
fn by_heads(ops: &mut LayerBuilder, layer: &LlamaAttention, qkv: usize) -> [usize; 3] {
    let heads = i64::try_from(layer.num_attention_heads).unwrap_or(i64::MAX);
    let apart = Unflatten { dim: -1, unflattened_size: vec![heads, -1] };
    let apart = ops.add(apart, vec![qkv], Vec::new());
    let parts = parts(vec![layer.head_size(); 3]);
    let first = ops.add_multi_output(parts, vec![apart], Vec::new(), 3);
    let mut joined =
        |part: usize| ops.add(Flatten { start_dim: 2, end_dim: -1 }, vec![part], Vec::new());
    [joined(first), joined(first + 1), joined(first + 2)]
}

/// Cuts the last dimension into parts of these sizes.
fn parts(sizes: Vec<u64>) -> AutogradOp<Split> {
    AutogradOp(Split { split_size_or_sections: Sections::Sizes(sizes), dim: -1 })
}

/// Queries or keys that know their positions, if the layer tells them.
fn rotate(ops: &mut LayerBuilder, layer: &LlamaAttention, slot: usize, heads: u64) -> usize {
    let Some(base) = layer.rope_theta else {
        return slot;
    };
    let (head_dim, turning) = (layer.head_size(), layer.rotary_size());
    let rotary = RotaryEmbedding {
        head_dim: turning,
        base,
        interleaved: false,
        num_heads: Some(heads),
        rope_scaling: layer.rope_scaling.clone(),
        max_position_embeddings: layer.max_position_embeddings,
    };
    match turning == head_dim {
        true => ops.add(AutogradOp(rotary), vec![slot], Vec::new()),
        false => ops.add(AutogradOp(PartialRotary { rotary, head_dim }), vec![slot], Vec::new()),
    }
}

pub(crate) fn lower_mlp(layer: &LlamaMLP) -> LoweredLayer {
    let (model, inner) = (layer.hidden_size, layer.intermediate_size);
    let mut ops = LayerBuilder::new(1, layer.mlp_bias);
    let (gate, up) = match layer.fused {
        true => {
            let names = ["gate_up_proj.weight", "gate_up_proj.bias"];
            let both = ops.linear(0, [model, layer.fused_size()], names);
            let first = ops.add_multi_output(parts(vec![inner, inner]), vec![both], Vec::new(), 2);
            (first, Some(first + 1))
        }
        false => (ops.linear(0, [model, inner], ["gate_proj.weight", "gate_proj.bias"]), None),
    };
    let gelu = |approximate| GELU { approximate };
    let gate = match layer.activation {
        LlamaActivation::Silu => ops.add(SiLU {}, vec![gate], Vec::new()),
        LlamaActivation::Gelu => ops.add(gelu(Approximate::None), vec![gate], Vec::new()),
        LlamaActivation::GeluTanh => ops.add(gelu(Approximate::Tanh), vec![gate], Vec::new()),
    };
    let up = match up {
        Some(up) => up,
        None => ops.linear(0, [model, inner], ["up_proj.weight", "up_proj.bias"]),
    };
    let product = ops.add(AutogradOp(Mul {}), vec![gate, up], Vec::new());
    let output = ops.linear(product, [inner, model], ["down_proj.weight", "down_proj.bias"]);
    ops.finish(output)
}
