//! Tests the flags, files and exit codes of the `bossman` command. Its work with workers is tested
//! in `tests/`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "everything here is part of a test")]

mod new_project;
mod run_file_errors;
mod typical_mistakes;

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

fn bossman(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bossman"));
    command.args(arguments).env_remove("MODEL_PORT").env_remove("BOSSMAN_WORKER");
    command.env("BOSSMAN_CONFIG_DIR", concat!(env!("CARGO_TARGET_TMPDIR"), "/cli"));
    command.env("BOSSMAN_RUNS_DIR", concat!(env!("CARGO_TARGET_TMPDIR"), "/cli-runs"));
    command.envs(environment.iter().copied()).stdin(Stdio::null()).output().unwrap()
}

/// Asserts that it ended with this code, and returns its standard output and standard error.
#[track_caller]
fn said(output: Output, code: i32) -> (String, String) {
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert_eq!(output.status.code(), Some(code), "{}{}", text[0], text[1]);
    let [output, errors] = text;
    (output, errors)
}

fn example(name: &str) -> String {
    format!("{}/../examples/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// A file that is deleted when the test ends.
struct Draft(PathBuf);

impl Draft {
    fn new(name: &str, text: &str) -> Self {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::write(&path, text).unwrap();
        Draft(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).ok();
    }
}

#[test]
fn help_lists_what_the_pages_promise() {
    let (text, _) = said(bossman(&["--help"], &[]), 0);
    let commands = [
        "check",
        "plan",
        "train",
        "eval",
        "predict",
        "generate",
        "translate",
        "export",
        "data",
        "new",
        "ticket",
    ];
    for promised in commands.into_iter().chain(["completions", "Exit codes"]) {
        assert!(text.contains(promised), "no {promised} in\n{text}");
    }
    let (text, _) = said(bossman(&["train", "--help"], &[]), 0);
    for promised in [
        "--local",
        "--workers",
        "--port",
        "--metrics",
        "--weights",
        "--save",
        "--no-shuffle",
        "MODEL_PORT",
    ] {
        assert!(text.contains(promised), "no {promised} in\n{text}");
    }
    for promised in ["--trace", "--transport", "--threads"] {
        assert!(text.contains(promised), "no {promised} in\n{text}");
    }
    let (text, _) = said(bossman(&["plan", "--help"], &[]), 0);
    for promised in ["--local", "--workers", "--timeline", "--transport"] {
        assert!(text.contains(promised), "no {promised} in\n{text}");
    }
    let (text, _) = said(bossman(&["check", "--help"], &[]), 0);
    assert!(text.contains("--dim"), "{text}");
}

#[test]
fn data_sets_are_listed_and_unknown_ones_refused() {
    let (text, _) = said(bossman(&["data", "list"], &[]), 0);
    for set in ["mnist", "fashion-mnist", "cifar-10", "sotu", "digits"] {
        assert!(
            text.lines().any(|line| line.starts_with(&format!("{set} "))),
            "no {set} in\n{text}"
        );
    }
    let (_, errors) = said(bossman(&["data", "fetch", "digit"], &[]), 1);
    assert!(
        errors.starts_with("bossman: no data set `digit`; ")
            && errors.ends_with("did you mean `digits`?\n")
    );
}

#[test]
fn status_takes_a_folder_or_an_address() {
    for flag in ["--host", "--port"] {
        let (_, errors) = said(bossman(&["status", "runs/latest", flag, "7"], &[]), 2);
        assert!(errors.contains("cannot be used with"), "{errors}");
    }
    // A shell may have the address of another boss.
    let address = [("MODEL_HOST", "elsewhere"), ("MODEL_PORT", "7")];
    let (_, errors) = said(bossman(&["status", "no-such-run"], &address), 1);
    assert_eq!(errors, "bossman: no-such-run: there is no such folder\n");
    let folder = example("digits");
    let (_, errors) = said(bossman(&["status", &folder], &[]), 1);
    assert!(errors.contains("digits: is no run's folder"), "{errors}");
    let (_, errors) = said(bossman(&["status"], &[("MODEL_PORT", "x")]), 1);
    let expected = "bossman: MODEL_PORT=x: expected a number from 0 to 65535";
    assert!(errors.starts_with(expected), "{errors}");
}

#[test]
fn bad_flags_are_exit_code_2() {
    assert!(said(bossman(&["train"], &[]), 2).1.contains("<RUN>"));
    assert!(said(bossman(&["trian", "run.yaml"], &[]), 2).1.contains("train"));
    assert!(said(bossman(&["train", "run.yaml", "--local", "two"], &[]), 2).1.contains("two"));
    assert!(said(bossman(&["check", "model.yaml", "--dim", "seq"], &[]), 2)
        .1
        .contains("expected WORD=SIZE, as seq=128"));
}

#[test]
fn check_prints_every_layer_of_every_example() {
    for (model, last) in [
        ("residual", "Sigmoid"),
        ("branchy", "head"),
        ("skip", "head"),
        ("convnet", "head"),
        ("tied", "head"),
    ] {
        let (table, errors) =
            said(bossman(&["check", &example(&format!("models/{model}.yaml"))], &[]), 0);
        assert!(table.contains(last) && table.lines().count() > 10, "{table}");
        assert_eq!(errors, "");
    }
}

#[test]
fn check_takes_sizes_for_words_of_the_model_alone() {
    let tied = example("models/tied.yaml");
    let (with_sizes, _) =
        said(bossman(&["check", &tied, "--dim", "batch=2", "--dim", "seq=9"], &[]), 0);
    assert_ne!(with_sizes, said(bossman(&["check", &tied], &[]), 0).0);
    let (_, errors) = said(bossman(&["check", &tied, "--dim", "sqe=9"], &[]), 1);
    assert_eq!(
        errors,
        "bossman: --dim sqe=9: the model's inputs have no such word, but batch, seq\n"
    );
}

#[test]
fn check_names_the_place_of_a_mistake() {
    let draft = Draft::new("relu.yaml", "model: m\ninputs: {x: [batch, 2]}\nlayers:\n  - Rleu\n");
    let (table, errors) = said(bossman(&["check", draft.path()], &[]), 1);
    let expected = format!(
        "bossman: {}:4:5: layer 0: unknown layer `Rleu`; did you mean `ReLU`?\n",
        draft.path()
    );
    assert_eq!((table.as_str(), errors), ("", expected));
    let (_, errors) = said(bossman(&["check", "no/such.yaml"], &[]), 1);
    assert!(
        errors.starts_with("bossman: no/such.yaml: ") && errors.lines().count() == 1,
        "{errors}"
    );
}

#[test]
fn check_of_a_run_file_reads_its_data() {
    let (table, _) = said(bossman(&["check", &example("digits/run.yaml")], &[]), 0);
    let data =
        "\ndata: 1433 samples to train on, 364 to test\nsample 1: x float32 [64]: 0 0 0.0625 ";
    assert!(table.contains(data), "{table}");
    let (json, _) = said(bossman(&["check", &example("digits/run.yaml"), "--json"], &[]), 0);
    assert!(json.contains("\"train\": "), "{json}");

    let text = "inputs: {x: [batch, 2]}\nlayers:\n- Linear: {in_features: 2, out_features: 3}\n";
    let model = Draft::new("three.yaml", text);
    let data = Draft::new("three.csv", "0,0,1\n0,0,3\n");
    let text = format!(
        "model: {}\ndata: {{train: {}}}\nloss: CrossEntropyLoss\noptimizer: SGD\nbatch_size: 2\n\
         steps: 1\n",
        model.path(),
        data.path()
    );
    let run = Draft::new("three-run.yaml", &text);
    let expected = format!(
        "bossman: {}: line 2: class 3, but the model has 3 outputs (0 to 2); do labels start at \
         1?\n",
        data.path()
    );
    let (_, errors) = said(bossman(&["check", run.path()], &[]), 1);
    assert_eq!(errors, expected);
    // No worker is started, because the program of workers does not exist.
    let none = [("BOSSMAN_WORKER", "/no/such")];
    for command in ["train", "plan"] {
        let (_, errors) = said(bossman(&[command, run.path(), "--local", "1"], &none), 1);
        assert_eq!(errors, expected);
    }
}

#[test]
fn a_variable_that_nobody_uses_is_a_warning() {
    let text = "model: m\ninputs: {x: [batch, 2]}\nlayers:\n  - ReLU:\n    out_variables: \
                [unused]\n  - Tanh\n";
    let draft = Draft::new("unused.yaml", text);
    let (_, errors) = said(bossman(&["check", draft.path()], &[]), 0);
    assert!(errors.starts_with("warning: ") && errors.contains("unused"), "{errors}");
}

#[test]
fn training_without_workers_asks_how_many() {
    let (_, errors) = said(bossman(&["train", &example("digits/run.yaml")], &[]), 1);
    assert_eq!(
        errors,
        "bossman: how many workers? --local N starts N on this machine, --workers N waits for N \
         on other machines\n"
    );
}

#[test]
fn a_port_that_is_none_is_named() {
    let run = example("digits/run.yaml");
    let (_, errors) =
        said(bossman(&["train", &run, "--workers", "1"], &[("MODEL_PORT", "abc")]), 1);
    assert_eq!(errors, "bossman: MODEL_PORT=abc: expected a number from 0 to 65535\n");
}

#[test]
fn a_missing_worker_program_is_named() {
    let run = example("digits/run.yaml");
    let missing = [("BOSSMAN_WORKER", "/no/such/worker")];
    let (_, errors) = said(bossman(&["train", &run, "--local", "1"], &missing), 1);
    assert!(errors.starts_with("bossman: cannot start /no/such/worker: "), "{errors}");
}

#[test]
fn what_cannot_be_saved_is_known_before_training_and_old_metrics_stay() {
    let metrics = Draft::new("old-metrics.jsonl", "kept\n");
    let run = example("digits/run.yaml");
    let train = |more: &[&str]| {
        let arguments = [&["train", &run, "--metrics", metrics.path()], more].concat();
        said(bossman(&arguments, &[]), 1).1
    };
    let folder = env!("CARGO_TARGET_TMPDIR");
    assert!(train(&["--local", "1", "--save", "no-such-folder/w.safetensors"])
        .contains("there is no folder"));
    assert!(train(&["--local", "1", "--save", folder]).contains("is a folder; name a file"));
    assert!(train(&["--workers", "0"]).contains("--workers counts all workers"));
    assert!(train(&[]).contains("how many workers?"));
    assert_eq!(std::fs::read_to_string(metrics.path()).unwrap(), "kept\n");
}

#[test]
fn a_class_that_is_no_whole_number_has_its_line_named() {
    let pixels = "0,".repeat(64);
    let _data = Draft::new("classes.csv", &format!("{pixels}3\n{pixels}3.7\n"));
    let text = std::fs::read_to_string(example("digits/run.yaml")).unwrap();
    let text = text.replace("digits-train.csv.gz", "classes.csv");
    let text =
        text.replace("model: digits.yaml", &format!("model: {}", example("digits/digits.yaml")));
    let run = Draft::new("classes-run.yaml", &text);
    let (_, errors) = said(bossman(&["train", run.path(), "--local", "1"], &[]), 1);
    assert!(errors.contains("line 2, column 65: `3.7` is not a class"), "{errors}");
}

/// A pipe without a reader.
fn closed() -> Stdio {
    std::io::pipe().unwrap().1.into()
}

#[test]
fn whoever_reads_may_stop_reading() {
    let unused = "model: m\ninputs: {x: [batch, 2]}\nlayers:\n  - ReLU:\n    out_variables: \
                  [unused]\n  - Tanh\n";
    let draft = Draft::new("closed.yaml", unused);
    let ended = |arguments: &[&str], output: Stdio, errors: Stdio| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bossman"));
        command
            .args(arguments)
            .env("BOSSMAN_CONFIG_DIR", concat!(env!("CARGO_TARGET_TMPDIR"), "/cli"));
        command.stdin(Stdio::null()).stdout(output).stderr(errors).output().unwrap()
    };
    for arguments in [
        &["check", draft.path()][..],
        &["check", draft.path(), "--json"],
        &["data", "list"],
        &["ticket"],
        &["--help"],
    ] {
        let (_, errors) = said(ended(arguments, closed(), Stdio::piped()), 0);
        assert!(
            errors.lines().all(|line| line.starts_with("warning: ")),
            "{arguments:?}: {errors}"
        );
        // A warning without a reader does not stop the program, either.
        assert!(ended(arguments, Stdio::piped(), closed()).status.success(), "{arguments:?}");
    }
    assert_eq!(ended(&["check", "no/such.yaml"], closed(), closed()).status.code(), Some(1));
    #[cfg(target_os = "linux")]
    {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let (_, errors) = said(ended(&["check", draft.path()], full.into(), Stdio::piped()), 1);
        assert!(
            errors.starts_with("bossman: standard output: No space left on device"),
            "{errors}"
        );
    }
}

/// A run of the digits over these samples.
fn digits(name: &str, data: &str) -> Draft {
    let text = std::fs::read_to_string(example("digits/run.yaml")).unwrap();
    let text =
        text.replace("model: digits.yaml", &format!("model: {}", example("digits/digits.yaml")));
    let kept = text.lines().filter(|line| !line.starts_with("data:"));
    Draft::new(name, &format!("{}\ndata: {data}\n", kept.collect::<Vec<_>>().join("\n")))
}

#[test]
fn files_that_cannot_be_read_or_written_are_one_line_before_any_worker_starts() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let metrics = Draft::new("whole-metrics.jsonl", "kept\n");
    let fails = |run: &str, more: &[&str]| {
        let arguments = [&["train", run, "--local", "1"], more].concat();
        let (_, errors) = said(bossman(&arguments, &[("BOSSMAN_WORKER", "/no/such")]), 1);
        assert_eq!(errors.lines().count(), 1, "{errors}");
        errors.trim_end().to_string()
    };
    std::fs::create_dir_all(folder.join("folder.csv")).unwrap();
    let run = digits("folder-run.yaml", "{train: folder.csv}");
    let error = fails(run.path(), &[]);
    assert!(error.ends_with("folder.csv: Is a directory (os error 21); name a file"), "{error}");
    let run = digits("under-run.yaml", "{train: whole-metrics.jsonl/data.csv}");
    assert!(fails(run.path(), &[]).ends_with("a part of this path is a file, not a folder"));

    let run = example("digits/run.yaml");
    let under = format!("{}/file", metrics.path());
    let error = fails(&run, &["--weights", &under]);
    assert!(error.contains("whole-metrics.jsonl/file: Not a directory"), "{error}");
    for flag in ["--save", "--trace"] {
        let both = |target: &str| fails(&run, &["--metrics", metrics.path(), flag, target]);
        let error = both(&under);
        assert!(
            error.ends_with("whole-metrics.jsonl is a file, not a folder; name another place"),
            "{error}"
        );
        assert!(both(folder.to_str().unwrap()).ends_with("is a folder; name a file"));
        #[cfg(unix)]
        assert!(both("/dev/null")
            .ends_with("/dev/null: is a device or a pipe, which cannot be replaced; name a file"));
    }
    assert!(fails(&run, &["--metrics", folder.to_str().unwrap()]).ends_with("name a file"));
    assert!(
        fails(&run, &["--metrics", &under]).contains("whole-metrics.jsonl/file: Not a directory")
    );
    assert_eq!(std::fs::read_to_string(metrics.path()).unwrap(), "kept\n");
    let predict = ["predict", &run, "--local", "1", "--to"];
    for (to, expected) in [
        ("/no/such/out.csv", "make it first"),
        (&format!("{under}.csv"), "is a file, not a folder; name another place"),
    ] {
        let (_, errors) =
            said(bossman(&[&predict[..], &[to]].concat(), &[("BOSSMAN_WORKER", "/no/such")]), 1);
        assert!(errors.trim_end().ends_with(expected), "{errors}");
    }
    std::fs::remove_dir(folder.join("folder.csv")).unwrap();
}

/// A model with a number for the batch: 20 samples in batches of 8 leave 4.
#[test]
fn batches_that_a_model_of_one_batch_size_cannot_take_are_known_before_training() {
    let text =
        "model: m\ninputs: {x: [8, 2]}\nlayers:\n  - Linear: {in_features: 2, out_features: 3}\n";
    let _model = Draft::new("fixed.yaml", text);
    let _whole = Draft::new("fixed-24.csv", &"1,2,0\n".repeat(24));
    let _short = Draft::new("fixed-20.csv", &"1,2,0\n".repeat(20));
    let fails = |more: &str| {
        let text = format!("model: fixed.yaml\nloss: CrossEntropyLoss\noptimizer: SGD\n{more}\n");
        let run = Draft::new("fixed-run.yaml", &text);
        let (_, errors) = said(
            bossman(&["train", run.path(), "--local", "1"], &[("BOSSMAN_WORKER", "/no/such")]),
            1,
        );
        errors.trim_end().to_string()
    };
    let input = "the model's input `x` is [8, 2]";
    let of_20 = "20 samples, would have 4; leave 4 out";
    for (more, expected) in [
        (
            "data: {train: fixed-24.csv}\nbatch_size: 16\nepochs: 1",
            format!("`batch_size: 16`, but {input}; give the batches 8 samples"),
        ),
        (
            "data: {train: fixed-24.csv}\nbatch_size: 8\nmicrobatches: 2\nepochs: 1",
            format!(
                "`microbatches: 2`, but {input}, which cannot be cut; leave `microbatches` out"
            ),
        ),
        (
            "data: {train: fixed-20.csv}\nbatch_size: 8\nepochs: 1",
            format!("{input}, but the last batch of the training data, {of_20}"),
        ),
        (
            "data: {train: fixed-24.csv, validation: fixed-20.csv}\nbatch_size: 8\nepochs: 1",
            format!("{input}, but the last batch of the validation data, {of_20}"),
        ),
    ] {
        let expected = format!(
            "bossman: {expected}, or write a word as `batch` for the size in the model file"
        );
        assert_eq!(fails(more), expected);
    }
    // Two steps end before the short batch, so only the search for the worker program fails.
    let error = fails("data: {train: fixed-20.csv}\nbatch_size: 8\nsteps: 2");
    assert!(error.starts_with("bossman: cannot start /no/such: "), "{error}");
}
