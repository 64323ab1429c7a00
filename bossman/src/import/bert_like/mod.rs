//! Families whose layers are built from `MultiheadAttention`, `LayerNorm` and `Linear`.
//!
//! ```text
//! bert, roberta -> encoder (embeddings and layers), labels (of a classifier)
//! vit -> labels
//! gpt2
//!   -> parts    what their layers share, and those of gpt_neox
//! ```

pub(super) mod bert;
#[cfg(test)]
pub(super) mod bert_tests;
mod encoder;
pub(super) mod gpt2;
#[cfg(test)]
pub(super) mod gpt2_tests;
mod labels;
pub(super) mod parts;
pub(super) mod roberta;
pub(super) mod vit;
#[cfg(test)]
mod vit_tests;
