//! Run files of any content: an error or a run that can be written, never a panic.

use super::parse;
use crate::ClassDim;
use std::path::Path;
use testkit::mutate::fuzz;

const PIECES: [&str; 36] = [
    "0",
    "-1",
    "1e400",
    ".nan",
    "null",
    "[]",
    "{}",
    "[1, 2]",
    "\n",
    "\n  ",
    ": ",
    "- ",
    "#",
    "&a ",
    "*a",
    "!t ",
    "\u{0}",
    "é",
    "18446744073709551616",
    "checkpoint: {dir: c, every: {minutes: 5}}\n",
    "columns: {inputs: {x: [a, b]}, target: {column: y, transform: log}, id: i, missing: mean}",
    "normalize: auto\n",
    "receipt: {audit: 3}\n",
    "guards: {nonfinite: skip}\n",
    "redundancy: {neighbour: {minutes: 1}}\n",
    "replicas: [2, 1]\n",
    "shard: parameters\n",
    "loss: {NLLLoss: {class_dim: -1}}\n",
    "schedule: zb-v\n",
    "chunks: 3\n",
    "cuts: [a, b]\n",
    "weights: {path: a, rename: {'{i}': b}}\n",
    "weights: {path: a, rename: {b: {transpose: c}}}\n",
    "translate: {beams: 4}\n",
    "lr_schedule: {cosine: {total_steps: 5}}\n",
    "s3://a@b/c",
];

fn examples(folder: &Path, found: &mut Vec<Vec<u8>>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            examples(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "yaml") {
            found.push(std::fs::read(path).unwrap());
        }
    }
}

#[test]
fn a_run_file_with_its_classes_in_the_last_dimension_reads_back() {
    let text = |loss: &str| {
        format!(
            "model: m.yaml\ndata: {{train: d.csv}}\nloss: {loss}\noptimizer: SGD\nbatch_size: 2\n\
             steps: 1\n"
        )
    };
    for (class_dim, found) in [("-1", ClassDim::Last), ("1", ClassDim::Second)] {
        for name in ["CrossEntropyLoss", "NLLLoss"] {
            let text = text(&format!("{{{name}: {{class_dim: {class_dim}}}}}"));
            let run = parse(&text, Path::new("")).unwrap();
            assert_eq!(run.loss.classes().unwrap().class_dim, found);
            assert_eq!(parse(&run.to_yaml(), Path::new("")).unwrap(), run);
        }
    }
}

#[test]
fn a_run_file_of_any_content_is_read_or_refused() {
    let mut corpus = Vec::new();
    examples(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples"), &mut corpus);
    assert!(corpus.len() > 5);
    fuzz("run-file", &corpus, &PIECES, |bytes| {
        let Ok(run) = parse(&String::from_utf8_lossy(bytes), Path::new("")) else { return };
        // What is read can be written, and reads back as the same run. NaN equals nothing.
        let text = run.to_yaml();
        let again = parse(&text, Path::new("")).unwrap_or_else(|e| panic!("{e:?}:\n{text}"));
        assert!(again == run || text.contains(".nan"), "{run:?}\nis not\n{again:?}\n{text}");
    });
}
