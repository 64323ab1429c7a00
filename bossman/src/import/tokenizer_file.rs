//! The tokenizer of a folder: whether the model has a row for each of its tokens, and the token
//! that ends a text.

use super::hf_config::HfConfig;
use crate::data::bounded_file;
use crate::BossManError;
use serde::Deserialize;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// The largest `tokenizer.json` in bytes.
const MAX_BYTES: u64 = 256 << 20;

/// A tokenizer that fits the model.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TokenizerFile {
    pub(super) path: PathBuf,
    /// The token that ends a text.
    pub(super) eos: Option<String>,
}

/// The part of `tokenizer.json` that tells the tokens. Whatever else is there is skipped.
#[derive(Deserialize)]
struct Contents {
    #[serde(default)]
    model: Vocabulary,
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
}

#[derive(Default, Deserialize)]
struct Vocabulary {
    /// A mapping of tokens to their numbers, or a list of tokens.
    #[serde(default)]
    vocab: Value,
}

#[derive(Deserialize)]
struct AddedToken {
    id: u64,
    content: String,
}

impl TokenizerFile {
    /// Reads the tokenizer of a folder. `None` if there is none.
    ///
    /// # Errors
    /// It has a token beyond the model's vocabulary.
    pub(super) fn read(
        folder: &Path,
        config: &HfConfig,
        vocab_size: u64,
    ) -> Result<Option<Self>, BossManError> {
        let path = folder.join("tokenizer.json");
        let Some(text) = bounded_file::read(&path, MAX_BYTES)? else { return Ok(None) };
        let contents: Contents = serde_json::from_slice(&text)
            .map_err(|e| BossManError::file(&path, format!("is no tokenizer: {e}")))?;
        if let Some(highest) = contents.highest_id().filter(|highest| *highest >= vocab_size) {
            let problem = format!(
                "its last token has the number {highest}, but `vocab_size` in {} is {vocab_size}; \
                 take the tokenizer that the model was trained with",
                config.path().display()
            );
            return Err(BossManError::file(&path, problem));
        }
        // Some models have several, of which the first ends a text.
        let id = config.value("eos_token_id").and_then(|value| match value {
            Value::Array(ids) => ids.first()?.as_u64(),
            value => value.as_u64(),
        });
        let eos = id.and_then(|id| contents.token(id)).map(ToString::to_string);
        Ok(Some(TokenizerFile { path, eos }))
    }
}

impl Contents {
    fn highest_id(&self) -> Option<u64> {
        let added = self.added_tokens.iter().map(|token| token.id).max();
        let usual = match &self.model.vocab {
            Value::Object(ids) => ids.values().filter_map(Value::as_u64).max(),
            Value::Array(tokens) => (tokens.len() as u64).checked_sub(1),
            _ => None,
        };
        added.max(usual)
    }

    /// The token of this number.
    fn token(&self, id: u64) -> Option<&str> {
        let added = self.added_tokens.iter().find(|token| token.id == id);
        match (added, &self.model.vocab) {
            (Some(token), _) => Some(&token.content),
            (None, Value::Object(ids)) => ids
                .iter()
                .find(|(_, number)| number.as_u64() == Some(id))
                .map(|(token, _)| token.as_str()),
            (None, Value::Array(tokens)) => tokens.get(usize::try_from(id).ok()?)?.get(0)?.as_str(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(config: &str, tokenizer: &str) -> Result<Option<String>, String> {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("config.json"), config).unwrap();
        std::fs::write(place.path().join("tokenizer.json"), tokenizer).unwrap();
        let config = HfConfig::read(place.path()).unwrap();
        let file = TokenizerFile::read(place.path(), &config, 4).map_err(|e| e.to_string())?;
        Ok(file.unwrap().eos)
    }

    #[test]
    fn the_end_of_a_text_is_found_by_its_number() {
        let bpe = r#"{"model": {"vocab": {"a": 0, "<end>": 2}, "merges": []},
            "added_tokens": [{"id": 3, "content": "<|eos|>", "special": true}]}"#;
        assert_eq!(read(r#"{"eos_token_id": 3}"#, bpe), Ok(Some("<|eos|>".into())));
        assert_eq!(read(r#"{"eos_token_id": [2, 3]}"#, bpe), Ok(Some("<end>".into())));
        assert_eq!(read(r#"{"eos_token_id": null}"#, bpe), Ok(None));
        let unigram = r#"{"model": {"vocab": [["<s>", 0.0], ["</s>", -1.5]]}}"#;
        assert_eq!(read(r#"{"eos_token_id": 1}"#, unigram), Ok(Some("</s>".into())));
    }

    #[test]
    fn a_token_without_a_row_is_refused() {
        for tokenizer in [
            r#"{"model": {"vocab": {"a": 4}}}"#,
            r#"{"model": {"vocab": [["a", 0], ["b", 0], ["c", 0], ["d", 0], ["e", 0]]}}"#,
            r#"{"added_tokens": [{"id": 4, "content": "<e>"}]}"#,
        ] {
            let error = read("{}", tokenizer).unwrap_err();
            assert!(error.contains("its last token has the number 4, but `vocab_size`"), "{error}");
        }
        assert!(read("{}", "[").unwrap_err().contains("tokenizer.json: is no tokenizer"));
    }
}
