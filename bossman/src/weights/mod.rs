//! Models and their weights: files, names, conversion.
//!
//! ```text
//! model -> script_file
//! state_dict -> safetensors_files -> rename_rules -> source
//!                                 -> export
//! ```

pub(crate) mod export;
pub(crate) mod model;
pub mod rename_rules;
pub(crate) mod safetensors_files;
pub(crate) mod script_file;
pub(crate) mod source;
pub(crate) mod state_dict;
