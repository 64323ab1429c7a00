//! A model that must go on with more than its parameters.

/// Dropout and batch norm, so that what is drawn and what is counted must go on, too; layers in a block, of which one has
/// layers in it, and two share their parameters.
pub const MODEL: &str = "
model: small
inputs: {x: [batch, 64]}
layers:
  - Linear: {in_features: 64, out_features: 32}
  - BatchNorm1d: {num_features: 32}
  - ReLU
  - Dropout: {p: 0.25}
  - Linear: {in_features: 32, out_features: 32}
    name: first
  - GELU
  - Unflatten: {dim: 1, unflattened_size: [2, 16]}
  - name: blocks
    repeat: 2
    layers:
      - TransformerEncoderLayer: {d_model: 16, nhead: 2, dim_feedforward: 16, batch_first: true}
        name: block
  - Flatten
  - Linear: {in_features: 32, out_features: 32}
    share: first
  - Linear: {in_features: 32, out_features: 10}
";
