//! Tests workers that read the weights to start from in their own files. The results are those with
//! weights from the boss, to the bit.

use bossman::{Model, StateDict};
use std::path::Path;
use tch::{Device, Kind, Tensor};
use tests::programs::TestFolder;

const MODEL: &str = "
inputs: {x: [batch, 3]}
layers:
  - Linear: {in_features: 3, out_features: 8, bias: false}
    name: first
  - ReLU
  - Linear: {in_features: 8, out_features: 8}
    name: second
  - ReLU
  - Linear: {in_features: 8, out_features: 2}
    name: head
";

/// The parameters of `MODEL` that the files have, as rules.
const RULES: &str = "rename: {first.weight: [top, bottom], second.weight: {transpose: turned}}, \
                     ignore: [unused], fresh: [head.weight, head.bias]";

/// Makes a model, samples and weights in two files, in another type and partly under other names.
fn files(place: &TestFolder) {
    std::fs::write(place.file("model.yaml"), MODEL).unwrap();
    let rows = (0..24).map(|n| format!("{},{},{},{}\n", n % 5, n % 7, n % 3, n % 2));
    let header = "a,b,c,class\n".to_string();
    std::fs::write(place.file("data.csv"), header + &rows.collect::<String>()).unwrap();
    let numbers = |seed: i64, sizes: &[i64]| {
        let count = sizes.iter().product::<i64>();
        let numbers = (Tensor::arange(count, (Kind::Float, Device::Cpu)) * 0.7 + seed).sin();
        numbers.reshape(sizes).to_kind(Kind::BFloat16)
    };
    let mut weights = StateDict::default();
    for (seed, (name, sizes)) in (0..).zip([
        ("top", &[5i64, 3][..]),
        ("bottom", &[3, 3]),
        ("turned", &[8, 8]),
        ("second.bias", &[8]),
        ("unused", &[2]),
    ]) {
        weights.insert(name, &numbers(seed, sizes));
    }
    weights.save_sharded(place.file("mine"), 100).unwrap();
}

fn run_file(place: &TestFolder, name: &str, on: &str, more: &str) -> String {
    let text = format!(
        "model: model.yaml\ndata: {{train: data.csv}}\nweights: {{path: mine, on: {on}, \
         {RULES}}}\nloss: CrossEntropyLoss\noptimizer: {{SGD: {{lr: 0.1}}}}\nbatch_size: \
         12\nsteps: 4\nmicrobatches: 4\nseed: 5\n{more}\n"
    );
    std::fs::write(place.file(name), text).unwrap();
    place.file(name).to_str().unwrap().into()
}

/// Trains with local workers. Returns the weights.
async fn train(place: &TestFolder, on: &str, more: &str, workers: &str) -> Vec<u8> {
    let run = run_file(place, "run.yaml", on, more);
    let saved = place.file("trained.safetensors");
    let save = ["--save", saved.to_str().unwrap()];
    let flags = [&["train", &run, "--local", workers, "--threads", "1"][..], &save].concat();
    place.start("bossman", &flags).end().await.expect_success();
    std::fs::read(saved).unwrap()
}

#[tokio::test]
async fn training_is_the_same_as_with_weights_from_the_boss() {
    let place = TestFolder::new();
    files(&place);
    let plain = train(&place, "boss", "replicas: 1", "1").await;
    let drawn = {
        let bare = run_file(&place, "bare.yaml", "boss", "").replace(".yaml", "-of-seed.yaml");
        let text = std::fs::read_to_string(place.file("bare.yaml")).unwrap();
        let lines = text.lines().filter(|line| !line.starts_with("weights"));
        std::fs::write(&bare, lines.map(|line| format!("{line}\n")).collect::<String>()).unwrap();
        let saved = place.file("drawn.safetensors");
        let flags = ["train", &bare, "--local", "1", "--save", saved.to_str().unwrap()];
        place.start("bossman", &flags).end().await.expect_success();
        std::fs::read(saved).unwrap()
    };
    assert!(plain != drawn, "the weights of the files are used");
    for (more, workers) in
        [("replicas: 1", "2"), ("replicas: 2", "2"), ("replicas: [2, 1]\nshard: parameters", "3")]
    {
        let found = train(&place, "workers", more, workers).await;
        assert!(found == plain, "{more} on {workers} workers");
    }
}

#[tokio::test]
async fn the_weights_arrive_as_they_are_in_the_files() {
    let place = TestFolder::new();
    files(&place);
    let model = Model::from_file(place.file("model.yaml")).unwrap();
    let expected = StateDict::load(place.file("mine")).unwrap();
    for on in ["boss", "workers"] {
        let run = run_file(&place, "run.yaml", on, "");
        let fleet = bossman::fleet::FleetSettings { local: 2, ..Default::default() };
        let run = bossman::run_file::RunFile::from_file(&run).unwrap();
        let mut boss = run.load_model(&fleet, None).await.unwrap();
        let found = boss.state_dict().await.unwrap();
        boss.shutdown().await;
        assert_eq!(found.iter().count(), StateDict::names(model.graph()).len());
        let float = |name: &str| expected.get(name).unwrap().to_kind(Kind::Float);
        let joined = Tensor::cat(&[float("top"), float("bottom")], 0);
        assert!(found.get("first.weight").unwrap().equal(&joined), "{on}");
        assert!(found.get("second.weight").unwrap().equal(&float("turned").tr()), "{on}");
        assert!(found.get("second.bias").unwrap().equal(&float("second.bias")), "{on}");
    }
}

#[tokio::test]
async fn a_worker_without_the_same_files_says_so_before_training() {
    let place = TestFolder::new();
    files(&place);
    let run = run_file(&place, "run.yaml", "workers", "");
    let there = place.file("there");
    let copy = |file: &Path| std::fs::copy(file, there.join(file.file_name().unwrap())).unwrap();
    std::fs::create_dir(&there).unwrap();
    let all: Vec<_> = std::fs::read_dir(place.file("mine")).unwrap().map(Result::unwrap).collect();
    for entry in &all {
        copy(&entry.path());
    }
    let flags = ["--weights", there.to_str().unwrap()];
    let ended_with = async |flags: [&[&str]; 2]| {
        let (boss, at) = place.boss(Path::new(&run), 2, &[]).await;
        let workers = flags.map(|flags| place.worker(&at.port, flags));
        let ended = boss.end().await;
        drop(workers);
        ended
    };
    ended_with([&flags, &flags]).await.expect_success();
    let error = ended_with([&flags, &[]]).await.error_line();
    assert!(error.contains("start it with --weights FOLDER"), "{error}");
    // The tensors are the last bytes of each file.
    let files = all.iter().filter(|entry| entry.path().extension().unwrap() == "safetensors");
    let files: Vec<_> = files.map(|entry| there.join(entry.file_name())).collect();
    for file in &files {
        let mut bytes = std::fs::read(file).unwrap();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        std::fs::write(file, bytes).unwrap();
    }
    let error = ended_with([&flags, &flags]).await.error_line();
    assert!(error.contains("safetensors: has other weights than the boss's"), "{error}");
    files.iter().for_each(|file| std::fs::write(file, "short").unwrap());
    let error = ended_with([&flags, &flags]).await.error_line();
    assert!(error.contains("safetensors: has 5 bytes, too few for weights"), "{error}");
    let error = place.worker("1", &["--weights", "/no/such/folder"]).end().await.error_line();
    assert_eq!(error, "worker: --weights /no/such/folder: there is no such folder");
}

/// The weight has more bytes than a slice, and two stages hold it.
#[tokio::test]
async fn a_large_weight_travels_in_slices() {
    const TIED: &str = "
inputs: {ids: {shape: [batch, 2], dtype: int64}}
layers:
  - Embedding: {num_embeddings: 70001, embedding_dim: 64}
    name: table
  - Linear: {in_features: 64, out_features: 64}
    name: middle
  - Linear: {in_features: 64, out_features: 70001, bias: false}
    name: head
    share: table
";
    let place = TestFolder::new();
    std::fs::write(place.file("model.yaml"), TIED).unwrap();
    let numbers = |sizes: &[i64]| {
        let count = sizes.iter().product::<i64>();
        Tensor::arange(count, (Kind::Float, Device::Cpu)).sin().reshape(sizes)
    };
    let mut weights = StateDict::default();
    weights.insert("table.weight", &numbers(&[70_001, 64]).to_kind(Kind::BFloat16));
    weights.insert("middle.weight", &numbers(&[64, 64]));
    weights.insert("middle.bias", &numbers(&[64]));
    weights.save(place.file("w.safetensors")).unwrap();
    let model = Model::from_file(place.file("model.yaml")).unwrap();
    let expected = weights.fit_to(model.graph()).unwrap();
    for shard in ["", "shard: parameters\nreplicas: 2\n"] {
        let text = format!(
            "model: model.yaml\nweights: w.safetensors\nloss: MSELoss\noptimizer: {{SGD: {{lr: \
             0.1}}}}\nbatch_size: 2\n{shard}"
        );
        std::fs::write(place.file("run.yaml"), text).unwrap();
        let fleet = bossman::fleet::FleetSettings { local: 2, ..Default::default() };
        let run = bossman::run_file::RunFile::from_file(place.file("run.yaml")).unwrap();
        let mut boss = run.load_model(&fleet, None).await.unwrap();
        let found = boss.state_dict().await.unwrap();
        boss.shutdown().await;
        for (name, tensor) in expected.iter() {
            assert!(found.get(name).unwrap().equal(tensor), "{shard}{name}");
        }
    }
}
