//! The result of a validation.

use crate::inference::score::Score;
use crate::inference::translation_score::Translations;
use serde::{Deserialize, Serialize};

/// The result of a validation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ValidationResult {
    /// Its loss and accuracy.
    #[serde(flatten)]
    pub score: Score,
    /// The translations, if the run file asks for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub translations: Option<Translations>,
}

impl ValidationResult {
    /// Its numbers: `loss`, and `accuracy` and `bleu` if they exist.
    pub fn to_json(&self) -> serde_json::Value {
        let mut json = serde_json::json!({"loss": self.score.loss});
        if let Some(accuracy) = self.score.accuracy {
            json["accuracy"] = accuracy.into();
        }
        if let Some(translations) = &self.translations {
            json["bleu"] = translations.bleu.into();
        }
        json
    }
}
