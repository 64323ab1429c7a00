//! Attention, the layers made of it, and positions.
//!
//! ```text
//!     lower.rs -> multihead_attention.rs  transformer.rs  llama.rs   (layers as lists of ops)
//!                                \             |             /
//!                                 +------> heads.rs <-------+        (the attention op)
//!                                              |               |
//!     lower.rs -> scaled_dot_product.rs -> mask.rs      head_norm.rs
//!     lower.rs -> positions.rs  rotary.rs <- partial_rotary.rs <- llama.rs
//!                                   |                                (encodings of positions)
//!                           rope_frequencies.rs                      (and how fast they turn)
//! ```

pub(crate) mod head_norm;
pub(crate) mod heads;
pub(crate) mod llama;
pub(crate) mod mask;
pub(crate) mod multihead_attention;
pub(crate) mod partial_rotary;
pub(crate) mod positions;
pub(crate) mod rope_frequencies;
pub(crate) mod rotary;
pub(crate) mod scaled_dot_product;
pub(crate) mod transformer;
