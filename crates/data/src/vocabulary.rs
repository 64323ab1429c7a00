//! The tokenizer of a `tokenizer.json`, as Hugging Face's `tokenizers` reads it.

use tokenizers::Tokenizer;

/// A loaded `tokenizer.json`. Its own truncation and padding are off, because samples are cut and
/// padded elsewhere.
#[derive(Clone, Debug)]
pub struct TokenizerFile(Box<Tokenizer>);

impl TokenizerFile {
    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        let tokenizer = Tokenizer::from_bytes(bytes);
        let mut tokenizer = tokenizer.map_err(|e| format!("is no tokenizer.json: {e}"))?;
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).map_err(|e| e.to_string())?;
        Ok(TokenizerFile(Box::new(tokenizer)))
    }

    pub(super) fn encode(&self, text: &str, into: &mut Vec<u32>) -> Result<(), String> {
        let encoding = self.0.encode_fast(text, false).map_err(|e| e.to_string())?;
        into.extend(encoding.get_ids());
        Ok(())
    }

    /// Appends the text's tokens with the special ones that the file puts around a text.
    pub(super) fn encode_with_special_tokens(
        &self,
        text: &str,
        into: &mut Vec<u32>,
    ) -> Result<(), String> {
        let encoding = self.0.encode_fast(text, true).map_err(|e| e.to_string())?;
        into.extend(encoding.get_ids());
        Ok(())
    }

    pub(super) fn decode(&self, tokens: &[u32]) -> Result<String, String> {
        self.0.decode(tokens, true).map_err(|e| e.to_string())
    }

    /// Returns the number of tokens, with or without those that the file adds to its vocabulary.
    pub(super) fn size(&self, added: bool) -> usize {
        self.0.get_vocab_size(added)
    }

    pub(super) fn token(&self, id: u32) -> Option<String> {
        self.0.id_to_token(id)
    }

    pub(super) fn id(&self, token: &str) -> Option<u32> {
        self.0.token_to_id(token)
    }
}
