//! The run file of an imported model: training that begins with its weights.

use super::tokenizer_file::TokenizerFile;
use crate::output::printable;
use crate::run_file::yaml_text::scalar;
use crate::BossManError;
use std::fmt::Write as _;
use std::path::Path;

/// The most tokens of a sample. Longer ones are for the user to choose.
const SEQUENCE_LENGTH: u64 = 512;

/// What a run file says.
pub(super) struct RunText<'a> {
    /// The folder with the weights, by its absolute path.
    pub(super) weights: &'a Path,
    /// Names of tensors in it that the model does not use.
    pub(super) ignored: &'a [String],
    pub(super) text: TextData<'a>,
    /// The most positions of a sequence.
    pub(super) max_positions: u64,
}

/// The text to train on.
pub(super) struct TextData<'a> {
    pub(super) path: &'a Path,
    pub(super) tokenizer: &'a TokenizerFile,
}

/// Writes the run file.
pub(super) fn run_text(run: &RunText<'_>) -> Result<String, BossManError> {
    let (weights, text) = (path(run.weights)?, &run.text);
    let mut lines = String::from("# Written by `bossman import`. Every line is yours to change.\n");
    lines.push_str("model: model.yaml\n");
    match run.ignored {
        [] => writeln!(lines, "weights: {weights}").ok(),
        names => {
            let names: Vec<String> = names.iter().map(|name| scalar(name)).collect();
            writeln!(lines, "weights:\n  path: {weights}").ok();
            lines.push_str("  # Tensors in the files that the model does not use.\n");
            writeln!(lines, "  ignore: [{}]", names.join(", ")).ok()
        }
    };
    let length = run.max_positions.min(SEQUENCE_LENGTH);
    writeln!(lines, "data:\n  train:\n    text:\n      path: {}", path(text.path)?).ok();
    writeln!(lines, "      tokenizer: {}", path(&text.tokenizer.path)?).ok();
    writeln!(
        lines,
        "      # Memory grows with it, and attention with its square. At most {}.",
        run.max_positions
    )
    .ok();
    writeln!(lines, "      sequence_length: {length}").ok();
    if let Some(eos) = &text.tokenizer.eos {
        writeln!(lines, "      eos: {}", scalar(eos)).ok();
    }
    lines.push_str("  validation: {split: 0.02}       # this share is not trained on\n");
    lines.push_str(FIXED);
    Ok(lines)
}

/// What does not depend on the model.
const FIXED: &str = "\
# Logits have the tokens in their last dimension.
loss: {CrossEntropyLoss: {class_dim: -1}}
# It keeps two numbers beside each parameter and its gradient: 16 bytes a parameter in all.
optimizer: {AdamW: {lr: 2.0e-5}}
# Samples of a step. With one microbatch at a time on each worker, memory grows with the quotient.
batch_size: 8
microbatches: 4
steps: 100
";

/// A path as the run file has it.
fn path(path: &Path) -> Result<String, BossManError> {
    path.to_str().map(scalar).ok_or_else(|| {
        let shown = printable(&path.to_string_lossy(), 200);
        BossManError::Usage(format!("{shown}: a run file has paths in UTF-8; rename it"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_file::RunFile;

    #[test]
    fn the_run_file_is_read_back() {
        let place = tempfile::tempdir().unwrap();
        let tokenizer = TokenizerFile {
            path: place.path().join("tokenizer.json"),
            eos: Some("<|end|>".into()),
        };
        std::fs::write(&tokenizer.path, "{}").unwrap();
        let data = place.path().join("my text.txt");
        let ignored = ["lm_head.weight".to_string(), "layers.{i}.angles".to_string()];
        for ignored in [&ignored[..], &[]] {
            let run = RunText {
                weights: place.path(),
                ignored,
                text: TextData { path: &data, tokenizer: &tokenizer },
                max_positions: 64,
            };
            let text = run_text(&run).unwrap();
            let file = place.path().join("run.yaml");
            std::fs::write(&file, &text).unwrap();
            std::fs::write(place.path().join("model.yaml"), "").unwrap();
            let read = RunFile::from_file(&file).unwrap();
            let weights = read.weights.unwrap();
            assert_eq!(weights.path, place.path());
            assert_eq!(weights.rename.texts().ignored, ignored);
            assert!(text.contains("sequence_length: 64\n"), "{text}");
            assert!(text.contains("eos: \"<|end|>\"\n"), "{text}");
        }
    }
}
