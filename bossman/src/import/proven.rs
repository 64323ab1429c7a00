//! How near models of an architecture come to transformers, as it was measured.

use serde::Deserialize;
use std::collections::BTreeMap;

/// Written by `tools/huggingface_oracle.py --page`.
const PROVEN: &str = include_str!("proven.json");

/// What was compared.
#[derive(Deserialize)]
struct Proven {
    /// The version of transformers.
    transformers: String,
    architectures: BTreeMap<String, WorstErrors>,
}

/// The worst errors of the models of an architecture, as shares of the largest element or of the
/// loss.
#[derive(Deserialize)]
struct WorstErrors {
    models: u64,
    outputs: f64,
    losses: f64,
    weights: f64,
    #[serde(rename = "biases of keys")]
    biases_of_keys: f64,
}

/// A section of MODEL.md about an architecture.
pub(super) fn section(architecture: &str) -> String {
    let proven: Option<Proven> = serde_json::from_str(PROVEN).ok();
    let found = proven.as_ref().and_then(|proven| proven.architectures.get(architecture));
    let (Some(proven), Some(worst)) = (&proven, found) else {
        return format!(
            "## Beside transformers\n\nNo model of `{architecture}` itself was compared with \
             transformers, but models of other classes with the same layers were.\n\n"
        );
    };
    let WorstErrors { models, outputs, losses, weights, biases_of_keys } = worst;
    let biases = match *biases_of_keys > 0.0 {
        true => format!("| biases of keys after them | {biases_of_keys:.0e} |\n"),
        false => String::new(),
    };
    format!(
        "## Beside transformers\n\n{models} small model(s) of `{architecture}` with random weights \
         were compared with transformers {}, in float32 on a CPU, whole and cut in three. The \
         worst errors, as shares of the largest element or of the loss:\n\n| of | worst error \
         |\n| --- | --- |\n| outputs | {outputs:.0e} |\n| losses of 20 steps of AdamW | \
         {losses:.0e} |\n| weights after them | {weights:.0e} |\n{biases}\n",
        proven.transformers
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_architecture_has_its_errors_or_says_that_it_has_none() {
        let text = section("LlamaForCausalLM");
        for part in ["small model(s) of `LlamaForCausalLM`", "| outputs | ", "| biases of keys"] {
            assert!(text.contains(part), "{text}");
        }
        let text = section("MistralModel");
        assert!(text.contains("No model of `MistralModel` itself was compared"), "{text}");
    }
}
