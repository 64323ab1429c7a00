//! Incremental decoding: models that can continue a sequence, position by position.

use layerspec::LayerGraph;

fn incremental(inputs: &str, which: &[&str], layers: &str) -> Result<Vec<u32>, String> {
    let text = format!("inputs: {inputs}\nlayers:\n{layers}");
    let graph = LayerGraph::from_yaml(&text, "model").unwrap();
    let named =
        |name: &&str| *graph.inputs().iter().find(|id| graph.value(**id).name == **name).unwrap();
    let inputs: Vec<_> = which.iter().map(named).collect();
    let layers = graph.incremental(&inputs).map_err(|e| e.to_string())?;
    Ok(layers.into_iter().map(|id| id.0).collect())
}

const TOKENS: &str = "{x: {shape: [batch, seq], dtype: int64}}";

#[test]
fn a_causal_model_grows_whole() {
    let layers = "  - Embedding: {num_embeddings: 9, embedding_dim: 4}\n  - LearnedPositions: \
                  {num_positions: 8, d_model: 4, batch_first: true}\n  - TransformerEncoderLayer: \
                  {d_model: 4, nhead: 2, batch_first: true, is_causal: true}\n  - LayerNorm: \
                  {normalized_shape: [4]}\n  - Linear: {in_features: 4, out_features: 9}\n  - \
                  Transpose: {dim0: 1, dim1: 2}\n";
    assert_eq!(incremental(TOKENS, &["x"], layers).unwrap(), [0, 1, 2, 3, 4, 5]);
    let most = |layers: &str| {
        let text = format!("inputs: {TOKENS}\nlayers:\n{layers}");
        LayerGraph::from_yaml(&text, "model").unwrap().max_positions()
    };
    assert_eq!(most(layers), Some(8));
    assert_eq!(most("  - Embedding: {num_embeddings: 9, embedding_dim: 4}\n"), None);
}

#[test]
fn what_looks_at_all_positions_is_named() {
    let embedding = "  - Embedding: {num_embeddings: 9, embedding_dim: 4}\n";
    let with =
        |layer: &str| incremental(TOKENS, &["x"], &format!("{embedding}{layer}")).unwrap_err();
    let open = "  - TransformerEncoderLayer: {d_model: 4, nhead: 2, batch_first: true}\n";
    assert!(with(open).starts_with("layer 1 (TransformerEncoderLayer) needs to be causal"));
    assert!(with("  - GRU: {input_size: 4, hidden_size: 3, batch_first: true}\n")
        .starts_with("layer 1 (GRU) needs the whole"));
    // After it, the last dimension is that of positions.
    let turned =
        "  - Transpose: {dim0: 1, dim1: 2}\n  - Tanh\n  - RMSNorm: {normalized_shape: [8]}\n";
    let fixed = "{x: {shape: [batch, 8], dtype: int64}}";
    let error = incremental(fixed, &["x"], &format!("{embedding}{turned}")).unwrap_err();
    assert!(error.starts_with("layer 3 (RMSNorm) needs the whole"), "{error}");
}

#[test]
fn a_decoder_grows_beside_its_encoder() {
    let inputs = "{s: {shape: [batch, src], dtype: int64}, t: {shape: [batch, tgt], dtype: \
                  int64}, p: {shape: [batch, tgt], dtype: bool}}";
    let layers =
        "  - Embedding: {num_embeddings: 9, embedding_dim: 4}\n  - TransformerEncoderLayer: \
         {d_model: 4, nhead: 2, batch_first: true}\n    out_variables: [memory]\n  - Embedding: \
         {num_embeddings: 9, embedding_dim: 4}\n    input: t\n  - TransformerDecoderLayer: \
         {d_model: 4, nhead: 2, batch_first: true, tgt_is_causal: true, tgt_key_padding_mask: \
         true}\n    in_variables: [memory, p]\n";
    assert_eq!(incremental(inputs, &["t", "p"], layers), Ok(vec![2, 3]));
    assert!(incremental(inputs, &["t"], layers).is_err());
    assert!(incremental(inputs, &["s", "t", "p"], layers).is_err());
}
