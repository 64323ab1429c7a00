//! The tokenizer of a folder: whether the model has a row for each of its tokens, and the tokens
//! that end a text.

use super::hf_config::HfConfig;
use crate::data::bounded_file;
use crate::output::printable;
use crate::BossManError;
use serde::de::{Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use std::fmt;
use std::path::{Path, PathBuf};

/// The largest `tokenizer.json` in bytes.
const MAX_BYTES: u64 = 256 << 20;
/// The most tokens of a vocabulary. Gemma has 262,144.
const MAX_TOKENS: usize = 4_000_000;

/// The letters of a token that a message shows.
const SHOWN: usize = 40;

/// A tokenizer that fits the model.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TokenizerFile {
    pub(super) path: PathBuf,
    /// The tokens that end a text.
    pub(super) eos: Vec<String>,
    /// What does not fit, and need not be used.
    pub(super) warnings: Vec<String>,
}

/// The part of `tokenizer.json` that tells the tokens. Whatever else is there is skipped.
#[derive(Deserialize)]
struct Contents {
    #[serde(default)]
    model: TokenizerModel,
    #[serde(default)]
    added_tokens: Vec<Token>,
}

#[derive(Default, Deserialize)]
struct TokenizerModel {
    #[serde(default)]
    vocab: Vocabulary,
}

#[derive(Deserialize)]
struct Token {
    id: u64,
    content: String,
}

/// A mapping of tokens to their numbers, or a list of tokens with their scores.
#[derive(Default)]
struct Vocabulary(Vec<Token>);

impl<'de> Deserialize<'de> for Vocabulary {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(VocabularyVisitor)
    }
}

struct VocabularyVisitor;

impl<'de> Visitor<'de> for VocabularyVisitor {
    type Value = Vocabulary;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a vocabulary of at most {MAX_TOKENS} tokens")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vocabulary, A::Error> {
        let mut tokens = Vec::new();
        while let Some((content, id)) = map.next_entry()? {
            tokens.push(Token { id, content });
            check_length(&tokens)?;
        }
        Ok(Vocabulary(tokens))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vocabulary, A::Error> {
        let mut tokens = Vec::new();
        while let Some((content, IgnoredAny)) = list.next_element()? {
            tokens.push(Token { id: tokens.len() as u64, content });
            check_length(&tokens)?;
        }
        Ok(Vocabulary(tokens))
    }
}

fn check_length<E: Error>(tokens: &[Token]) -> Result<(), E> {
    match tokens.len() > MAX_TOKENS {
        true => Err(E::invalid_length(tokens.len(), &VocabularyVisitor)),
        false => Ok(()),
    }
}

impl TokenizerFile {
    /// Reads the tokenizer of a folder. `None` if there is none.
    ///
    /// # Errors
    /// Its vocabulary goes beyond the model's. Added tokens may: Gemma 3 has one for pictures.
    pub(super) fn read(
        folder: &Path,
        config: &HfConfig,
        vocab_size: u64,
    ) -> Result<Option<Self>, BossManError> {
        let path = folder.join("tokenizer.json");
        let Some(text) = bounded_file::read(&path, MAX_BYTES)? else { return Ok(None) };
        let contents: Contents = serde_json::from_slice(&text)
            .map_err(|e| BossManError::file(&path, format!("is no tokenizer: {e}")))?;
        let Contents { model: TokenizerModel { vocab: Vocabulary(usual) }, added_tokens } =
            &contents;
        let highest = usual.iter().map(|token| token.id).max();
        if let Some(highest) = highest.filter(|highest| *highest >= vocab_size) {
            let problem = format!(
                "its last token has the number {highest}, but `vocab_size` in {} is {vocab_size}; \
                 take the tokenizer that the model was trained with",
                config.path().display()
            );
            return Err(BossManError::file(&path, problem));
        }
        let mut warnings = Vec::new();
        if let Some(Token { id, content }) = added_tokens.iter().find(|t| t.id >= vocab_size) {
            let problem = format!(
                "the model has no row for its token `{}` (number {id}); do not use it in texts",
                printable(content, SHOWN)
            );
            warnings.push(BossManError::file(&path, problem).to_string());
        }
        let generation = HfConfig::read_file(&folder.join("generation_config.json"))?;
        let ids = generation.as_ref().map(ends).filter(|ids| !ids.is_empty());
        let mut eos = Vec::new();
        for id in ids.unwrap_or_else(|| ends(config)) {
            match added_tokens.iter().chain(usual).find(|token| token.id == id) {
                Some(token) => eos.push(token.content.clone()),
                None => {
                    let problem = format!("has no token {id}, which `eos_token_id` names");
                    warnings.push(BossManError::file(&path, problem).to_string());
                }
            }
        }
        Ok(Some(TokenizerFile { path, eos, warnings }))
    }
}

/// The numbers of the tokens that end a text.
fn ends(config: &HfConfig) -> Vec<u64> {
    match config.value("eos_token_id") {
        Some(Value::Array(ids)) => ids.iter().filter_map(Value::as_u64).collect(),
        id => id.and_then(Value::as_u64).into_iter().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_beside(
        generation: Option<&str>,
        config: &str,
        tokenizer: &str,
    ) -> Result<TokenizerFile, String> {
        let place = tempfile::tempdir().unwrap();
        if let Some(generation) = generation {
            std::fs::write(place.path().join("generation_config.json"), generation).unwrap();
        }
        std::fs::write(place.path().join("config.json"), config).unwrap();
        std::fs::write(place.path().join("tokenizer.json"), tokenizer).unwrap();
        let config = HfConfig::read(place.path()).unwrap();
        let file = TokenizerFile::read(place.path(), &config, 4).map_err(|e| e.to_string())?;
        Ok(file.unwrap())
    }

    fn read(config: &str, tokenizer: &str) -> Result<TokenizerFile, String> {
        read_beside(None, config, tokenizer)
    }

    #[test]
    fn the_end_of_a_text_is_found_by_its_number() {
        let bpe = r#"{"model": {"vocab": {"a": 0, "<end>": 2}, "merges": []},
            "added_tokens": [{"id": 3, "content": "<|eos|>", "special": true}]}"#;
        let unigram = r#"{"model": {"vocab": [["<s>", 0.0], ["</s>", -1.5]]}}"#;
        for (config, tokenizer, ends) in [
            (r#"{"eos_token_id": 3}"#, bpe, &["<|eos|>"][..]),
            (r#"{"eos_token_id": [2, 3]}"#, bpe, &["<end>", "<|eos|>"]),
            (r#"{"eos_token_id": null}"#, bpe, &[]),
            (r#"{"eos_token_id": 1}"#, unigram, &["</s>"]),
        ] {
            let file = read(config, tokenizer).unwrap();
            assert_eq!(
                (file.eos, file.warnings),
                (ends.iter().map(|e| e.to_string()).collect(), vec![])
            );
        }
    }

    #[test]
    fn the_file_about_generation_comes_first_and_unknown_ends_are_told() {
        let tokenizer = r#"{"model": {"vocab": {"<end>": 2, "<turn>": 3}}}"#;
        let read = |generation| {
            let file = read_beside(Some(generation), r#"{"eos_token_id": 2}"#, tokenizer).unwrap();
            (file.eos.join(" "), file.warnings.join(" "))
        };
        assert_eq!(read(r#"{"eos_token_id": [2, 3]}"#), ("<end> <turn>".into(), String::new()));
        assert_eq!(read(r#"{"do_sample": true}"#), ("<end>".into(), String::new()));
        let (eos, warning) = read(r#"{"eos_token_id": [1, 3]}"#);
        assert_eq!(eos, "<turn>");
        let expected = "tokenizer.json: has no token 1, which `eos_token_id` names";
        assert!(warning.ends_with(expected), "{warning}");
    }

    #[test]
    fn an_added_token_may_have_no_row() {
        let added = r#"{"added_tokens": [{"id": 4, "content": "<picture>"}]}"#;
        let [warning] = &read("{}", added).unwrap().warnings[..] else { panic!("one warning") };
        let expected = "no row for its token `<picture>` (number 4); do not use it in texts";
        assert!(warning.ends_with(expected), "{warning}");
    }

    #[test]
    fn a_token_without_a_row_is_refused() {
        for tokenizer in [
            r#"{"model": {"vocab": {"a": 4}}}"#,
            r#"{"model": {"vocab": [["a", 0], ["b", 0], ["c", 0], ["d", 0], ["e", 0]]}}"#,
        ] {
            let error = read("{}", tokenizer).unwrap_err();
            assert!(error.contains("its last token has the number 4, but `vocab_size`"), "{error}");
        }
        for broken in ["[", r#"{"model": {"vocab": [0, 0]}}"#, r#"{"model": {"vocab": 1}}"#] {
            assert!(read("{}", broken).unwrap_err().contains("tokenizer.json: is no tokenizer"));
        }
    }
}
