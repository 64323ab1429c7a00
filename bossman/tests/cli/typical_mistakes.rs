//! Golden texts: mistakes that are often made, each with the command that meets it. No worker
//! starts.

use crate::{bossman, example, said};
use std::path::{Path, PathBuf};

/// A folder of its own for one test, with the digits' model.
fn folder(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::remove_dir_all(&folder).ok();
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::copy(example("digits/digits.yaml"), folder.join("model.yaml")).unwrap();
    folder
}

/// A run file of the digits with these lines.
fn run_file(lines: &str) -> String {
    let data = example("digits/digits-train.csv.gz");
    let data = if lines.contains("data:") { "" } else { &format!("data: {{train: {data}}}\n") };
    let size = if lines.contains("batch_size:") { "" } else { "batch_size: 32\n" };
    format!(
        "model: model.yaml\nloss: CrossEntropyLoss\noptimizer: SGD\nsteps: 1\n{data}{size}{lines}\n"
    )
}

/// Standard error of the command. Paths are relative to the folder.
fn errors(folder: &Path, arguments: &[&str], code: i32) -> String {
    let within = format!("{}/", folder.display());
    let is_file = |argument: &&str| argument.contains('.') && !argument.starts_with('-');
    let placed = |argument: &&str| match is_file(argument) {
        true => format!("{within}{argument}"),
        false => (*argument).to_string(),
    };
    let placed: Vec<String> = arguments.iter().map(placed).collect();
    let placed: Vec<&str> = placed.iter().map(String::as_str).collect();
    let environment =
        [("BOSSMAN_WORKER", "/no/such"), ("BOSSMAN_RUNS_DIR", &format!("{within}runs"))];
    said(bossman(&placed, &environment), code).1.replace(&within, "")
}

#[test]
fn mistakes_in_flags_name_the_right_flag_or_value() {
    let folder = folder("flag-mistakes");
    std::fs::write(folder.join("run.yaml"), run_file("")).unwrap();
    let golden: [(&[&str], &str); 3] = [
        (
            &["check", "model.yaml", "--bind", "batch=32"],
            "invalid value 'batch=32' for '--bind <WORD=SIZE>': sizes are given with --dim; write \
             --dim batch=32",
        ),
        (
            &["train", "run.yaml", "--local", "two"],
            "invalid value 'two' for '--local <N>': expected a number of workers, as 2",
        ),
        (
            &["train", "run.yaml", "--workers", "all"],
            "invalid value 'all' for '--workers <N>': expected a number of workers, as 2",
        ),
    ];
    for (arguments, expected) in golden {
        let found = errors(&folder, arguments, 2);
        assert_eq!(found.lines().next(), Some(&*format!("error: {expected}")));
    }
}

#[test]
fn files_of_the_wrong_kind_are_named() {
    let folder = folder("kind-mistakes");
    std::fs::write(folder.join("run.yaml"), run_file("")).unwrap();
    let nested = run_file("").replace("model.yaml", "run.yaml");
    std::fs::write(folder.join("nested.yaml"), nested).unwrap();
    let golden: [(&[&str], &str); 5] = [
        (
            &["train", "model.yaml", "--local", "1"],
            "model.yaml: is a model file; name a run file, which has `model: model.yaml` and says \
             how to train it; `bossman check` takes a model file",
        ),
        (
            &["train", "nested.yaml", "--local", "1"],
            "run.yaml: is a run file; name a model file, which has `inputs` and `layers`; the run \
             file names its model after `model:`",
        ),
        (
            &["train", "run.yaml", "--local", "1", "--save", "x.pt"],
            "x.pt: BossMan writes safetensors; end the name in .safetensors",
        ),
        (
            &["export", "run.yaml", "--weights", "w.safetensors", "--to", "x.PTH"],
            "x.PTH: BossMan writes safetensors; end the name in .safetensors",
        ),
        (
            &["train", "run.yaml", "--local", "1", "--weights", "other.safetensors"],
            "the weights do not fit the model:\n  \
             `1.bias`: missing; expected float32 [16]\n  \
             `1.weight`: missing; expected float32 [16, 1, 3, 3]\n  \
             `11.bias`: missing; expected float32 [16]\n  \
             `11.weight`: missing; expected float32 [16, 16, 3, 3]\n  \
             `15.bias`: missing; expected float32 [10]\n  \
             and 8 more",
        ),
    ];
    // One tensor `other`: the number 1.
    let header = r#"{"other":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    let mut other = (header.len() as u64).to_le_bytes().to_vec();
    other.extend(header.bytes().chain(1f32.to_le_bytes()));
    std::fs::write(folder.join("other.safetensors"), other).unwrap();
    for (arguments, expected) in golden {
        assert_eq!(errors(&folder, arguments, 1), format!("bossman: {expected}\n"));
    }
}

#[test]
fn run_files_and_data_that_do_not_fit_are_named() {
    let folder = folder("data-mistakes");
    std::fs::create_dir_all(folder.join("pictures/a")).unwrap();
    let files: [(&str, &[u8]); 4] = [
        ("pictures/a/x.png", b"no picture"),
        ("commas.csv", b",,,\n,,,\n,,,\n"),
        ("gap.csv", &[b"0,".repeat(64), b"1\n,,,\n".to_vec()].concat()),
        ("text.txt", b"text"),
    ];
    for (name, content) in files {
        std::fs::write(folder.join(name), content).unwrap();
    }
    let golden = [
        (
            "batch_size: 4\nmicrobatches: 8",
            "run.yaml:7:15: `microbatches: 8` is more than `batch_size: 4`: a microbatch has at \
             least one sample; take fewer microbatches or larger batches",
        ),
        (
            "cuts: [4, maxpool]",
            "run.yaml:7:11: unknown layer `maxpool`: expected one of 0, 1, 2, 3, 4, 5, 6, 7, 8, \
             9, 10, 11, 12, 13, 14, 15",
        ),
        (
            "cuts: [4, 2]",
            "run.yaml:7:11: cuts: layer `2` cannot start a new stage here; name layers after the \
             first, in the order of the model",
        ),
        (
            "data: {train: {text: {path: text.txt, sequence_length: 2, tokenizer: byte}}}",
            "run.yaml:6:70: `tokenizer`: there is no file `byte`; did you mean `bytes`?",
        ),
        (
            "data: {train: commas.csv}",
            "commas.csv: it holds no samples: its lines have \
                                       separators alone",
        ),
        ("data: {train: gap.csv}", "gap.csv: line 2 has separators alone; delete it"),
        (
            "data: {train: pictures}",
            "pictures/a/x.png: Format error decoding Png: Invalid PNG signature.",
        ),
    ];
    for (lines, expected) in golden {
        std::fs::write(folder.join("run.yaml"), run_file(lines)).unwrap();
        let found = errors(&folder, &["train", "run.yaml", "--local", "1"], 1);
        assert_eq!(found, format!("bossman: {expected}\n"), "{lines}");
        if lines.starts_with("cuts") {
            assert_eq!(errors(&folder, &["check", "run.yaml"], 1), found);
        }
    }
    let found = errors(&folder, &["log", "run.yaml"], 1);
    assert_eq!(found, "bossman: run.yaml: is a file; name the folder of a run\n");
}

/// Training goes on, so it is a warning: only the search for the worker program fails.
#[test]
fn numbers_without_effect_are_warnings() {
    let folder = folder("large-batch");
    let cases = [
        (
            "batch_size: 100000",
            "warning: batch_size: 100000, but there are only 1433 samples to train on; every step \
             takes them all",
        ),
        (
            "microbatches: 2\nreplicas: [1, 4]",
            "warning: replicas: 4, but a step has only 2 microbatches; the other replicas have \
             none to compute",
        ),
    ];
    let train = ["train", "run.yaml", "--local", "5", "--no-run-folder"];
    for (lines, expected) in cases {
        std::fs::write(folder.join("run.yaml"), run_file(lines)).unwrap();
        for (words, code) in [(&train[..], 1), (&["check", "run.yaml"], 0)] {
            assert_eq!(errors(&folder, words, code).lines().next(), Some(expected));
        }
    }
}

/// Shapes alone cannot tell it: the length is a word in the model.
#[test]
fn a_sequence_longer_than_the_positions_is_named() {
    let folder = folder("long-sequence");
    let model = "inputs: {ids: {shape: [batch, seq], dtype: int64}}
layers:
  - Embedding: {num_embeddings: 256, embedding_dim: 4}
  - LearnedPositions: {num_positions: 8, d_model: 4, batch_first: true}
  - Linear: {in_features: 4, out_features: 256}
";
    std::fs::write(folder.join("model.yaml"), model).unwrap();
    std::fs::write(folder.join("text.txt"), "In the beginning was the word.".repeat(9)).unwrap();
    let run = |length| {
        let data =
            format!("data: {{train: {{text: {{path: text.txt, sequence_length: {length}}}}}}}");
        let loss = "loss: {CrossEntropyLoss: {class_dim: -1}}";
        run_file(&data).replace("loss: CrossEntropyLoss", loss)
    };
    std::fs::write(folder.join("run.yaml"), run(9)).unwrap();
    for arguments in [&["check", "run.yaml"][..], &["train", "run.yaml", "--local", "1"]] {
        assert_eq!(
            errors(&folder, arguments, 1),
            "bossman: model.yaml:4:5: layer 1 (LearnedPositions): expected at most 8 positions \
             (num_positions), found [29, 9, 4]\n"
        );
    }
    std::fs::write(folder.join("run.yaml"), run(8)).unwrap();
    let path = folder.join("run.yaml");
    let (output, _) = said(bossman(&["check", path.to_str().unwrap(), "--local", "2"], &[]), 0);
    let lines: Vec<&str> = output.lines().rev().take(6).collect();
    let expected = [
        "worker 1: layer 2, with 1280 parameters",
        "worker 0: 2 layers, 0 to 1, with 1056 parameters",
        "sample 3: ids int64 [8]: 32 119 97 115 32 116 ... (32 to 119); as text \" was the\"; \
         target int64 [8]: 119 97 115 32 116 104 ... (32 to 119)",
    ];
    assert_eq!(lines[..3], expected);
    assert!(lines[5].starts_with("data: 33 samples to train on"), "{lines:?}");
}

#[test]
fn flags_of_check_for_a_run_need_one() {
    let folder = folder("check-flags");
    assert_eq!(
        errors(&folder, &["check", "model.yaml", "--local", "2"], 1),
        "bossman: model.yaml: is a model file; --all and --local need a run file\n"
    );
    let bad = "1,2,3\n1,2,3\n1,2,nan\n";
    let model = "{inputs: {x: [batch, 2]}, layers: [{Linear: {in_features: 2, out_features: 4}}]}";
    std::fs::write(folder.join("model.yaml"), model).unwrap();
    std::fs::write(folder.join("data.csv"), bad).unwrap();
    std::fs::write(folder.join("run.yaml"), run_file("data: {train: data.csv}")).unwrap();
    let found = errors(&folder, &["check", "run.yaml", "--all"], 1);
    assert!(found.starts_with("bossman: data.csv: line 3"), "{found}");
}
