//! The files that a run, or a command on one, writes where the user wants them.

use crate::data::{DataError, Source, Tokenizer};
use crate::run_file::{Data, RunFile};
use crate::train::epochs::best_path;
use crate::train::settings::TrainOptions;
use crate::weights::tensor_headers::TensorHeaders;
use crate::BossManError;
use std::cell::RefCell;
use std::path::{Path, PathBuf};

/// Checks that no file that the run writes is one that it reads, or writes for another purpose.
///
/// # Errors
/// Two are one file. The error names both flags or keys.
pub(super) fn check(file: &RunFile, options: &TrainOptions) -> Result<(), BossManError> {
    let inputs = inputs(file, options.weights.as_deref());
    let mut used: Vec<(&str, PathBuf)> = Vec::new();
    for (flag, path) in outputs(file, options) {
        let place = real_path(&path);
        refuse_input(&inputs, flag, &path)?;
        if let Some((other, _)) = used.iter().find(|(_, used)| *used == place) {
            let problem = format!("{other} and {flag} write the same file; choose another");
            return Err(BossManError::file(&path, problem));
        }
        used.push((flag, place));
    }
    Ok(())
}

impl RunFile {
    /// Checks that the file that a command writes is none of those that it reads. `flag` names the
    /// file, `weights` are those of the command line, and `data` is a file of data beside those of
    /// the run.
    ///
    /// # Errors
    /// It is one. The error names both flags or keys.
    pub fn check_output(
        &self,
        flag: &str,
        path: &Path,
        weights: Option<&Path>,
        data: Option<&Path>,
    ) -> Result<(), BossManError> {
        let mut inputs = inputs(self, weights);
        inputs.extend(data.map(|data| ("--data", data.to_path_buf())));
        refuse_input(&inputs, flag, path)
    }
}

fn refuse_input(
    inputs: &[(&'static str, PathBuf)],
    flag: &str,
    path: &Path,
) -> Result<(), BossManError> {
    let place = real_path(path);
    match inputs.iter().find(|(_, input)| real_path(input) == place) {
        Some((key, _)) => {
            let problem = format!("{flag} would overwrite the run's {key}; choose another file");
            Err(BossManError::file(path, problem))
        }
        None => Ok(()),
    }
}

fn outputs(file: &RunFile, options: &TrainOptions) -> Vec<(&'static str, PathBuf)> {
    let validates = file.data.as_ref().is_some_and(|data| data.validation.is_some());
    let named = [
        ("--save", options.save.clone()),
        ("--save (the best weights)", options.save.as_deref().map(best_path).filter(|_| validates)),
        ("--metrics", options.metrics.clone()),
        ("--trace", options.trace.clone()),
    ];
    named.into_iter().filter_map(|(flag, path)| Some((flag, path?))).collect()
}

/// The files that the run reads, by their keys.
fn inputs(file: &RunFile, weights: Option<&Path>) -> Vec<(&'static str, PathBuf)> {
    let own = PathBuf::from(file.loss_place.file());
    let mut inputs = vec![("run file", own), ("`model`", file.model.clone())];
    let named = file.weights.as_ref().map(|weights| weights.path.as_path());
    if let Some(path) = weights.or(named) {
        inputs.push(("`weights`", path.to_path_buf()));
        // What cannot be read is an error later.
        let headers = TensorHeaders::read(path).ok();
        let files = headers.iter().flat_map(TensorHeaders::files);
        inputs.extend(files.map(|path| ("`weights`", path.to_path_buf())));
    }
    if let Some(Tokenizer::File(path)) = file.tokenizer.as_ref().map(|text| &text.tokenizer) {
        inputs.push(("`tokenizer`", path.clone()));
    }
    let paths = file.data.iter().flat_map(Data::sources).flat_map(paths);
    // Pictures lie in folders of their classes.
    inputs.extend(paths.filter(|path| !path.is_dir()).map(|path| ("`data`", path)));
    inputs
}

fn paths(source: &Source) -> Vec<PathBuf> {
    let found = RefCell::new(Vec::new());
    let note = |path: &Path| {
        found.borrow_mut().push(path.to_path_buf());
        Ok::<_, DataError>(path.to_path_buf())
    };
    // The source without changes.
    source.with_paths(&note).ok();
    found.into_inner()
}

/// The path without links, also of a file that is not there yet.
fn real_path(path: &Path) -> PathBuf {
    let real = |path: &Path| path.canonicalize().ok();
    let beside = || {
        let folder = std::path::absolute(path).ok()?;
        Some(real(folder.parent()?)?.join(path.file_name()?))
    };
    real(path).or_else(beside).unwrap_or_else(|| path.to_path_buf())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StateDict;

    #[test]
    fn nothing_that_is_read_is_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["m.yaml", "d.csv", "w.safetensors"] {
            std::fs::write(at(name), "").unwrap();
        }
        std::fs::create_dir(at("hf")).unwrap();
        StateDict::default().save(at("hf/model.safetensors")).unwrap();
        std::fs::write(at("hf/own.safetensors"), "").unwrap();
        let text = "model: m.yaml\ndata: {train: d.csv, validation: {split: 0.1}}\nloss: MSELoss\n\
             optimizer: {SGD: {lr: 0.1}}\nbatch_size: 4\nsteps: 1\nweights: hf\n";
        std::fs::write(at("run.yaml"), text).unwrap();
        let file = RunFile::from_file(at("run.yaml")).unwrap();
        let problem = |save: &str, metrics: &str| {
            let (save, metrics) = (Some(at(save)), Some(at(metrics)));
            let options = TrainOptions { save, metrics, ..TrainOptions::default() };
            check(&file, &options).err().map_or(String::new(), |error| error.to_string())
        };
        assert_eq!(problem("w.safetensors", "metrics.jsonl"), "");
        // Of an earlier run.
        assert_eq!(problem("hf/own.safetensors", "metrics.jsonl"), "");
        let problem_of = |to: &str, weights: Option<&str>, data: Option<&str>| {
            let [weights, data] = [weights, data].map(|name| name.map(at));
            let checked = file.check_output("--to", &at(to), weights.as_deref(), data.as_deref());
            checked.err().map_or(String::new(), |error| error.to_string())
        };
        assert_eq!(problem_of("out.csv", Some("w.safetensors"), Some("other.csv")), "");
        for (to, weights, data, expected) in [
            ("d.csv", None, None, "--to would overwrite the run's `data`"),
            ("new.csv", None, Some("new.csv"), "--to would overwrite the run's --data"),
            ("w.safetensors", Some("w.safetensors"), None, "overwrite the run's `weights`"),
        ] {
            let found = problem_of(to, weights, data);
            assert!(found.contains(expected), "{found}");
        }
        for (save, metrics, expected) in [
            ("s", "run.yaml", "--metrics would overwrite the run's run file"),
            ("s", "hf/../d.csv", "--metrics would overwrite the run's `data`"),
            ("m.yaml", "x", "--save would overwrite the run's `model`"),
            ("hf/model.safetensors", "x", "--save would overwrite the run's `weights`"),
            ("s", "s", "--save and --metrics write the same file"),
            (
                "s.safetensors",
                "s.best.safetensors",
                "--save (the best weights) and --metrics write",
            ),
        ] {
            let found = problem(save, metrics);
            assert!(found.contains(expected), "{found}");
        }
    }
}
