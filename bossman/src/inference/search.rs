//! The settings of the search for the best translation.

use crate::BossManError;

/// The settings of the search for the best translation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Search {
    /// The number of unfinished translations to follow. 1 is greedy.
    pub beams: u32,
    /// A translation's log probability is divided by `((5 + tokens) / 6) ^ length_penalty` (Wu et
    /// al. 2016, arXiv:1609.08144).
    pub length_penalty: f64,
    /// The most tokens of a translation.
    pub max_length: u64,
}

impl Search {
    /// The most beams: each is a row of a batch.
    pub const MAX_BEAMS: u32 = 256;

    /// The log probability of a translation with so many tokens, divided by its penalty.
    pub(super) fn normalized(&self, score: f64, tokens: usize) -> f64 {
        score / ((5.0 + tokens as f64) / 6.0).powf(self.length_penalty)
    }

    /// # Errors
    /// A number that is out of its range.
    pub(super) fn check(&self) -> Result<(), BossManError> {
        let wrong = |problem: String| Err(BossManError::Usage(problem));
        if !(1..=Self::MAX_BEAMS).contains(&self.beams) {
            return wrong(format!("{} beams: expected 1 to {}", self.beams, Self::MAX_BEAMS));
        }
        if self.max_length == 0 {
            return wrong("a max_length of 0: expected 1 or more".into());
        }
        if !(self.length_penalty >= 0.0 && self.length_penalty.is_finite()) {
            return wrong(format!(
                "a length_penalty of {}: expected 0 or more",
                self.length_penalty
            ));
        }
        Ok(())
    }
}

impl Default for Search {
    /// Greedy, 128 tokens at most.
    fn default() -> Self {
        Search { beams: 1, length_penalty: 0.6, max_length: 128 }
    }
}
