//! A model that needs more than its parameters to resume.

/// The model has dropout and batch norm, so that random draws and counts must resume, too. Its
/// layers are in blocks, one of which is nested, and two share their parameters.
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
