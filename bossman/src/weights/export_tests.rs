//! Tests that weights in files are written as those in memory, to the byte.

use super::*;
use crate::weights::rename_rules::Source;
use std::path::PathBuf;
use tch::Device;
use tempfile::TempDir;

const MODEL: &str = "
inputs: {x: [batch, 2]}
layers:
  - Linear: {in_features: 2, out_features: 3}
    name: a
  - Linear: {in_features: 3, out_features: 2, bias: false}
    name: b
";

/// The last file of the weights. It has the tensor `turned`.
const LAST: &str = "model-00004-of-00004.safetensors";

/// Weights in another type and under other names, each in its own file of a folder `from`.
fn saved() -> (TempDir, PathBuf, StateDict) {
    let mut state = StateDict::default();
    let numbers = Tensor::arange(6, (Kind::BFloat16, Device::Cpu)) * 0.7;
    state.insert("a.bias", &numbers.slice(0, 0, 3, 1));
    state.insert("top", &numbers.slice(0, 0, 2, 1).reshape([1, 2]));
    state.insert("bottom", &numbers.slice(0, 2, 6, 1).reshape([2, 2]));
    state.insert("turned", &numbers.reshape([3, 2]));
    let place = tempfile::tempdir().unwrap();
    let from = place.path().join("from");
    state.save_sharded(&from, 10).unwrap();
    assert!(from.join(LAST).is_file());
    (place, from, state)
}

fn rules() -> RenameRules {
    let mut rename = RenameRules::default();
    rename.rule("a.weight", &["top".into(), "bottom".into()]).unwrap();
    rename.rule("b.weight", &[Source::transposed("turned")]).unwrap();
    rename
}

/// The files of a folder.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let entries = std::fs::read_dir(folder).unwrap().map(Result::unwrap);
    entries
        .map(|entry| (PathBuf::from(entry.file_name()), std::fs::read(entry.path()).unwrap()))
        .collect()
}

/// Writes the weights from memory and from their files, and compares.
fn expect_same(from: &Path, rename: &RenameRules, model: &Model, settings: &ExportSettings) {
    let place = tempfile::tempdir().unwrap();
    let [memory, streamed] = ["memory", "streamed"].map(|name| {
        let folder = place.path().join(name);
        std::fs::create_dir(&folder).unwrap();
        folder
    });
    let to = |folder: &Path| match settings.max_shard_bytes {
        Some(_) => folder.to_path_buf(),
        None => folder.join("w.safetensors"),
    };
    let named = rename.apply(&StateDict::load(from).unwrap(), model).unwrap();
    let written = export(&named, model, &to(&memory), settings).unwrap();
    let count = export_files(from, rename, model, &to(&streamed), settings).unwrap();
    assert_eq!(count, written.iter().count());
    assert!(files(&streamed) == files(&memory), "{settings:?}");
    let found = StateDict::load(to(&streamed)).unwrap();
    assert_eq!(found.digest().unwrap(), written.digest().unwrap(), "{settings:?}");
}

#[test]
fn one_file_and_several_are_those_of_weights_in_memory() {
    let (_place, from, _) = saved();
    let model = Model::from_yaml(MODEL).unwrap();
    for dtype in [None, Some(Kind::Half), Some(Kind::BFloat16), Some(Kind::Double)] {
        for max_shard_bytes in [None, Some(1), Some(30), Some(1000)] {
            let settings = ExportSettings { dtype, max_shard_bytes };
            expect_same(&from, &rules(), &model, &settings);
        }
    }
}

#[test]
fn a_large_tensor_is_read_in_slices() {
    let layer = "{in_features: 2048, out_features: 2100, bias: false}";
    let text = format!("inputs: {{x: [batch, 2048]}}\nlayers:\n  - Linear: {layer}\n    name: a\n");
    let model = Model::from_yaml(&text).unwrap();
    let mut rename = RenameRules::default();
    rename.rule("a.weight", &["top".into(), "bottom".into()]).unwrap();
    let mut state = StateDict::default();
    for (name, rows) in [("top", 1000i64), ("bottom", 1100)] {
        let numbers = Tensor::arange(rows * 2048, (Kind::Float, Device::Cpu)).sin();
        state.insert(name, &numbers.reshape([rows, 2048]).to_kind(Kind::BFloat16));
    }
    let place = tempfile::tempdir().unwrap();
    let from = place.path().join("w.safetensors");
    state.save(&from).unwrap();
    for dtype in [None, Some(Kind::Half)] {
        let settings = ExportSettings { dtype, max_shard_bytes: None };
        expect_same(&from, &rename, &model, &settings);
    }
}

#[test]
fn the_files_that_are_read_can_be_replaced() {
    let (_place, from, state) = saved();
    let model = Model::from_yaml(MODEL).unwrap();
    let (named, none) = (rules().apply(&state, &model).unwrap(), RenameRules::default());
    let settings = |dtype| ExportSettings { dtype, max_shard_bytes: Some(1) };
    export(&named, &model, &from, &settings(None)).unwrap();
    let expected = export(&named, &model, &from.join("other"), &settings(Some(Kind::Half)));
    export_files(&from, &none, &model, &from, &settings(Some(Kind::Half))).unwrap();
    let found = StateDict::load(&from).unwrap();
    assert_eq!(found.digest().unwrap(), expected.unwrap().digest().unwrap());
}

#[test]
fn a_file_that_disappears_is_an_error_and_nothing_is_written() {
    let (place, from, _) = saved();
    let model = Model::from_yaml(MODEL).unwrap();
    let (folder, aside) = (place.path().join("to"), place.path().join("aside"));
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("w.safetensors"), "old").unwrap();
    for max_shard_bytes in [None, Some(1)] {
        let settings = ExportSettings { dtype: None, max_shard_bytes };
        let to = match max_shard_bytes {
            Some(_) => folder.clone(),
            None => folder.join("w.safetensors"),
        };
        let found = WeightFiles::find_all(&from, &rules(), &model).unwrap();
        std::fs::rename(from.join(LAST), &aside).unwrap();
        let tensors = Converted::new(&found, &settings).unwrap();
        let error = write(&tensors, &to, &settings).unwrap_err().to_string();
        assert!(error.contains(LAST), "{error}");
        let old = BTreeMap::from([(PathBuf::from("w.safetensors"), b"old".to_vec())]);
        assert_eq!(files(&folder), old);
        std::fs::rename(&aside, from.join(LAST)).unwrap();
    }
}

#[test]
fn all_differences_are_listed_before_anything_is_written() {
    let (place, from, _) = saved();
    let model = Model::from_yaml(MODEL).unwrap();
    let to = place.path().join("to.safetensors");
    let settings = ExportSettings { dtype: None, max_shard_bytes: None };
    let mut fresh = rules();
    fresh.fresh("a.bias").unwrap();
    // What is `fresh` in a run file is trained by now.
    export_files(&from, &fresh, &model, &to, &settings).unwrap();
    std::fs::remove_file(&to).unwrap();
    let none = RenameRules::default();
    let error = export_files(&from, &none, &model, &to, &settings).unwrap_err().to_string();
    for part in [
        "the weights do not fit the model",
        "`a.weight`: missing; expected float32 [3, 2]",
        "`b.weight`: missing; expected float32 [2, 3]",
        "`top`: the model has no such parameter",
    ] {
        assert!(error.contains(part), "{error}");
    }
    let wrong = ExportSettings { dtype: Some(Kind::Int64), max_shard_bytes: None };
    let error = export_files(&from, &rules(), &model, &to, &wrong).unwrap_err().to_string();
    assert_eq!(error, "Int64: weights are floating-point numbers");
    assert!(!to.exists());
}
