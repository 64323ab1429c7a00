//! The run file of an imported model, which begins with its weights.

use super::family::Output;
use super::pictures::Pictures;
use super::tokenizer_file::TokenizerFile;
use crate::output::printable;
use crate::run_file::sources;
use crate::run_file::yaml_text::{flow_text, one_or_list, scalar};
use crate::weights::rename_rules::RenameRules;
use crate::BossManError;
use std::fmt::Write as _;
use std::path::Path;

/// The most tokens of a sample. Longer ones are for the user to choose.
const SEQUENCE_LENGTH: u64 = 512;

/// What a run file says.
#[derive(Clone, Copy)]
pub(super) struct RunText<'a> {
    /// The folder with the weights, by its absolute path.
    pub(super) weights: &'a Path,
    /// The model's parameters that have other names or shapes there.
    pub(super) rename: &'a RenameRules,
    /// Names of tensors in it that the model does not use.
    pub(super) ignored: &'a [String],
    pub(super) tokenizer: Option<&'a TokenizerFile>,
    /// Of a model that takes pictures.
    pub(super) pictures: Option<&'a Pictures>,
    /// The text or the pictures to train on.
    pub(super) data: Option<&'a Path>,
    /// The most positions of a sequence. A model of pictures has none.
    pub(super) max_positions: u64,
    pub(super) output: Output,
}

/// Writes the run file.
pub(super) fn run_text(run: &RunText<'_>) -> Result<String, BossManError> {
    let weights = path(run.weights)?;
    let mut lines = String::from("# Written by `bossman import`. Every line is yours to change.\n");
    lines.push_str("model: model.yaml\n");
    let renamed = run.rename.texts().renamed;
    if renamed.is_empty() && run.ignored.is_empty() {
        writeln!(lines, "weights: {weights}").ok();
    } else {
        writeln!(lines, "weights:\n  path: {weights}").ok();
    }
    if !renamed.is_empty() {
        lines.push_str("  # The model's parameters that are made of tensors of other names.\n");
        lines.push_str("  rename:\n");
    }
    for (name, from) in &renamed {
        writeln!(lines, "    {}: {}", scalar(name), flow_text(&sources::write(from))).ok();
    }
    if !run.ignored.is_empty() {
        let names: Vec<String> = run.ignored.iter().map(|name| scalar(name)).collect();
        lines.push_str("  # Tensors in the files that the model does not use.\n");
        writeln!(lines, "  ignore: [{}]", names.join(", ")).ok();
    }
    write_data(&mut lines, run)?;
    lines.push_str(match run.output {
        Output::Logits | Output::TiedLogits => LOSS_OF_LOGITS,
        Output::HiddenStates => LOSS_OF_STATES,
        Output::Classes => LOSS_OF_CLASSES,
        Output::Numbers => LOSS_OF_NUMBERS,
        Output::Flags => LOSS_OF_FLAGS,
    });
    lines.push_str(LEARNING);
    if run.data.is_some() {
        lines.push_str("steps: 100\n");
    }
    Ok(lines)
}

/// Writes the samples to train on, or the tokenizer and how to add samples.
fn write_data(lines: &mut String, run: &RunText<'_>) -> Result<(), BossManError> {
    if let Some(pictures) = run.pictures {
        let folder = run.data.map(path).transpose()?;
        pictures.write_data(lines, folder.as_deref(), run.output);
        return Ok(());
    }
    if run.output.is_of_sequences() {
        lines.push_str(SAMPLES);
        return Ok(());
    }
    let length = run.max_positions.min(SEQUENCE_LENGTH);
    let tokenizer = run.tokenizer.map(|tokenizer| path(&tokenizer.path)).transpose()?;
    let eos = run.tokenizer.and_then(|tokenizer| one_or_list(&tokenizer.eos));
    let eos = eos.as_ref().map(flow_text);
    let (Some(data), Some(tokenizer)) = (run.data, &tokenizer) else {
        if let Some(tokenizer) = &tokenizer {
            lines.push_str("# How text becomes tokens, for `bossman generate`.\n");
            writeln!(lines, "tokenizer:\n  path: {tokenizer}").ok();
            writeln!(lines, "  sequence_length: {}", run.max_positions).ok();
            if let Some(eos) = &eos {
                writeln!(lines, "  eos: {eos}").ok();
            }
        }
        lines.push_str("# To train, add samples and the length of training, for example:\n");
        let tokenizer = tokenizer.as_deref().unwrap_or("tokenizer.json");
        let eos = eos.map(|eos| format!(", eos: {eos}")).unwrap_or_default();
        writeln!(
            lines,
            "# data: {{train: {{text: {{path: text.txt, tokenizer: {tokenizer}, sequence_length: \
             {length}{eos}}}}}}}\n# steps: 100"
        )
        .ok();
        return Ok(());
    };
    writeln!(lines, "data:\n  train:\n    text:\n      path: {}", path(data)?).ok();
    writeln!(lines, "      tokenizer: {tokenizer}").ok();
    writeln!(
        lines,
        "      # Memory grows with it, and attention with its square. At most {}.",
        run.max_positions
    )
    .ok();
    writeln!(lines, "      sequence_length: {length}").ok();
    if let Some(eos) = eos {
        writeln!(lines, "      eos: {eos}").ok();
    }
    lines.push_str("  validation: {split: 0.02}       # this share is not trained on\n");
    Ok(())
}

const LOSS_OF_LOGITS: &str = "\
# Logits have the tokens in their last dimension.
loss: {CrossEntropyLoss: {class_dim: -1}}
";

const LOSS_OF_STATES: &str = "\
# The output is hidden states. Take the loss that your targets need.
loss: MSELoss
";

const LOSS_OF_CLASSES: &str = "\
# The target of a sample is the number of its class.
loss: CrossEntropyLoss
";

const LOSS_OF_NUMBERS: &str = "\
# The targets of a sample are as many numbers as the model has labels.
loss: MSELoss
";

const LOSS_OF_FLAGS: &str = "\
# The targets of a sample are 0 or 1 for each label.
loss: BCEWithLogitsLoss
";

/// How to train on samples that are no text to go on with.
const SAMPLES: &str = "\
# To train, add samples and the length of training, for example:
# data: {train: train.safetensors}
# steps: 100
";

/// What does not depend on the model.
const LEARNING: &str = "\
# It keeps two numbers beside each parameter and its gradient: 16 bytes a parameter in all.
optimizer: {AdamW: {lr: 2.0e-5}}
# Samples of a step, and its parts. A worker's memory grows with the samples of a part.
batch_size: 8
microbatches: 4
# From it training goes on after Ctrl-C, a crash or the loss of a worker. It takes 12 bytes of disk
# a parameter.
checkpoint: {every: {minutes: 10}, keep: 1}
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
    use crate::data::Tokenizer;
    use crate::rename::Source;
    use crate::run_file::{Length, RunFile};

    fn read(folder: &Path, text: &str) -> RunFile {
        let file = folder.join("run.yaml");
        std::fs::write(&file, text).unwrap();
        RunFile::from_file(&file).unwrap()
    }

    #[test]
    fn the_run_file_is_read_back() {
        let place = tempfile::tempdir().unwrap();
        let tokenizer = TokenizerFile {
            path: place.path().join("tokenizer.json"),
            eos: vec!["<|end|>".into(), "<turn>".into()],
            warnings: Vec::new(),
        };
        std::fs::write(&tokenizer.path, "{}").unwrap();
        let data = place.path().join("my text.txt");
        let ignored = ["lm_head.weight".to_string(), "layers.{i}.angles".to_string()];
        let mut rules = RenameRules::default();
        rules.rule("a.{i}.w", &["b.{i}.w".into(), Source::transposed("c.{i}")]).unwrap();
        let none = RenameRules::default();
        let nothing: &[String] = &[];
        for (ignored, rename) in [(&ignored[..], &none), (nothing, &none), (nothing, &rules)] {
            let run = RunText {
                weights: place.path(),
                rename,
                ignored,
                tokenizer: Some(&tokenizer),
                pictures: None,
                data: Some(&data),
                max_positions: 64,
                output: Output::Logits,
            };
            let text = run_text(&run).unwrap();
            let run_file = read(place.path(), &text);
            assert_eq!(run_file.length, Some(Length::Steps(100)));
            let weights = run_file.weights.unwrap();
            assert_eq!(weights.path, place.path());
            assert_eq!(weights.rename.texts().ignored, ignored);
            assert_eq!(weights.rename.texts().renamed, rename.texts().renamed);
            assert!(text.contains("sequence_length: 64\n"), "{text}");
            assert!(text.contains("eos: [\"<|end|>\", \"<turn>\"]\n"), "{text}");
            let without = RunText { data: None, output: Output::HiddenStates, ..run };
            let lines = run_text(&without).unwrap();
            let bare = read(place.path(), &lines);
            assert_eq!((&bare.data, bare.length), (&None, None));
            let text = bare.text().unwrap();
            assert_eq!(text.tokenizer, Tokenizer::File(tokenizer.path.clone()));
            assert_eq!((text.sequence_length, text.eos), (64, tokenizer.eos.clone()));
            // The lines to add are right as they stand.
            for output in [Output::HiddenStates, Output::Classes, Output::Numbers, Output::Flags] {
                let run = RunText { output, ..without };
                let lines = run_text(&run).unwrap().replace("# data", "data");
                let more = read(place.path(), &lines.replace("# st", "st"));
                assert!(more.data().is_ok() && more.length().is_ok());
            }
        }
    }
}
