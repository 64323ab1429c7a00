//! Models and their weights: files, names, conversion.
//!
//! ```text
//! model -> layer_file -> tensor_headers
//! export, huggingface -> shards -> safetensors_files -> tensor_source (a tensor is read when it is
//!                                                       written) <- state_dict, weight_files
//! load -> safetensors_files -> state_dict <- rename_rules -> source
//! initial_weights -> weight_files
//! weight_files -> fit -> tensor_headers: a weight is read when a worker needs it
//!              -> chunks
//! ```

pub(crate) mod chunks;
pub(crate) mod export;
pub(crate) mod fit;
pub(crate) mod huggingface;
pub(crate) mod initial_weights;
mod layer_file;
mod load;
pub(crate) mod model;
pub mod rename_rules;
pub(crate) mod safetensors_files;
mod shards;
pub(crate) mod shown_text;
pub(crate) mod source;
pub(crate) mod state_dict;
pub(crate) mod tensor_headers;
mod tensor_source;
pub(crate) mod weight_files;
