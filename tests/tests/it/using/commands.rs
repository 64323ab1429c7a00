//! Tests predictions, evaluation, export and their commands.

use super::{boss, within_limit, TRANSLATOR, WRITER};
use bossman::data::Source;
use bossman::run_file::RunFile;
use bossman::StateDict;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tch::{Kind, Tensor};
use tests::programs::{program, Ended, TestFolder};

/// A model of two weighted sums.
const SUMS: &str = "
model: sums
inputs: {x: [batch, 2]}
layers:
  - Linear: {in_features: 2, out_features: 2, bias: false}
";

#[test]
fn predictions_are_written_as_they_are_and_those_that_are_no_numbers_are_told_of() {
    within_limit(async {
        let place = TestFolder::new();
        std::fs::write(place.file("model.yaml"), SUMS).unwrap();
        std::fs::write(place.file("data.csv"), "1,2\n2,1e38\n-4,-1e38\n0,0\n").unwrap();
        std::fs::write(place.file("train.csv"), "1,2,3,4\n").unwrap();
        let run = place.file("run.yaml");
        std::fs::write(
            &run,
            "model: model.yaml\ndata: {train: train.csv}\nloss: MSELoss\noptimizer: \
             SGD\nbatch_size: 3\nsteps: 1\n",
        )
        .unwrap();
        let mut weights = StateDict::default();
        weights.insert("0.weight", &Tensor::from_slice(&[1.0f32, 0.5, 1e38, 0.0]).view([2, 2]));
        weights.save(place.file("w.safetensors")).unwrap();
        let path = |name: &str| place.file(name).to_str().unwrap().to_string();
        let (run, weights, data) = (path("run.yaml"), path("w.safetensors"), path("data.csv"));
        let predict = |to: &str, flags: &'static [&str]| {
            let to = path(to);
            let (place, run, weights, data) = (&place, run.clone(), weights.clone(), data.clone());
            async move {
                let of = ["predict", &run, "--local", "1", "--weights", &weights];
                let arguments = [&of[..], &["--data", &data, "--to", &to], flags].concat();
                bossman(place, &arguments).await
            }
        };
        for (flags, expected) in [
            (&["--raw"][..], "2.0,1e38\n5e37,2e38\n-5e37,-inf\n0.0,0.0\n"),
            (&[], "sample,0.0,0.1\n1,2.0,1e38\n2,5e37,2e38\n3,-5e37,-inf\n4,0.0,0.0\n"),
        ] {
            let ended = predict("out.csv", flags).await;
            assert_eq!(ended.errors, [""; 0]);
            assert_eq!(std::fs::read_to_string(place.file("out.csv")).unwrap(), expected);
        }

        let mut broken = StateDict::default();
        broken.insert("0.weight", &Tensor::from_slice(&[1.0f32, 0.5, f32::NAN, 0.0]).view([2, 2]));
        broken.save(&weights).unwrap();
        let ended = predict("out.jsonl", &[]).await.expect_success();
        let expected = "warning: the model gives NaN for 4 of 4 samples, first for sample 1, \
                        counted from 1; its weights may hold NaN or have grown too large";
        assert_eq!(ended.errors, [expected]);
        let out = std::fs::read_to_string(place.file("out.jsonl")).unwrap();
        assert_eq!(out.lines().next(), Some("{\"0\":[2.0,null],\"sample\":1}"));
        assert_eq!(out.lines().count(), 4);
    });
}

/// Writes a run of the writer into a folder.
fn run_file(place: &TestFolder) -> String {
    std::fs::write(place.file("model.yaml"), WRITER).unwrap();
    std::fs::write(place.file("text.txt"), "abcdefgh".repeat(60)).unwrap();
    let run = place.file("run.yaml");
    std::fs::write(
        &run,
        "model: model.yaml\ndata:\n  train: {text: {path: text.txt, sequence_length: 12}}\n  \
         validation: {split: 0.2}\n  test: {text: {path: text.txt, sequence_length: 12}}\nloss: \
         CrossEntropyLoss\noptimizer: {Adam: {lr: 1e-2}}\nbatch_size: 8\nepochs: 3\n",
    )
    .unwrap();
    run.to_str().unwrap().to_string()
}

async fn bossman(place: &TestFolder, arguments: &[&str]) -> Ended {
    place.start("bossman", arguments).end_within(Duration::from_secs(120)).await
}

fn said(ended: &Ended) -> String {
    assert!(ended.status.success(), "{:?}", ended.errors);
    ended.output.join("\n")
}

#[test]
fn a_trained_model_is_evaluated_asked_and_exported() {
    within_limit(async {
        let place = TestFolder::new();
        let run = run_file(&place);
        let path = |name: &str| place.file(name).to_str().unwrap().to_string();
        let (weights, best, metrics) =
            (path("w.safetensors"), path("w.best.safetensors"), path("m.jsonl"));
        let local = ["--local", "2", "--threads", "1"];
        let train =
            [&["train", &run, "--save", &weights, "--metrics", &metrics, "--json"], &local[..]]
                .concat();
        let ended: serde_json::Value =
            serde_json::from_str(&said(&bossman(&place, &train).await)).unwrap();
        assert!(
            ended["best"]["validation"]["accuracy"].is_number()
                && ended["test"]["loss"].is_number(),
            "{ended}"
        );
        let lines = std::fs::read_to_string(&metrics).unwrap();
        assert_eq!(
            lines.lines().filter(|line| line.contains("\"validation\"")).count(),
            3,
            "{lines}"
        );
        assert!(lines.lines().next().unwrap().contains("\"lr\":0.01"), "{lines}");

        let test = [&["eval", &run, "--weights", &weights, "--json"], &local[..]].concat();
        let found: serde_json::Value =
            serde_json::from_str(&said(&bossman(&place, &test).await)).unwrap();
        assert_eq!(found["loss"], ended["test"]["loss"]);
        let validation =
            [&["eval", &run, "--weights", &best, "--data", "validation", "--json"], &local[..]]
                .concat();
        let found: serde_json::Value =
            serde_json::from_str(&said(&bossman(&place, &validation).await)).unwrap();
        assert_eq!(found["loss"], ended["best"]["validation"]["loss"]);

        let generate =
            ["generate", &run, "--weights", &weights, "--prompt", "abc", "--max-new-tokens", "5"];
        let text = said(&bossman(&place, &[&generate[..], &local[..]].concat()).await);
        assert!(text.starts_with("abc"), "{text}");

        let predicted = path("out.safetensors");
        let predict =
            [&["predict", &run, "--weights", &weights, "--to", &predicted], &local[..]].concat();
        assert!(said(&bossman(&place, &predict).await).contains("predictions for 39 samples"));
        let outputs = StateDict::load(&predicted).unwrap();
        assert_eq!(outputs.iter().next().unwrap().1.size(), [39, 128, 12]);

        let folder = path("folder");
        let export = [
            "export",
            &run,
            "--weights",
            &weights,
            "--dtype",
            "bf16",
            "--max-shard-size",
            "10KB",
            "--to",
            &folder,
        ];
        said(&bossman(&place, &export).await);
        let (exported, trained) =
            (StateDict::load(&folder).unwrap(), StateDict::load(&weights).unwrap());
        for (name, tensor) in trained.iter() {
            let other = exported.get(name).unwrap();
            assert_eq!(other.kind(), Kind::BFloat16);
            assert!(
                (other.to_kind(Kind::Float) - tensor).abs().max().double_value(&[]) < 0.02,
                "{name}"
            );
        }
        assert!(Path::new(&folder).join("model.safetensors.index.json").is_file());
    });
}

/// Such a run used to end after its first epoch.
#[test]
fn a_run_translates_within_the_positions_of_its_model() {
    within_limit(async {
        let place = TestFolder::new();
        std::fs::write(
            place.file("model.yaml"),
            TRANSLATOR
                .replace(
                    "batch_first: true}\n  - Transformer",
                    "batch_first: true, max_len: 9}\n  - Transformer",
                )
                .replace("out_features: 128", "out_features: 259"),
        )
        .unwrap();
        std::fs::write(place.file("pairs.tsv"), "one\ttwo\nthree\tfour\n".repeat(8)).unwrap();
        let run = place.file("run.yaml");
        std::fs::write(
            &run,
            "model: model.yaml\ndata: {train: {pairs: {path: pairs.tsv}}, validation: {pairs: \
             {path: pairs.tsv}}}\nloss: CrossEntropyLoss\noptimizer: {Adam: {lr: \
             1e-3}}\nbatch_size: 8\nepochs: 1\ntranslate: {max_length: 20}\n",
        )
        .unwrap();
        let weights = place.file("w.safetensors");
        let train =
            ["train", run.to_str().unwrap(), "--local", "1", "--save", weights.to_str().unwrap()];
        let ended = bossman(&place, &train).await.expect_success();
        let line = ended.output.iter().find(|line| line.starts_with("epoch 1, ")).unwrap();
        assert!(line.contains(" over 16 pairs"), "{line}");
        assert!(StateDict::load(&weights).unwrap().iter().count() > 10);
    });
}

#[test]
fn what_cannot_be_used_is_an_error() {
    within_limit(async {
        let place = TestFolder::new();
        let run = run_file(&place);
        let fails = |arguments: Vec<&'static str>| {
            let (place, run) = (&place, run.clone());
            async move {
                let (command, rest) = arguments.split_first().unwrap();
                let ended =
                    bossman(place, &[&[*command, &run, "--local", "1"], rest].concat()).await;
                assert_eq!(ended.status.code(), Some(1));
                ended.errors.join("\n")
            }
        };
        assert!(fails(vec!["eval"]).await.contains("no weights: give --weights FILE"));
        assert!(fails(vec!["generate", "--prompt", "a"]).await.contains("no weights"));
        let error = fails(vec!["translate", "a"]).await;
        assert!(error.contains("translate needs a run file whose `train` is `pairs`"), "{error}");
        let error = fails(vec!["predict", "--to", "out.txt"]).await;
        assert!(
            error.contains("out.txt: expected a name ending in .csv, .jsonl or .safetensors"),
            "{error}"
        );
    });
}

#[test]
fn a_head_that_the_file_has_not_is_drawn() {
    within_limit(async {
        let place = TestFolder::new();
        let run = run_file(&place);
        let whole = {
            let mut boss = boss(WRITER, 1).await;
            let state = boss.state_dict().await.unwrap();
            boss.shutdown().await;
            state
        };
        let mut body = StateDict::default();
        whole
            .iter()
            .filter(|(name, _)| !name.starts_with("4."))
            .for_each(|(name, tensor)| body.insert(name, tensor));
        body.save(place.file("body.safetensors")).unwrap();
        let text = std::fs::read_to_string(&run).unwrap();
        let with = |fresh: &str| {
            std::fs::write(
                &run,
                format!("{text}seed: 3\nweights: {{path: body.safetensors{fresh}}}\n"),
            )
            .unwrap();
            RunFile::from_file(&run).unwrap()
        };
        let cluster = bossman::fleet::FleetSettings { local: 1, ..Default::default() };
        let error = with("").load_model(&cluster, None).await.err().unwrap().to_string();
        assert!(
            error.contains("`4.bias`: missing") && error.contains("`4.weight`: missing"),
            "{error}"
        );
        let mut boss =
            with(", fresh: [4.weight, 4.bias]").load_model(&cluster, None).await.unwrap();
        let loaded = boss.state_dict().await.unwrap();
        assert!(whole.iter().all(|(name, tensor)| loaded.get(name).unwrap().equal(tensor)));
        boss.shutdown().await;
        let error = with(", fresh: [4.weight, 4.bias, 0.weight]")
            .load_model(&cluster, None)
            .await
            .err()
            .unwrap()
            .to_string();
        assert!(
            error.contains("`0.weight`: in the weights, but `fresh` in the run file"),
            "{error}"
        );
        assert!(matches!(RunFile::from_file(&run).unwrap().data.unwrap().train, Source::Text(_)));
    });
}

/// The program would write for hours. It ends because its output is not read any more.
#[test]
fn text_that_nobody_reads_is_not_made() {
    within_limit(async {
        let place = TestFolder::new();
        let run = run_file(&place);
        let mut boss = boss(WRITER, 1).await;
        let weights = place.file("w.safetensors");
        boss.state_dict().await.unwrap().save(&weights).unwrap();
        boss.shutdown().await;
        let mut command = tokio::process::Command::new(program("bossman"));
        command.args([
            "generate",
            &run,
            "--local",
            "2",
            "--prompt",
            "abc",
            "--max-new-tokens",
            "100000000",
        ]);
        command
            .arg("--weights")
            .arg(&weights)
            .env("BOSSMAN_CONFIG_DIR", place.file("config"))
            .kill_on_drop(true);
        let mut bossman = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = bossman.stdout.take().unwrap();
        let mut first = [0; 4];
        tokio::io::AsyncReadExt::read_exact(&mut output, &mut first).await.unwrap();
        assert_eq!(&first[..3], b"abc");
        drop(output);
        let ended = bossman.wait_with_output().await.unwrap();
        assert!(ended.status.success(), "{}", ended.status);
        assert_eq!(String::from_utf8_lossy(&ended.stderr), "");
    });
}

/// The batches of such a model are not cut, and each is counted by its samples.
#[test]
fn a_model_of_one_batch_size_trains_and_is_tested_on_whole_batches() {
    within_limit(async {
        let place = TestFolder::new();
        std::fs::write(
            place.file("model.yaml"),
            "model: fixed\ninputs: {x: [8, 2]}\nlayers:\n  - Linear: {in_features: 2, \
             out_features: 4}\n  - Tanh\n  - Linear: {in_features: 4, out_features: 1}\n",
        )
        .unwrap();
        std::fs::write(place.file("data.csv"), "1,2,3\n4,5,6\n".repeat(12)).unwrap();
        let run = place.file("run.yaml");
        std::fs::write(
            &run,
            "model: model.yaml\ndata: {train: data.csv, validation: data.csv, test: \
             data.csv}\nloss: MSELoss\noptimizer: SGD\nbatch_size: 8\nepochs: 2\n",
        )
        .unwrap();
        let (metrics, weights) = (place.file("m.jsonl"), place.file("w.safetensors"));
        let (metrics, weights) = (metrics.to_str().unwrap(), weights.to_str().unwrap());
        let run = run.to_str().unwrap();
        bossman(&place, &["train", run, "--local", "2", "--metrics", metrics, "--save", weights])
            .await
            .expect_success();
        let lines = std::fs::read_to_string(metrics).unwrap();
        assert_eq!(
            lines.lines().filter(|line| line.contains("\"samples\":8")).count(),
            6,
            "{lines}"
        );
        let to = place.file("out.jsonl");
        let predict =
            ["predict", run, "--local", "2", "--weights", weights, "--to", to.to_str().unwrap()];
        bossman(&place, &predict).await.expect_success();
        assert_eq!(std::fs::read_to_string(&to).unwrap().lines().count(), 24);
        std::fs::write(place.file("data.csv"), "1,2,3\n".repeat(20)).unwrap();
        let line = bossman(&place, &predict).await.error_line();
        assert!(
            line.contains(
                "`x` is [8, 2], but the last batch of the data, 20 samples, would have 4"
            ),
            "{line}"
        );
    });
}

/// A table of texts and numbers with missing values, and texts as classes. What was learned from it
/// goes with the run's folder.
#[test]
fn tables_train_by_the_names_of_columns() {
    within_limit(async {
        let place = TestFolder::new();
        let model = "{inputs: {x: [batch, 4]}, layers: [{Linear: {in_features: 4, out_features: \
                     8}}, ReLU, {Linear: {in_features: 8, out_features: 2}}]}";
        std::fs::write(place.file("model.yaml"), model).unwrap();
        let rows: String = (0..40)
            .map(|row| match row % 4 {
                0 => format!("r{row};1{row};red;small\n"),
                1 => format!("r{row};-{row};blue;large\n"),
                2 => format!("r{row};;red;small\n"),
                _ => format!("r{row};-2{row};green;large\n"),
            })
            .collect();
        let table = place.file("gems.csv");
        std::fs::write(&table, format!("name;size;colour;class\n{rows}")).unwrap();
        std::fs::write(
            place.file("run.yaml"),
            "model: model.yaml
data:
  train: gems.csv
  columns: {inputs: [size, colour], target: class, id: name, missing: mean}
  normalize: auto
loss: CrossEntropyLoss
optimizer: {Adam: {lr: 0.1}}
batch_size: 8
epochs: 10
name: gems
",
        )
        .unwrap();
        let path = |name: &str| place.file(name).to_str().unwrap().to_string();
        let run = path("run.yaml");
        bossman(&place, &["train", &run, "--local", "2", "--threads", "1"]).await.expect_success();
        // The table to train on is gone, and another one has fewer colours.
        std::fs::write(place.file("other.csv"), "colour;size;name\nblue;-5;a\nred;15;b\n").unwrap();
        let folder = path("run-folders/gems");
        let predict = ["predict", &folder, "--local", "1", "--data", &path("other.csv")];
        let to = path("out.csv");
        bossman(&place, &[&predict[..], &["--to", &to]].concat()).await.expect_success();
        let out = std::fs::read_to_string(&to).unwrap();
        let begins: Vec<String> =
            out.lines().map(|line| line.rsplit_once(',').unwrap().0.to_string()).collect();
        assert_eq!(begins, ["name,class", "a,large", "b,small"]);
        let verified = bossman(&place, &["verify", &folder]).await.expect_success().output;
        assert!(verified.last().unwrap().contains("equal to the bit"), "{verified:?}");

        std::fs::write(place.file("other.csv"), "colour;size;name\nblack;-5;a\n").unwrap();
        let line = bossman(&place, &[&predict[..], &["--to", &to]].concat()).await.errors;
        let expected = "line 2, column `colour`: `black` is not among the 3 values to train on";
        assert!(line.last().unwrap().contains(expected), "{line:?}");
    });
}
