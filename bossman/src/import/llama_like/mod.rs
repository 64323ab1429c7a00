//! Families whose decoder layers are `LlamaAttention` and `LlamaMLP`.
//!
//! ```text
//! llama, mistral, qwen2, qwen3, smollm3, gemma2, gemma3, phi3: what each has of its own
//!   -> windows    which layers look back a limited way
//!   -> decoder    the model around the layers
//!        -> decoder_layer, rope    a layer, and how it turns queries and keys
//! gpt_neox: `LlamaAttention` between layers of bert_like::parts
//!   -> rope
//! ```

mod decoder;
mod decoder_layer;
#[cfg(test)]
mod family_tests;
pub(super) mod gemma2;
pub(super) mod gemma3;
#[cfg(test)]
mod gemma_phi_tests;
pub(super) mod gpt_neox;
#[cfg(test)]
mod gpt_neox_tests;
pub(super) mod llama;
pub(super) mod mistral;
pub(super) mod phi3;
pub(super) mod qwen2;
pub(super) mod qwen3;
mod rope;
pub(super) mod smollm3;
mod windows;
