//! Models and their weights: files, names, conversion.

pub(crate) mod export;
pub(crate) mod model;
pub mod rename_rules;
pub(crate) mod safetensors_files;
pub(crate) mod script_file;
pub(crate) mod state_dict;
