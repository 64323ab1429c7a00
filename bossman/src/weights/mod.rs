//! Models and their weights: files, names, conversion.
//!
//! ```text
//! model -> layer_file -> tensor_headers
//! export, huggingface -> shards -> safetensors_files -> tensor_source (a tensor is read when it is
//!                                                       written) <- state_dict, weight_files
//! state_dict -> safetensors_files -> rename_rules -> source
//! weight_files -> fit -> tensor_headers: a weight is read when a worker needs it
//!              -> chunks
//! ```

pub(crate) mod chunks;
pub(crate) mod export;
pub(crate) mod fit;
pub(crate) mod huggingface;
mod layer_file;
pub(crate) mod model;
pub mod rename_rules;
pub(crate) mod safetensors_files;
mod shards;
pub(crate) mod source;
pub(crate) mod state_dict;
pub(crate) mod tensor_headers;
mod tensor_source;
pub(crate) mod weight_files;
