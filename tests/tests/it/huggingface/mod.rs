//! Tests models that `bossman import` makes of folders of Hugging Face's transformers, against what
//! transformers computes. `tests/huggingface/README.md` says what is recorded.

mod back;
mod command;
mod proof;

use bossman::run_file::RunFile;
use bossman::{import, BossMan, Host, ImportOptions, Model, Replicas, ScheduleKind, StateDict};
use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tch::{Device, Kind, Tensor};
use tests::programs::TestFolder;

/// The target of a position after which nothing is to be predicted. The loss leaves it out.
const IGNORED: i64 = -100;

/// Fails a test that takes longer than 240 s.
fn within_limit(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(240), test).await.unwrap() });
}

/// The folder of everything that is recorded in the checkout.
fn recorded() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("huggingface")
}

/// A model of transformers, imported, and what transformers computes with it.
struct Case {
    folder: PathBuf,
    name: String,
    /// Of the run file that the import wrote.
    run: RunFile,
    model: Model,
    /// The weights of the files, as the run file begins with them.
    weights: StateDict,
    tensors: StateDict,
    figures: serde_json::Value,
}

impl Case {
    /// Reads all cases. `tools/huggingface_oracle.py` names a folder of its own.
    fn all() -> Vec<Case> {
        let folder = std::env::var_os("BOSSMAN_HUGGINGFACE").map_or_else(recorded, PathBuf::from);
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let mut folders: Vec<PathBuf> = entries.filter(|path| path.is_dir()).collect();
        folders.sort();
        assert!(folders.len() >= 3, "only {folders:?}");
        let options = ImportOptions::default();
        folders.iter().map(|folder| Case::import(folder, &options)).collect()
    }

    /// Imports the cases that have texts with padding again, with inputs that tell of it.
    fn all_masked() -> Vec<Case> {
        let masked = Case::all().into_iter().filter(|case| !case.masked_inputs().is_empty());
        let again = masked.map(|case| {
            let inputs = case.masked_inputs();
            Case::import(&case.folder, &ImportOptions { inputs, ..ImportOptions::default() })
        });
        again.collect()
    }

    /// The inputs of texts with padding.
    fn masked_inputs(&self) -> Vec<String> {
        let names = self.tensors.iter().filter_map(|(name, _)| name.strip_prefix("masked."));
        names.filter(|name| *name != "outputs").map(String::from).collect()
    }

    fn import(folder: &Path, options: &ImportOptions) -> Case {
        let place = TestFolder::new();
        let to = place.file("imported");
        let imported = import(&folder.join("model"), &to, options).unwrap();
        assert_eq!(imported.warnings, [""; 0], "{folder:?}");
        let run = RunFile::from_file(&imported.run).unwrap();
        let model = Model::from_file(&run.model).unwrap();
        let named = run.weights.as_ref().unwrap();
        let files = StateDict::load(&named.path).unwrap();
        let weights = named.rename.apply(&files, &model).unwrap().fit_to(model.graph()).unwrap();
        let figures = std::fs::read_to_string(folder.join("expected.json")).unwrap();
        let case = Case {
            folder: folder.to_path_buf(),
            name: folder.file_name().unwrap().to_string_lossy().into_owned(),
            run,
            model,
            weights,
            tensors: StateDict::load(folder.join("expected.safetensors")).unwrap(),
            figures: serde_json::from_str(&figures).unwrap(),
        };
        case.expect_meaning();
        case
    }

    /// Checks that what is recorded can show a mistake.
    fn expect_meaning(&self) {
        let name = &self.name;
        let losses = self.losses();
        let (first, last) = (losses[0], losses[losses.len() - 1]);
        assert!(losses.len() == 20 && last < 0.98 * first, "{name}: {losses:?} do not fall");
        assert!(self.tensor("outputs").std(true).double_value(&[]) > 0.1, "{name}");
        let trained = self.trained();
        assert!(trained.iter().count() > 18, "{name}");
        for (parameter, tensor) in trained.iter() {
            let before = self.weights.get(parameter);
            let before = before.unwrap_or_else(|| panic!("{name}: no {parameter}"));
            let moved = (tensor - before).abs().max().double_value(&[]);
            assert!(moved > 1e-3, "{name}: {parameter} was not trained");
        }
        if let Some([_, generated]) = self.text() {
            let mut different = generated.clone();
            different.sort_unstable();
            different.dedup();
            assert!(generated.len() == 12 && different.len() >= 4, "{name}: {generated:?}");
        }
    }

    /// The name of the model's first input.
    fn input(&self) -> &'static str {
        match self.tensors.get("pixel_values") {
            Some(_) => "pixel_values",
            None => "input_ids",
        }
    }

    fn tensor(&self, name: &str) -> &Tensor {
        self.tensors.get(name).unwrap()
    }

    /// The loss of each step of training.
    fn losses(&self) -> Vec<f64> {
        serde_json::from_value(self.figures["losses"].clone()).unwrap()
    }

    /// A prompt and the tokens after it. A model without a head has none.
    fn text(&self) -> Option<[Vec<i64>; 2]> {
        let tokens =
            |key: &str| -> Vec<i64> { serde_json::from_value(self.figures[key].clone()).unwrap() };
        let has_text = self.figures.get("generated").is_some();
        has_text.then(|| [tokens("prompt"), tokens("generated")])
    }

    /// The samples to train on: tokens or pictures, and targets.
    fn samples(&self) -> [Tensor; 2] {
        let ids = self.tensor(&format!("train.{}", self.input()));
        if let Some(targets) = self.tensors.get("train.targets") {
            return [ids.shallow_clone(), targets.shallow_clone()];
        }
        // The target of a position is the next token.
        let size = ids.size();
        let last = Tensor::full([size[0], 1], IGNORED, (Kind::Int64, Device::Cpu));
        [ids.shallow_clone(), Tensor::cat(&[ids.narrow(1, 1, size[1] - 1), last], 1)]
    }

    /// The parameters after the last step, as the model has them.
    fn trained(&self) -> StateDict {
        let mut trained = StateDict::default();
        for (name, tensor) in self.tensors.iter() {
            if let Some(name) = name.strip_prefix("trained.") {
                trained.insert(name, tensor);
            }
        }
        let named = self.run.weights.as_ref().unwrap();
        named.rename.apply(&trained, &self.model).unwrap()
    }

    /// The model on local workers, with the weights of the files.
    async fn boss(&self, workers: usize, replicas: Option<u16>) -> BossMan {
        // Some sums depend on the number of threads.
        let host = Host::new(workers).local(workers).port(0).threads(1).quiet();
        let mut boss = BossMan::builder(self.model.clone())
            .replicas(replicas.map(Replicas::Each))
            .schedule(ScheduleKind::OneFOneB)
            .loss(self.run.loss.clone())
            .microbatches(self.run.microbatches)
            .build(host.wait().await.unwrap())
            .unwrap();
        boss.distribute_model().await.unwrap();
        boss.load_state_dict(&self.weights).await.unwrap();
        boss
    }
}
