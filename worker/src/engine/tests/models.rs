//! Small models that together share values and parameters in every possible way.

pub(crate) const RESIDUAL: &str = "
model: residual
inputs: {x: [batch, 3]}
layers:
  - Linear: {in_features: 3, out_features: 17}
  - ReLU
  - Linear: {in_features: 17, out_features: 17}
    out_variables: [skip]
  - ReLU
  - Linear: {in_features: 17, out_features: 17}
  - Tanh
  - Add: {}
    in_variables: [skip]
  - Linear: {in_features: 17, out_features: 2}
";

/// Values with three and four users, a value used twice by one layer, branches that join again.
pub(crate) const BRANCHY: &str = "
model: branchy
inputs: {x: [batch, 4]}
layers:
  - Linear: {in_features: 4, out_features: 9}
    out_variables: [a]
  - Sigmoid: {}
    out_variables: [b]
  - Mul: {}
    in_variables: [b]
  - Linear: {in_features: 9, out_features: 9}
    input: a
    out_variables: [c]
  - Add: {}
    in_variables: [a, b, c]
  - Concat: {dim: 1}
    in_variables: [a, c]
  - Linear: {in_features: 27, out_features: 9}
  - Add: {}
    in_variables: [a]
  - LayerNorm: {normalized_shape: 9}
  - Linear: {in_features: 9, out_features: 2}
";

pub(crate) const CONV: &str = "
model: conv
inputs: {x: [batch, 1, 8, 8]}
layers:
  - Conv2d: {in_channels: 1, out_channels: 4, kernel_size: 3, padding: same}
    out_variables: [skip]
  - BatchNorm2d: {num_features: 4}
  - ReLU
  - Conv2d: {in_channels: 4, out_channels: 4, kernel_size: 3, padding: 1}
  - Add: {}
    in_variables: [skip]
  - MaxPool2d: {kernel_size: 2}
  - AvgPool2d: {kernel_size: 2}
  - Flatten
  - Dropout: {p: 0.2}
  - Linear: {in_features: 16, out_features: 5}
";

/// Convolutions up and down, norms within samples, whole channels dropped, a layer with several
/// outputs of which one has two users and one has none.
pub(crate) const PARTS: &str = "
model: parts
inputs: {x: [batch, 2, 6, 6]}
layers:
  - Conv2d: {in_channels: 2, out_channels: 6, kernel_size: 3, padding: 2, padding_mode: reflect}
  - Split: {split_size_or_sections: [2, 3, 1], dim: 1}
    out_variables: [a, b, rest]
  - InstanceNorm2d: {num_features: 2, affine: true, track_running_stats: true}
  - PReLU: {num_parameters: 2}
    out_variables: [a2]
  - Dropout2d: {p: 0.3}
    input: b
  - GroupNorm: {num_groups: 1, num_channels: 3}
  - ConvTranspose2d: {in_channels: 3, out_channels: 2, kernel_size: 3, stride: 2, padding: 1}
  - Slice: {dim: 2, end: 15, step: 2}
  - Slice: {dim: 3, end: 15, step: 2}
  - Sub: {}
    in_variables: [a2]
  - Concat: {dim: 1}
    in_variables: [b]
  - ELU
  - Upsample: {scale_factor: 0.5, mode: bilinear}
  - AdaptiveMaxPool2d: {output_size: 2}
  - Mean: {dim: -1}
  - Flatten
  - RMSNorm: {normalized_shape: 10}
  - Linear: {in_features: 10, out_features: 5}
";

/// Tied parameters, whole numbers as input, strided views between layers.
pub(crate) const TEXT: &str = "
model: text
inputs: {ids: {shape: [batch, 6], dtype: int64}}
layers:
  - Embedding: {num_embeddings: 13, embedding_dim: 8}
    name: embedding
  - Transpose: {dim0: 1, dim1: 2}
  - Linear: {in_features: 6, out_features: 6}
  - Transpose: {dim0: 1, dim1: 2}
  - GELU
  - LayerNorm: {normalized_shape: 8}
  - Dropout: {p: 0.1}
  - Linear: {in_features: 8, out_features: 13, bias: false}
    name: head
    share: embedding
  - Transpose: {dim0: 1, dim1: 2}
";

/// Every kind of attention, all with dropout. Most have a mask that is an input of the model.
/// States go from one layer to another.
pub(crate) const ATTENTION: &str = "
model: attention
inputs: {x: [batch, 5, 8], padding: {shape: [batch, 5], dtype: bool}}
layers:
  - LearnedPositions: {num_positions: 7, d_model: 8, batch_first: true}
  - PositionalEncoding: {d_model: 8, batch_first: true}
    out_variables: [memory]
  - TransformerEncoderLayer: {d_model: 8, nhead: 2, dim_feedforward: 9, batch_first: true, \
                                    src_key_padding_mask: true}
    in_variables: [padding]
  - TransformerDecoderLayer: {d_model: 8, nhead: 4, dim_feedforward: 9, batch_first: true, \
                                    tgt_is_causal: true, memory_key_padding_mask: true}
    in_variables: [memory, padding]
  - MultiheadAttention: {embed_dim: 8, num_heads: 4, num_key_value_heads: 2, dropout: 0.1, \
                                    batch_first: true, key_padding_mask: true}
    in_variables: [memory, memory, padding]
  - LlamaAttention: {hidden_size: 8, num_attention_heads: 2, attention_dropout: 0.1, \
                                    qkv_bias: true, qk_norm_eps: 0.01, sliding_window: 3, \
                                    fused: true, partial_rotary_factor: 0.5, \
                                    attn_logit_softcapping: 3, qk_norm_offset: 1}
  - LlamaMLP: {hidden_size: 8, intermediate_size: 11, activation: gelu_tanh, fused: true}
  - LSTM: {input_size: 8, hidden_size: 6, num_layers: 2, dropout: 0.2, batch_first: true}
    out_variables: [steps, h, c]
  - LSTM: {input_size: 6, hidden_size: 6, num_layers: 2, batch_first: true}
    in_variables: [h, c]
    out_variables: [out]
outputs: [out]
";

/// Parameters without a batch that other stages look up or add, attention with a mask that learns,
/// samples dropped as a whole, elements moved.
pub(crate) const TABLES: &str = "
model: tables
inputs: {x: [batch, 6, 8], ids: {shape: [batch, 6], dtype: int64}}
layers:
  - Parameter: {shape: [13, 8], std: 0.5, expand: false}
  - Index: {dim: 0}
    in_variables: [ids]
  - DropPath: {p: 0.3}
  - Add: {number: 0.5}
    in_variables: [x]
    out_variables: [sum]
  - Unflatten: {dim: 2, unflattened_size: [2, 4]}
  - Transpose: {dim0: 1, dim1: 2}
  - Roll: {shifts: [-2, 1], dims: [2, -1]}
    out_variables: [heads]
  - Flip: {dims: 2}
    out_variables: [keys]
  - Parameter: {shape: [2, 6, 6], std: 0.5, expand: false}
    input: heads
    out_variables: [bias]
  - ScaledDotProductAttention: {dropout_p: 0.2}
    input: heads
    in_variables: [keys, heads, bias]
  - Transpose: {dim0: 1, dim1: 2}
  - Flatten: {start_dim: 2}
  - DropPath: {p: 0.2, mode: batch}
    out_variables: [attended]
  - Select: {dim: 1, index: 0}
    input: sum
  - Clamp: {min: -1, max: 1}
  - Exp
  - Unsqueeze: {dim: 1}
  - Expand: {size: [-1, 6, -1]}
    out_variables: [scales]
  - Div: {}
    input: attended
    in_variables: [scales]
  - Linear: {in_features: 8, out_features: 5}
";
