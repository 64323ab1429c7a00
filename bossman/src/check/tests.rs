//! Golden texts: the errors of a run whose data does not fit its loss.

use super::Samples;
use crate::run_file::RunFile;
use crate::Model;

const CLASSIFIER: &str = "inputs: {x: [batch, 2]}\nlayers:\n- Linear: {in_features: 2, \
                          out_features: 3}\n";
const PROBABILITY: &str = "inputs: {x: [batch, 2]}\nlayers:\n- Linear: {in_features: 2, \
                           out_features: 1}\n- Sigmoid\n";
const LANGUAGE: &str = "inputs: {x: {shape: [batch, seq], dtype: int64}}\nlayers:\n- Embedding: \
                        {num_embeddings: 259, embedding_dim: 4}\n- Linear: {in_features: 4, \
                        out_features: 259}\n";
const TRANSPOSED: &str = "- Transpose: {dim0: 1, dim1: 2}\n";
const TEXT: &str = "{text: {path: d.csv, tokenizer: bytes, sequence_length: 8}}";

/// Checks a run of this model, loss and data in a folder of its own. The result has no folder.
fn checked(model: &str, loss: &str, source: &str, data: &str) -> Result<String, String> {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("m.yaml", model);
    write("d.csv", data);
    write("d.jsonl", data);
    let run = format!(
        "model: m.yaml\ndata: {{train: {source}}}\nloss: {loss}\noptimizer: SGD\nbatch_size: 2\n\
         steps: 1\n"
    );
    write("run.yaml", &run);
    let run = RunFile::from_file(folder.path().join("run.yaml")).unwrap();
    let sizes = run.check_data(&Model::from_file(&run.model).unwrap(), Samples::FirstAndLast);
    let without_folder = |text: String| text.replace(&format!("{}/", folder.path().display()), "");
    sizes.map(|sizes| sizes.to_string()).map_err(|error| without_folder(error.to_string()))
}

fn refused(model: &str, loss: &str, data: &str) -> String {
    checked(model, loss, "d.csv", data).unwrap_err()
}

#[test]
fn a_class_that_the_model_has_no_output_for_is_named_with_its_line() {
    let checked = |loss: &str, data: &str| checked(CLASSIFIER, loss, "d.csv", data);
    assert_eq!(
        checked("CrossEntropyLoss", "a,b,label\n0,0,0\n0,0,2\n").unwrap(),
        "2 samples to train on"
    );
    assert_eq!(
        checked("CrossEntropyLoss", "a,b,label\n0,0,1\n0,0,2\n0,0,1\n0,0,3\n").unwrap_err(),
        "d.csv: line 5: class 3, but the model has 3 outputs (0 to 2); do labels start at 1?"
    );
    assert_eq!(
        checked("NLLLoss", "0,0,0\n0,0,7\n").unwrap_err(),
        "d.csv: line 2: class 7, but the model has 3 outputs (0 to 2); give the last layer 8 \
         outputs, or correct the label"
    );
    checked("{CrossEntropyLoss: {ignore_index: 7}}", "0,0,0\n0,0,7\n").unwrap();
}

#[test]
fn a_class_in_lines_of_json_is_named_with_its_line() {
    let source = "{jsonl: {path: d.jsonl, inputs: {x: x}, target: y}}";
    let data = "{\"x\": [0, 0], \"y\": 0}\n\n{\"x\": [0, 0], \"y\": -1}\n";
    assert_eq!(
        checked(CLASSIFIER, "CrossEntropyLoss", source, data).unwrap_err(),
        "d.jsonl: line 3: class -1, but the model has 3 outputs (0 to 2); to leave such targets \
         out, set `ignore_index: -1`"
    );
}

/// Between the first thousand samples and the last one, nothing is read.
#[test]
fn the_first_samples_and_the_last_one_are_read() {
    let data = |wrong: usize| -> String {
        (0..1200).map(|row| if row == wrong { "0,0,9\n" } else { "0,0,0\n" }).collect()
    };
    for wrong in [0, 1, 999, 1199] {
        let error = refused(CLASSIFIER, "CrossEntropyLoss", &data(wrong));
        assert!(error.starts_with(&format!("d.csv: line {}: class 9", wrong + 1)), "{error}");
    }
    checked(CLASSIFIER, "CrossEntropyLoss", "d.csv", &data(1100)).unwrap();
}

#[test]
fn a_target_that_is_no_probability_is_named_with_its_line() {
    assert_eq!(
        refused(PROBABILITY, "BCELoss", "0,0,1\n0,0,2\n"),
        "d.csv: line 2: target 2, but `BCELoss` takes probabilities from 0 to 1; scale the targets"
    );
    assert_eq!(
        refused(PROBABILITY, "BCEWithLogitsLoss", "0,0,-0.5\n"),
        "d.csv: line 1: target -0.5, but `BCEWithLogitsLoss` takes probabilities from 0 to 1; \
         scale the targets"
    );
    assert_eq!(
        refused(PROBABILITY, "KLDivLoss", "0,0,-0.5\n"),
        "d.csv: line 1: target -0.5, but `KLDivLoss` takes probabilities from 0 to 1; for \
         logarithms of probabilities set `log_target: true`"
    );
    checked(PROBABILITY, "{KLDivLoss: {log_target: true}}", "d.csv", "0,0,-0.5\n").unwrap();
    checked(PROBABILITY, "MSELoss", "d.csv", "0,0,2\n").unwrap();
}

#[test]
fn a_language_model_needs_its_classes_where_the_loss_takes_them() {
    let text = "The quick brown fox jumps over the lazy dog.";
    let checked = |model: &str, loss: &str| checked(model, loss, TEXT, text);
    let last = "{CrossEntropyLoss: {class_dim: -1}}";
    checked(LANGUAGE, last).unwrap();
    let transposed = format!("{LANGUAGE}{TRANSPOSED}");
    checked(&transposed, "CrossEntropyLoss").unwrap();
    assert_eq!(
        checked(LANGUAGE, "CrossEntropyLoss").unwrap_err(),
        "run.yaml:3:7: the output is [batch, seq, 259], a target [batch, 8]: the classes are in \
         the last dimension, but `CrossEntropyLoss` takes [batch, classes, ...]; add `class_dim: \
         -1` to the loss"
    );
    assert_eq!(
        checked(&transposed, last).unwrap_err(),
        "run.yaml:3:7: the output is [batch, 259, seq], a target [batch, 8]: the classes are in \
         dimension 1, but `class_dim: -1` takes [batch, ..., classes]; leave `class_dim` out"
    );
}

#[test]
fn weights_of_classes_are_as_many_as_outputs() {
    assert_eq!(
        refused(CLASSIFIER, "{CrossEntropyLoss: {weight: [1, 2]}}", "0,0,0\n"),
        "run.yaml:3:7: the model has 3 outputs, but `weight` of `CrossEntropyLoss` has 2 numbers; \
         give one for each class"
    );
}

#[test]
fn targets_that_are_all_ignored_are_no_data() {
    let checked =
        |data: &str| checked(CLASSIFIER, "{CrossEntropyLoss: {ignore_index: 2}}", "d.csv", data);
    assert_eq!(
        checked("0,0,2\n0,0,2\n").unwrap_err(),
        "d.csv: line 1: class 2, as every target here, is ignored"
    );
    checked("0,0,2\n0,0,1\n").unwrap();
}

#[test]
fn positive_weights_are_as_many_as_outputs() {
    let model = CLASSIFIER.replace("out_features: 3", "out_features: 1");
    let checked = |weights: &str| {
        let loss = format!("{{BCEWithLogitsLoss: {{pos_weight: {weights}}}}}");
        checked(&model, &loss, "d.csv", "0,0,1\n0,0,0\n")
    };
    checked("[2]").unwrap();
    assert_eq!(
        checked("[2, 3]").unwrap_err(),
        "run.yaml:3:7: the output's last dimension is 1, but `pos_weight` of `BCEWithLogitsLoss` \
         has 2 numbers; give one for each of its elements, or one for all"
    );
}
