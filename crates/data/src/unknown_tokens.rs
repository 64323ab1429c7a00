//! Finds texts that a tokenizer hardly knows, such as those of another script.

use super::tokens::LoadedTokenizer;
use crate::DataError;
use std::path::Path;

/// Counts the tokens of texts, and those that stand for anything which the tokenizer does not know.
pub(super) struct UnknownTokens<'a> {
    tokenizer: &'a LoadedTokenizer,
    unknown: u64,
    all: u64,
}

impl<'a> UnknownTokens<'a> {
    pub(super) fn new(tokenizer: &'a LoadedTokenizer) -> Self {
        UnknownTokens { tokenizer, unknown: 0, all: 0 }
    }

    /// Counts these tokens of a text.
    pub(super) fn count(&mut self, tokens: &[u32]) {
        self.all += tokens.len() as u64;
        if let Some((_, unknown)) = self.tokenizer.unknown() {
            self.unknown += tokens.iter().filter(|token| **token == unknown).count() as u64;
        }
    }

    /// Checks that a model can learn from these texts, of which this is the first file.
    ///
    /// # Errors
    /// More than a third is unknown. Some tokenizers put a known token for the space before each
    /// unknown word, so half of their tokens are unknown at most.
    pub(super) fn check(&self, text: &Path) -> Result<(), DataError> {
        let Some((path, token)) = self.tokenizer.unknown() else { return Ok(()) };
        if self.unknown <= self.all / 3 {
            return Ok(());
        }
        let problem = format!(
            "makes token {token}{} of {} of {} tokens of the texts ({} ..), which stands for what \
             it does not know; take a tokenizer for their language, or `tokenizer: bytes`",
            self.tokenizer.shown(token),
            self.unknown,
            self.all,
            text.display(),
        );
        Err(DataError::file(path, problem))
    }
}
