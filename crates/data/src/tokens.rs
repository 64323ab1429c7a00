//! Text as numbers: its bytes, or the tokens of a `tokenizer.json`.

use super::expected_tensor::ExpectedTensor;
use super::vocabulary::TokenizerFile;
use crate::DataError;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// A choice of how text becomes tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Tokenizer {
    /// Each byte is a token. `<bos>`, `<eos>` and `<pad>` follow the 256 bytes.
    Bytes,
    /// A `tokenizer.json` as written by Hugging Face's libraries.
    File(PathBuf),
}

/// The tokens of [`Tokenizer::Bytes`] that are not bytes, numbered from 256.
const SPECIAL: [&str; 3] = ["<bos>", "<eos>", "<pad>"];
/// The largest tokenizer file in bytes. A usual vocabulary has a few megabytes.
const MAX_FILE: u64 = 256 * 1024 * 1024;

/// A loaded tokenizer.
pub enum LoadedTokenizer {
    /// Each byte is a token.
    Bytes,
    /// A tokenizer from a file.
    Loaded(PathBuf, TokenizerFile),
}

impl LoadedTokenizer {
    /// Loads the tokenizer.
    ///
    /// # Errors
    /// The file cannot be read, or is no `tokenizer.json`.
    pub fn load(tokenizer: &Tokenizer) -> Result<Self, DataError> {
        match tokenizer {
            Tokenizer::Bytes => Ok(LoadedTokenizer::Bytes),
            Tokenizer::File(path) => load(path),
        }
    }

    /// Appends the text's tokens, without begin or end marks.
    pub fn encode(&self, text: &str, into: &mut Vec<u32>) -> Result<(), DataError> {
        match self {
            LoadedTokenizer::Bytes => into.extend(text.bytes().map(u32::from)),
            LoadedTokenizer::Loaded(path, vocabulary) => {
                vocabulary.encode(text, into).map_err(|e| DataError::file(path, e))?;
            }
        }
        Ok(())
    }

    /// Appends the text's tokens with the special ones that the tokenizer puts around a text, as
    /// `tokenizer(text)` does in transformers: Llama and Gemma expect `<bos>` before a prompt.
    /// Bytes get none.
    ///
    /// # Errors
    /// The tokenizer fails.
    pub fn encode_with_special_tokens(
        &self,
        text: &str,
        into: &mut Vec<u32>,
    ) -> Result<(), DataError> {
        match self {
            LoadedTokenizer::Bytes => self.encode(text, into),
            LoadedTokenizer::Loaded(path, vocabulary) => vocabulary
                .encode_with_special_tokens(text, into)
                .map_err(|e| DataError::file(path, e)),
        }
    }

    /// The special tokens with which a text begins, as in
    /// [`encode_with_special_tokens`](Self::encode_with_special_tokens).
    pub(super) fn begin_tokens(&self) -> Result<Vec<u32>, DataError> {
        match self {
            LoadedTokenizer::Bytes => Ok(Vec::new()),
            LoadedTokenizer::Loaded(path, vocabulary) => {
                vocabulary.begin_tokens().map_err(|e| DataError::file(path, e))
            }
        }
    }

    /// Checks that the model has an embedding row for each token of the vocabulary. `special` says
    /// that tokens which stand for no text are used, too. Without it, those may have no row:
    /// Gemma's tokenizers have one for pictures. [`check_rows`](Self::check_rows) finds them in a
    /// text.
    pub(super) fn check_embedding_rows(
        &self,
        wanted: &ExpectedTensor,
        special: bool,
    ) -> Result<(), DataError> {
        let (path, tokens) = match self {
            LoadedTokenizer::Bytes => {
                (Path::new("tokenizer: bytes"), if special { 256 + SPECIAL.len() } else { 256 })
            }
            LoadedTokenizer::Loaded(path, vocabulary) => (path.as_path(), vocabulary.size(special)),
        };
        match wanted.num_embeddings.filter(|rows| *rows < tokens as u64) {
            None => Ok(()),
            Some(rows) => {
                let name = &wanted.name;
                let problem = format!(
                    "makes {tokens} tokens, but the Embedding of the model's input `{name}` has \
                     {rows} rows"
                );
                Err(DataError::file(path, problem))
            }
        }
    }

    /// The file of the tokenizer, and the token that stands for text which it does not know, if it
    /// has one.
    pub(super) fn unknown(&self) -> Option<(&Path, u32)> {
        match self {
            LoadedTokenizer::Loaded(path, vocabulary) => Some((path, vocabulary.unknown()?)),
            LoadedTokenizer::Bytes => None,
        }
    }

    /// The text of a token in an error, after its number.
    pub(super) fn shown(&self, token: u32) -> String {
        match self {
            LoadedTokenizer::Loaded(_, vocabulary) => vocabulary.token(token),
            LoadedTokenizer::Bytes => None,
        }
        .map_or_else(String::new, |name| format!(" (`{name}`)"))
    }

    /// Checks that the model has an embedding row for each of these tokens.
    pub(super) fn check_rows(
        &self,
        tokens: &[u32],
        wanted: &ExpectedTensor,
    ) -> Result<(), DataError> {
        let Some(rows) = wanted.num_embeddings else { return Ok(()) };
        let Some(token) = tokens.iter().find(|token| u64::from(**token) >= rows) else {
            return Ok(());
        };
        let path = match self {
            LoadedTokenizer::Bytes => Path::new("tokenizer: bytes"),
            LoadedTokenizer::Loaded(path, _) => path,
        };
        let name = self.shown(*token);
        let problem = format!(
            "the text has token {token}{name}, but the Embedding of the model's input `{}` has \
             {rows} rows",
            wanted.name
        );
        Err(DataError::file(path, problem))
    }

    /// Returns the text of tokens. Tokens that stand for no text are left out.
    pub fn decode(&self, tokens: &[u32]) -> Result<String, DataError> {
        match self {
            LoadedTokenizer::Bytes => {
                let bytes: Vec<u8> =
                    tokens.iter().filter_map(|token| u8::try_from(*token).ok()).collect();
                Ok(String::from_utf8_lossy(&bytes).into_owned())
            }
            LoadedTokenizer::Loaded(path, vocabulary) => {
                vocabulary.decode(tokens).map_err(|e| DataError::file(path, e))
            }
        }
    }

    /// Returns the number of a token that stands for no text.
    pub fn special_token(&self, key: &str, name: &str) -> Result<u32, DataError> {
        let id = match self {
            LoadedTokenizer::Bytes => {
                SPECIAL.iter().zip(256..).find(|(known, _)| **known == name).map(|(_, id)| id)
            }
            LoadedTokenizer::Loaded(_, vocabulary) => vocabulary.id(name),
        };
        let path = match self {
            LoadedTokenizer::Bytes => Path::new("tokenizer: bytes"),
            LoadedTokenizer::Loaded(path, _) => path,
        };
        id.ok_or_else(|| {
            DataError::file(
                path,
                format!("has no token `{name}`; name one that it has with `{key}:`"),
            )
        })
    }
}

fn load(path: &Path) -> Result<LoadedTokenizer, DataError> {
    let error = |problem: String| DataError::file(path, problem);
    let size = std::fs::metadata(path).map_err(|e| DataError::io(path, &e))?.len();
    if size > MAX_FILE {
        return Err(error(format!(
            "has {size} bytes, which no tokenizer.json has; is this the right file?"
        )));
    }
    let bytes = std::fs::read(path).map_err(|e| DataError::io(path, &e))?;
    let vocabulary = TokenizerFile::from_bytes(&bytes).map_err(error)?;
    Ok(LoadedTokenizer::Loaded(path.to_path_buf(), vocabulary))
}
