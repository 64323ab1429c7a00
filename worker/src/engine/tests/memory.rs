//! With a key-value cache, a model's outputs position by position equal its outputs for all
//! positions at once.

use super::*;
use pipeline::kv_cache_step::KvCacheStep;

const SAMPLES: i64 = 3;

const DECODER_ONLY: &str = "
inputs: {x: {shape: [batch, seq], dtype: int64}}
layers:
  - Embedding: {num_embeddings: 13, embedding_dim: 8}
  - LearnedPositions: {num_positions: 16, d_model: 8, batch_first: true}
  - PositionalEncoding: {d_model: 8, batch_first: true}
  - TransformerEncoderLayer: {d_model: 8, nhead: 2, dim_feedforward: 6, batch_first: true, \
                            is_causal: true}
  - LlamaAttention: {hidden_size: 8, num_attention_heads: 4, num_key_value_heads: 2}
  - LlamaAttention: {hidden_size: 8, num_attention_heads: 2, sliding_window: 2, qk_norm_eps: 0.01}
  - RMSNorm: {normalized_shape: 8, eps: 1e-6, offset: 1.0}
  - LlamaAttention: {hidden_size: 8, num_attention_heads: 2, num_key_value_heads: 1, fused: true, \
                            partial_rotary_factor: 0.5, qk_norm_eps: 0.01, qk_norm_offset: 1, \
                            query_pre_attn_scalar: 2, attn_logit_softcapping: 2, sliding_window: 3}
  - LlamaMLP: {hidden_size: 8, intermediate_size: 5, activation: gelu_tanh, fused: true}
  - MultiheadAttention: {embed_dim: 8, num_heads: 2, batch_first: true, is_causal: true}
  - Linear: {in_features: 8, out_features: 13}
";

const TRANSLATOR: &str = "
inputs:
  source: {shape: [batch, src], dtype: int64}
  target: {shape: [batch, tgt], dtype: int64}
  source_padding: {shape: [batch, src], dtype: bool}
  target_padding: {shape: [batch, tgt], dtype: bool}
layers:
  - Embedding: {num_embeddings: 13, embedding_dim: 8}
  - PositionalEncoding: {d_model: 8, batch_first: true}
  - TransformerEncoderLayer: {d_model: 8, nhead: 2, dim_feedforward: 6, batch_first: true, \
                          src_key_padding_mask: true}
    in_variables: [source_padding]
    out_variables: [memory]
  - Embedding: {num_embeddings: 13, embedding_dim: 8}
    input: target
  - PositionalEncoding: {d_model: 8, batch_first: true}
  - TransformerDecoderLayer: {d_model: 8, nhead: 2, dim_feedforward: 6, batch_first: true, \
                          tgt_is_causal: true, tgt_key_padding_mask: true, \
                          memory_key_padding_mask: true}
    in_variables: [memory, target_padding, source_padding]
  - Linear: {in_features: 8, out_features: 13}
";

fn tokens(name: &str, positions: i64) -> Tensor {
    let mut stream = Key::new(8).text(name).stream(Device::Cpu).unwrap();
    stream
        .uniform(&[SAMPLES, positions], Kind::Float, 0.0, 13.0)
        .unwrap()
        .floor()
        .to_kind(Kind::Int64)
}

fn close(found: &Tensor, expected: &Tensor) {
    assert_eq!(found.size(), expected.size());
    let worst = (found - expected).abs().max().double_value(&[]);
    assert!(worst < 1e-5, "off by {worst}");
}

#[test]
fn a_sequence_goes_on_where_it_was() {
    let graph = graph(DECODER_ONLY);
    let layers = graph.incremental(graph.inputs()).unwrap();
    let mut engine = build(whole(&graph, false)).unwrap();
    let x = tokens("x", 9);
    let all = engine.forward(&eval(), vec![x.shallow_clone()]).unwrap().remove(0);
    let mut past = 0;
    for count in [4, 1, 3, 1] {
        let cached = KvCacheStep { past: past as u64, rows: Vec::new(), layers: layers.clone() };
        engine.begin_cached_pass(Some(&cached)).unwrap();
        let output = engine.forward(&eval(), vec![x.narrow(1, past, count)]).unwrap().remove(0);
        close(&output, &all.narrow(1, past, count));
        past += count;
    }
}

#[test]
fn samples_go_on_in_another_order_and_number() {
    let graph = graph(TRANSLATOR);
    let growing: Vec<_> = [1, 3].map(|place| graph.inputs()[place]).into();
    let layers = graph.incremental(&growing).unwrap();
    let mut engine = build(whole(&graph, false)).unwrap();
    let (source, target) = (tokens("source", 5), tokens("target", 4));
    let padding = Tensor::from_slice(&[0i64, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1])
        .view([3, 5])
        .to_kind(Kind::Bool);
    let none =
        |rows: i64, positions: i64| Tensor::zeros([rows, positions], (Kind::Bool, Device::Cpu));
    let first = vec![source.copy(), target.narrow(1, 0, 3), padding.copy(), none(3, 3)];
    let cached =
        |past, rows: &[u32]| KvCacheStep { past, rows: rows.to_vec(), layers: layers.clone() };
    engine.begin_cached_pass(Some(&cached(0, &[]))).unwrap();
    engine.forward(&eval(), first).unwrap();

    let rows = Tensor::from_slice(&[2i64, 0, 2, 0]);
    let of = |tensor: &Tensor| tensor.index_select(0, &rows);
    engine.begin_cached_pass(Some(&cached(3, &[2, 0, 2, 0]))).unwrap();
    let next = of(&target.narrow(1, 3, 1));
    let found = engine
        .forward(&eval(), vec![of(&source), next, of(&padding), none(4, 1)])
        .unwrap()
        .remove(0);

    engine.begin_cached_pass(None).unwrap();
    let whole = vec![of(&source), of(&target), of(&padding), none(4, 4)];
    let all = engine.forward(&eval(), whole).unwrap().remove(0);
    close(&found, &all.narrow(1, 3, 1));
}

#[test]
fn what_is_not_remembered_is_an_error() {
    let graph = graph(DECODER_ONLY);
    let layers = graph.incremental(graph.inputs()).unwrap();
    let mut engine = build(whole(&graph, false)).unwrap();
    engine.begin_cached_pass(Some(&KvCacheStep { past: 2, rows: Vec::new(), layers })).unwrap();
    let error = engine.forward(&eval(), vec![tokens("x", 1)]).unwrap_err().to_string();
    assert!(error.contains("2 positions came before, but 0 are remembered; begin anew"), "{error}");
}
