//! Tests workers that read samples from their own files. The results are those with samples from
//! the boss, to the bit.

use bossman::data::{Batches, Dataset, Source};
use bossman::{Batch, BossMan, Host, Loss, Model, Optimizer, Replicas, StateDict};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tests::programs::{free_port, TestFolder};
use tests::Case;

/// The time limit of steps until something happens; far longer than they take.
const PATIENCE: Duration = Duration::from_secs(120);

/// A model with a mask and two inputs of any length, one of which several layers use.
const TRANSLATOR: &str = "
model: translator
inputs:
  source: {shape: [batch, src], dtype: int64}
  target: {shape: [batch, tgt], dtype: int64}
  source_padding: {shape: [batch, src], dtype: bool}
layers:
  - Embedding: {num_embeddings: 259, embedding_dim: 16}
  - PositionalEncoding: {d_model: 16, batch_first: true}
  - TransformerEncoderLayer: {d_model: 16, nhead: 2, dim_feedforward: 32, batch_first: true, \
                          src_key_padding_mask: true}
    in_variables: [source_padding]
    out_variables: [memory]
  - Embedding: {num_embeddings: 259, embedding_dim: 16}
    input: target
  - PositionalEncoding: {d_model: 16, batch_first: true}
  - TransformerDecoderLayer: {d_model: 16, nhead: 2, dim_feedforward: 32, batch_first: true, \
                          tgt_is_causal: true, memory_key_padding_mask: true}
    in_variables: [memory, source_padding]
  - Linear: {in_features: 16, out_features: 259}
  - Transpose: {dim0: 1, dim1: 2}
";

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples")
}

/// Copies the project's digits into a folder.
fn digits(place: &TestFolder, folder: &str) {
    std::fs::create_dir_all(place.file(folder)).unwrap();
    for name in ["digits-train.csv.gz", "digits-test.csv.gz"] {
        std::fs::copy(examples().join("digits").join(name), place.file(folder).join(name)).unwrap();
    }
}

/// Returns every number that a run wrote, except times.
fn numbers(metrics: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(metrics).unwrap();
    let line = |line: &str| {
        let all: serde_json::Map<String, serde_json::Value> = serde_json::from_str(line).unwrap();
        all.into_iter()
            .filter(|(key, _)| key != "step_ms")
            .map(|(key, value)| format!("{key}={value} "))
            .collect()
    };
    text.lines().map(line).collect()
}

/// Trains with local workers. Returns the metrics and the weights.
async fn train(place: &TestFolder, run: &str, workers: &str) -> (Vec<String>, Vec<u8>) {
    let (metrics, weights) = (place.file("metrics.jsonl"), place.file("w.safetensors"));
    std::fs::write(place.file("run.yaml"), run).unwrap();
    let path = place.file("run.yaml");
    let [run, metrics_to, save] = [&path, &metrics, &weights].map(|path| path.to_str().unwrap());
    let flags = ["--local", workers, "--threads", "1", "--metrics", metrics_to, "--save", save];
    place
        .start("bossman", &[&["train", run][..], &flags].concat())
        .end_within(PATIENCE)
        .await
        .expect_success();
    (numbers(&metrics), std::fs::read(weights).unwrap())
}

/// Makes a run file with these keys of `data` beside `on`, and further keys.
fn run_file(model: &str, data: &str, on: &str, more: &str) -> String {
    format!(
        "model: {model}\ndata: {{{data}, on: {on}}}\nloss: CrossEntropyLoss\noptimizer: {{Adam: \
         {{lr: 0.01}}}}\nseed: 4\n{more}\n"
    )
}

#[tokio::test]
async fn classes_of_digits_with_validation_and_test() {
    let place = TestFolder::new();
    digits(&place, "data");
    let model = examples().join("digits/digits.yaml");
    let data = "train: data/digits-train.csv.gz, validation: {split: 0.1}, test: \
                data/digits-test.csv.gz, normalize: {divide: 16}";
    let run = |on: &str, more: &str| {
        run_file(
            model.to_str().unwrap(),
            data,
            on,
            &format!("batch_size: 200\nepochs: 2\nmicrobatches: 3\n{more}"),
        )
    };
    let plain = train(&place, &run("boss", "schedule: 1f1b"), "2").await;
    assert!(plain.0.len() > 10, "{:?}", plain.0);
    for (more, workers) in
        [("schedule: zb-h1", "2"), ("schedule: interleaved\nchunks: 2", "2"), ("", "1")]
    {
        let found = train(&place, &run("workers", more), workers).await;
        assert!(found == plain, "{more}: {:?} and {:?}", found.0, plain.0);
    }
    let replicas = train(&place, &run("boss", "replicas: 1"), "2").await;
    for (more, workers) in [
        ("replicas: 2", "2"),
        ("replicas: 2\nshard: parameters\nchunks: 2", "2"),
        ("replicas: [1, 2]", "3"),
    ] {
        let found = train(&place, &run("workers", more), workers).await;
        assert!(found == replicas, "{more}: {:?} and {:?}", found.0, replicas.0);
    }
}

/// Sequences are padded as in their whole batch, wherever a part of it is read.
#[tokio::test]
async fn pairs_of_any_length() {
    let place = TestFolder::new();
    let line =
        |n: usize| format!("{}\t{}\n", "ab".repeat(1 + n * 7 % 11), "c".repeat(1 + n * 5 % 13));
    std::fs::write(place.file("pairs.tsv"), (0..40).map(line).collect::<String>()).unwrap();
    std::fs::write(place.file("model.yaml"), TRANSLATOR).unwrap();
    let data = "train: {pairs: {path: pairs.tsv}}, validation: {split: 0.2}";
    let run = |on: &str, more: &str| {
        run_file(
            "model.yaml",
            data,
            on,
            &format!("batch_size: 7\nsteps: 9\nmicrobatches: 3\n{more}"),
        )
    };
    let plain = train(&place, &run("boss", "schedule: gpipe"), "2").await;
    for (more, workers) in [("schedule: gpipe", "2"), ("schedule: zb-v", "2")] {
        let found = train(&place, &run("workers", more), workers).await;
        assert!(found == plain, "{more}: {:?} and {:?}", found.0, plain.0);
    }
    let grouped = train(&place, &run("boss", "replicas: 1\ngroup_by_length: true"), "3").await;
    let found =
        train(&place, &run("workers", "replicas: [2, 1]\ngroup_by_length: true"), "3").await;
    assert!(found == grouped, "{:?} and {:?}", found.0, grouped.0);
}

#[tokio::test]
async fn a_worker_that_has_not_the_files_says_so_before_training() {
    let place = TestFolder::new();
    digits(&place, ".");
    digits(&place, "elsewhere");
    let model = examples().join("digits/digits.yaml");
    let data = "train: digits-train.csv.gz, test: digits-test.csv.gz";
    let text = run_file(
        model.to_str().unwrap(),
        data,
        "workers",
        "batch_size: 32\nsteps: 1\nschedule: 1f1b",
    );
    std::fs::write(place.file("run.yaml"), text).unwrap();
    let elsewhere = place.file("elsewhere");
    let there = ["--data", elsewhere.to_str().unwrap()];
    let error_of = async |flags: [&[&str]; 2]| {
        let (boss, at) = place.boss(&place.file("run.yaml"), 2, &[]).await;
        let workers = flags.map(|flags| place.worker(&at.port, flags));
        let ended = boss.end().await;
        drop(workers);
        ended
    };
    error_of([&there, &there]).await.expect_success();
    let error = error_of([&there, &[]]).await.error_line();
    assert!(
        error.contains("was not told where its files are; start it with --data FOLDER"),
        "{error}"
    );
    std::fs::write(elsewhere.join("digits-test.csv.gz"), "short").unwrap();
    let error = error_of([&there, &there]).await.error_line();
    assert!(error.contains("digits-test.csv.gz: has 5 bytes, but the boss's has"), "{error}");
    std::fs::remove_file(elsewhere.join("digits-test.csv.gz")).unwrap();
    let error = error_of([&there, &there]).await.error_line();
    assert!(error.contains("elsewhere/digits-test.csv.gz: No such file"), "{error}");
    let error = place.worker("1", &["--data", "/no/such/folder"]).end().await.error_line();
    assert_eq!(error, "worker: --data /no/such/folder: there is no such folder");
    // A file that is not below the run file's folder has no place below a worker's folder.
    let outside = run_file(
        model.to_str().unwrap(),
        "train: ../digits-train.csv.gz",
        "workers",
        "batch_size: 32\nsteps: 1",
    );
    std::fs::create_dir(place.file("runs")).unwrap();
    std::fs::write(place.file("runs/run.yaml"), outside).unwrap();
    let run = place.file("runs/run.yaml");
    let error = place
        .start("bossman", &["train", run.to_str().unwrap(), "--local", "1"])
        .end()
        .await
        .error_line();
    assert!(
        error.contains("is not below") && error.contains("so workers do not know it"),
        "{error}"
    );
}

#[tokio::test]
async fn workers_that_join_a_pool_read_data_too() {
    let place = TestFolder::new();
    let case = Case::branchy();
    case.save_data(&place.file("data.safetensors"));
    let source = Source::File(place.file("data.safetensors"));
    let graph = case.model.graph();
    let sent = Dataset::open(&source, graph, &case.loss, None).unwrap();
    let read = sent.clone().for_workers(place.file("").as_path()).unwrap();
    let port = free_port().to_string();
    let folder = place.file("");
    let there = ["--data", folder.to_str().unwrap()];
    let _first = place.worker(&port, &there);
    let host = Host::new(1).port(port.parse().unwrap()).config_dir(place.file("config"));
    let host = host.open_to_joins().quiet().wait().await.unwrap();
    let builder = || {
        BossMan::builder(case.model.clone()).microbatches(4).loss(case.loss.clone()).seed(case.seed)
    };
    let mut boss = builder().replicas(Replicas::Each(1)).build(host).unwrap();
    boss.distribute_model().await.unwrap();
    boss.send_optimizer(case.optimizer).await.unwrap();
    boss.open_data(&read).await.unwrap();
    boss.open_pool().await.unwrap();
    let mut batches = Batches::new(read, 12, Some(1));
    let _second = place.worker(&port, &there);
    let mut steps = 0;
    let joined = async {
        while boss.plan().stage_placement.members().len() < 2 {
            boss.train_step(&batches.next_batch().unwrap()).await.unwrap();
            steps += 1;
        }
        // Both workers take part now.
        for _ in 0..3 {
            boss.train_step(&batches.next_batch().unwrap()).await.unwrap();
            steps += 1;
        }
    };
    tokio::time::timeout(PATIENCE, joined).await.unwrap();
    let found = boss.state_dict().await.unwrap();
    // Data that was not opened before is not opened now, because newcomers would not learn of it.
    let other = sent.clone().for_workers(place.file("").as_path()).unwrap();
    boss.open_data(&other).await.unwrap();
    case.save_data(&place.file("other.safetensors"));
    let other =
        Dataset::open(&Source::File(place.file("other.safetensors")), graph, &case.loss, None)
            .unwrap();
    let other = other.for_workers(place.file("").as_path()).unwrap();
    let error = boss.open_data(&other).await.unwrap_err().to_string();
    assert_eq!(error, "open_data: call it before open_pool()");
    boss.shutdown().await;

    let alone = Host::new(1).local(1).threads(1).quiet().wait().await.unwrap();
    let mut quiet = builder().replicas(Replicas::Each(1)).build(alone).unwrap();
    quiet.distribute_model().await.unwrap();
    quiet.send_optimizer(case.optimizer).await.unwrap();
    let mut batches = Batches::new(sent, 12, Some(1));
    for _ in 0..steps {
        quiet.train_step(&batches.next_batch().unwrap()).await.unwrap();
    }
    let expected = quiet.state_dict().await.unwrap();
    quiet.shutdown().await;
    assert_same(&found, &expected);
}

/// Tests with the API: data of another shape than the model's, a worker's file that is gone, and
/// that the run continues after that.
#[tokio::test]
async fn a_file_that_is_gone_is_named_and_the_step_is_void() {
    let place = TestFolder::new();
    let model = Model::from_yaml(
        "inputs: {x: [batch, 3]}\nlayers: [Linear: {in_features: 3, out_features: 2}]\n",
    )
    .unwrap();
    let rows = |count: usize| -> Vec<u8> { (0..count * 3).map(|n| n as u8).collect() };
    let idx = |sizes: &[u32], bytes: &[u8]| {
        let mut file = vec![0, 0, 8, sizes.len() as u8];
        file.extend(sizes.iter().flat_map(|size| size.to_be_bytes()));
        file.extend(bytes);
        file
    };
    let file = |name: &str, bytes: Vec<u8>| {
        std::fs::write(place.file(name), bytes).unwrap();
        place.file(name)
    };
    let images = file("images", idx(&[8, 3], &rows(8)));
    let labels = file("labels", idx(&[8], &[0, 1, 0, 1, 0, 1, 0, 1]));
    let source = Source::Idx { images: images.clone(), labels };
    let loss = Loss::cross_entropy();
    let data = Dataset::open(&source, model.graph(), &loss, None).unwrap();
    let data = data.for_workers(place.file("").as_path()).unwrap();
    let workers =
        Host::new(1).local(1).threads(1).port(0).data(place.file("")).quiet().wait().await.unwrap();
    let mut boss = BossMan::builder(model).loss(loss).microbatches(2).build(workers).unwrap();
    boss.distribute_model().await.unwrap();
    boss.send_optimizer(Optimizer::sgd(0.1)).await.unwrap();
    // The first batch opens the data.
    let first = boss.train_step(&data.batch(&[0, 1, 2]).unwrap()).await.unwrap();
    assert_eq!(first.samples, 3);
    let whole = std::fs::read(&images).unwrap();
    std::fs::OpenOptions::new().write(true).open(&images).unwrap().set_len(12 + 3 * 4).unwrap();
    let error = boss.train_step(&data.batch(&[3, 2, 7]).unwrap()).await.unwrap_err().to_string();
    assert!(error.contains("worker 0, reading samples, microbatch 1, step 2: "), "{error}");
    assert!(
        error.contains("images: sample 7: failed to fill whole buffer; has the file changed?"),
        "{error}"
    );
    std::fs::write(&images, whole).unwrap();
    let again = boss.train_step(&data.batch(&[3, 2, 7]).unwrap()).await.unwrap();
    assert!(again.loss.is_finite());
    assert!(boss.evaluate(&data.batch(&[4, 5]).unwrap()).await.unwrap().loss.is_finite());
    // Tensors from the boss still work in between.
    let x = tch::Tensor::ones([2, 3], (tch::Kind::Float, tch::Device::Cpu));
    boss.train_step(&Batch::new(&x, &tch::Tensor::from_slice(&[0i64, 1]))).await.unwrap();
    assert!(data.batch(&[8]).is_err());
    boss.shutdown().await;
}

fn assert_same(found: &StateDict, expected: &StateDict) {
    let names =
        |state: &StateDict| state.iter().map(|(name, _)| name.to_string()).collect::<Vec<_>>();
    assert_eq!(names(found), names(expected));
    for (name, tensor) in expected.iter() {
        assert!(found.get(name).unwrap().equal(tensor), "{name} differs");
    }
}
