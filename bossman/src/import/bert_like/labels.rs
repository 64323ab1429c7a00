//! What a classifier says of a sequence: the number of its outputs, and what they are.

use crate::import::family::Output;
use crate::import::hf_config::HfConfig;
use crate::BossManError;
use serde_json::Value;

/// The number of labels when a configuration names none, as in transformers.
const DEFAULT: u64 = 2;

/// The labels of a classifier.
pub(super) fn labels(config: &HfConfig) -> Result<(u64, Output), BossManError> {
    let named = config.value("id2label").and_then(Value::as_object).map(|named| named.len() as u64);
    let count = match named.filter(|count| *count > 0) {
        Some(count) => count,
        None => config.size_or("num_labels", DEFAULT)?,
    };
    let output = match config.text("problem_type")? {
        Some("regression") => Output::Numbers,
        Some("single_label_classification") => Output::Classes,
        Some("multi_label_classification") => Output::Flags,
        // As transformers decides at the first loss.
        None if count == 1 => Output::Numbers,
        None => Output::Classes,
        Some(_) => {
            let known = "regression, single_label_classification or multi_label_classification";
            return Err(config.refused("problem_type", &format!("expected {known}")));
        }
    };
    Ok((count, output))
}
