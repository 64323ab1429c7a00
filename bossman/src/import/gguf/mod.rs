//! A GGUF file, as llama.cpp has it, becomes a folder as transformers has it. Then it is imported
//! like any other.
//!
//! ```text
//! to_huggingface -> container (header, numbers of a tensor) -> blocks (types)
//!                -> llama (config.json, names)
//!                -> tokenizer (tokenizer.json)
//!                -> weights (model.safetensors)
//! ```

mod blocks;
mod container;
mod llama;
mod tokenizer;
mod weights;

use crate::data::atomic_file;
use crate::BossManError;
use container::Gguf;
use serde_json::Value as Json;
use std::io::Write;
use std::path::Path;

/// Whether a path names a GGUF file.
pub(crate) fn is_named(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("gguf"))
}

/// Writes `config.json`, `model.safetensors` and, if its kind is known, `tokenizer.json` and
/// `tokenizer_config.json` for a GGUF file into a folder that is there. Numbers of fewer bits
/// become single precision, which changes none of them.
///
/// # Errors
/// The file is damaged, or its model has no counterpart in transformers that BossMan knows.
pub(crate) fn to_huggingface(file: &Path, folder: &Path) -> Result<(), BossManError> {
    let gguf = Gguf::read(file)?;
    let (config, tokenizer) = (llama::config(&gguf)?, tokenizer::tokenizer(&gguf)?);
    let tensors = llama::tensors(&gguf)?;
    write(&folder.join("config.json"), &config)?;
    if let Some(tokenizer) = tokenizer {
        write(&folder.join("tokenizer.json"), &tokenizer)?;
        let max_positions = &config["max_position_embeddings"];
        let config = tokenizer::tokenizer_config(&gguf, max_positions);
        write(&folder.join("tokenizer_config.json"), &config)?;
    }
    weights::write(&gguf, tensors, &folder.join("model.safetensors"))
}

fn write(path: &Path, json: &Json) -> Result<(), BossManError> {
    let mut file = atomic_file::create(path)?;
    let text = format!("{json:#}\n");
    file.write_all(text.as_bytes()).map_err(|e| BossManError::io(path, &e))?;
    atomic_file::commit(path, file)
}

#[cfg(test)]
mod tests;
