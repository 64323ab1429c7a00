//! Folders of small models that tests of families import.

use super::*;
use crate::run_file::RunFile;
use crate::StateDict;
use serde_json::Value;
use tch::{Device, Kind, Tensor};
use tempfile::TempDir;

/// A folder as transformers writes it, and a place to import to.
pub(super) struct Folder {
    pub(super) place: TempDir,
}

impl Folder {
    /// A folder with this configuration and tensors, whose elements differ.
    pub(super) fn new(config: &Value, tensors: &[(String, Vec<i64>)]) -> Self {
        let folder = Folder { place: tempfile::tempdir().unwrap() };
        std::fs::create_dir(folder.path()).unwrap();
        std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        let mut weights = StateDict::default();
        for (name, sizes) in tensors {
            weights.insert(name, &Tensor::randn(&sizes[..], (Kind::Float, Device::Cpu)));
        }
        weights.save(folder.path().join("model.safetensors")).unwrap();
        folder
    }

    fn path(&self) -> PathBuf {
        self.place.path().join("small")
    }

    pub(super) fn import(&self, options: &ImportOptions) -> Result<Imported, String> {
        import(&self.path(), &self.place.path().join("to"), options).map_err(|e| e.to_string())
    }

    /// The model file without its comments.
    pub(super) fn model_text(&self) -> String {
        let text = std::fs::read_to_string(self.place.path().join("to/model.yaml")).unwrap();
        text.lines().filter(|line| !line.starts_with('#')).map(|line| format!("{line}\n")).collect()
    }

    pub(super) fn run_text(&self) -> String {
        std::fs::read_to_string(self.place.path().join("to/run.yaml")).unwrap()
    }

    /// The files' tensors, and the weights that the run begins with.
    pub(super) fn weights(&self) -> [StateDict; 2] {
        let run = RunFile::from_file(self.place.path().join("to/run.yaml")).unwrap();
        let model = Model::from_file(&run.model).unwrap();
        let named = run.weights.unwrap();
        let files = StateDict::load(&named.path).unwrap();
        let weights = named.rename.apply(&files, &model).unwrap().fit_to(model.graph()).unwrap();
        [files, weights]
    }
}

/// A configuration with further keys.
pub(super) fn with(mut config: Value, more: &Value) -> Value {
    for (key, value) in more.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

/// Names with sizes, after a prefix.
pub(super) fn named(prefix: &str, sizes: &[(&str, &[i64])]) -> Vec<(String, Vec<i64>)> {
    sizes.iter().map(|(name, sizes)| (format!("{prefix}{name}"), sizes.to_vec())).collect()
}
