//! The score of a model's translations, and the settings that it depends on: values.

use super::search::Search;
use serde::{Deserialize, Serialize};

/// The pairs to translate when a model is validated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TranslationSettings {
    /// The settings of the search.
    pub search: Search,
    /// The number of pairs to translate, from the first one on.
    pub pairs: u64,
    /// The number of them to show.
    pub samples: u64,
}

/// The translations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Translations {
    /// From 0 to 100; see [`crate::bleu()`].
    pub bleu: f64,
    /// The number of translations.
    pub pairs: usize,
    /// Some of them: text, reference, translation.
    pub samples: Vec<[String; 3]>,
}
