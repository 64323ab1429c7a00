//! Tests a model in use: inspected, asked for text and translations, exported.

mod commands;
mod generation;

use bossman::data::{TextPairs, Tokenizer};
use bossman::{BossMan, Model};
use std::future::Future;
use std::time::Duration;
use tch::Tensor;

/// A language model over bytes. It writes only ASCII, so that its text shows every token.
pub(crate) const WRITER: &str = "
model: writer
inputs: {x: {shape: [batch, seq], dtype: int64}}
layers:
  - Embedding: {num_embeddings: 259, embedding_dim: 16}
  - LearnedPositions: {num_positions: 16, d_model: 16, batch_first: true}
  - TransformerEncoderLayer: {d_model: 16, nhead: 2, dim_feedforward: 32, batch_first: true, \
                      is_causal: true, norm_first: true}
  - TransformerEncoderLayer: {d_model: 16, nhead: 2, dim_feedforward: 32, batch_first: true, \
                      is_causal: true, norm_first: true}
  - Linear: {in_features: 16, out_features: 128}
  - Transpose: {dim0: 1, dim1: 2}
";

/// A translator over bytes. It has no end token, so that it writes as much as it may.
pub(crate) const TRANSLATOR: &str = "
model: translator
inputs:
  source: {shape: [batch, src], dtype: int64}
  target: {shape: [batch, tgt], dtype: int64}
  source_padding: {shape: [batch, src], dtype: bool}
layers:
  - Embedding: {num_embeddings: 259, embedding_dim: 16}
  - PositionalEncoding: {d_model: 16, batch_first: true}
  - TransformerEncoderLayer: {d_model: 16, nhead: 2, dim_feedforward: 32, batch_first: true, \
                          src_key_padding_mask: true}
    in_variables: [source_padding]
    out_variables: [memory]
  - Embedding: {num_embeddings: 259, embedding_dim: 16}
    input: target
  - PositionalEncoding: {d_model: 16, batch_first: true}
  - TransformerDecoderLayer: {d_model: 16, nhead: 2, dim_feedforward: 32, batch_first: true, \
                          tgt_is_causal: true, memory_key_padding_mask: true}
    in_variables: [memory, source_padding]
  - Linear: {in_features: 16, out_features: 128}
  - Transpose: {dim0: 1, dim1: 2}
";

/// Fails a test that takes longer than 240 s.
pub(crate) fn within_limit(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(240), test).await.unwrap() });
}

pub(crate) async fn boss(yaml: &str, workers: usize) -> BossMan {
    let mut boss = BossMan::builder(Model::from_yaml(yaml).unwrap())
        .seed(3)
        .build(BossMan::setup_local(workers).await.unwrap())
        .unwrap();
    boss.distribute_model().await.unwrap();
    boss.eval();
    boss
}

/// Describes how texts become tokens. No file is read.
pub(crate) fn pairs() -> TextPairs {
    TextPairs {
        path: "none".into(),
        keys: None,
        tokenizer: Tokenizer::Bytes,
        target_tokenizer: None,
        special_tokens: ["<bos>", "<eos>", "<pad>"].map(String::from),
        max_length: None,
        fixed: false,
        inputs: [].into(),
    }
}

pub(crate) fn row(tokens: &[i64]) -> Tensor {
    Tensor::from_slice(tokens).unsqueeze(0)
}

/// Returns the likeliest token after the last position.
pub(crate) fn likeliest(output: &Tensor) -> i64 {
    output.select(0, 0).select(1, -1).argmax(0, false).int64_value(&[])
}
