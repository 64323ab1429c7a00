//! Whose run a folder holds. A folder from somebody else is input: a command reads nothing outside
//! it that only its run file names.

use super::files::{open, write};
use super::paths::has_run;
use crate::data::{DataError, Source, Tokenizer};
use crate::run_file::{Data, RunFile};
use crate::BossManError;

use layerspec::LayerGraph;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The file with the owner's mark of `run.yaml`.
const OWNER: &str = "owner";
const RUN: &str = "run.yaml";
/// The most bytes of a mark, and of a run file.
const MAX_BYTES: u64 = 16 << 20;
/// The most files of a folder that are looked at.
const MAX_FILES: usize = 1_000_000;

/// Marks the run file in a folder as written by this user's bossman. The mark tells nothing about
/// the join ticket, from which it is derived.
///
/// # Errors
/// The user's key cannot be read or made, or the mark cannot be written.
pub(super) fn mark_as_own(folder: &Path, run_file: &[u8]) -> Result<(), BossManError> {
    let mark = link::Identity::load_or_create()?.ticket().mark(run_file);
    write(&folder.join(OWNER), mark.as_bytes())
}

/// Whether this user's bossman wrote the run file of a folder, and nobody changed it since.
///
/// # Errors
/// The user's key cannot be read.
pub fn is_own(folder: &Path) -> Result<bool, BossManError> {
    let Some(ticket) = link::local_ticket().map_err(link::LinkError::from)? else {
        return Ok(false);
    };
    let read = |name| {
        let mut bytes = Vec::new();
        let file = open(&folder.join(name)).ok()??;
        file.take(MAX_BYTES).read_to_end(&mut bytes).ok().map(|_| bytes)
    };
    let (Some(run_file), Some(mark)) = (read(RUN), read(OWNER)) else { return Ok(false) };
    Ok(ticket.has_marked(&run_file, &mark))
}

/// The files that are read because a run file names them.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Reads {
    /// The model, weights and checkpoints.
    Model,
    /// Also data, or a tokenizer.
    Data,
}

/// Checks that neither links in a folder nor its run file lead out of it.
///
/// # Errors
/// A path leads out of the folder. The error names it.
pub fn check_stays_inside(folder: &Path, file: &RunFile, reads: Reads) -> Result<(), BossManError> {
    let inside = Inside::of(folder)?;
    if let Some(link) = inside.link_out(folder)? {
        let problem = "is a link out of this folder. Your bossman did not write the folder's run \
                       file, so nothing else is read; --trust follows it";
        return Err(BossManError::file(&link, problem));
    }
    inside.check("model", &file.model)?;
    let mut graph = LayerGraph::from_file(&file.model)?;
    for layer_file in graph.files_mut() {
        inside.check("model", &file.model.with_file_name(layer_file.path))?;
    }
    if let Some(weights) = &file.weights {
        inside.check("weights", &weights.path)?;
    }
    if let Some(dir) = file.checkpoint.as_ref().and_then(|policy| policy.dir.as_ref()) {
        // A URL is in no folder.
        inside.check("checkpoint", Path::new(dir))?;
    }
    let sources = file.data.iter().flat_map(Data::sources);
    for source in sources.filter(|_| reads == Reads::Data) {
        inside.check_source(source)?;
    }
    match file.tokenizer.as_ref().map(|text| &text.tokenizer) {
        Some(Tokenizer::File(path)) if reads == Reads::Data => inside.check("tokenizer", path),
        _ => Ok(()),
    }
}

/// Checks that a run may go on in a folder: that it is this user's, or that no link in it leads
/// out of it, to where the run would write.
///
/// # Errors
/// A link leads out of the folder. The error names it.
pub(super) fn check_may_write(folder: &Path) -> Result<(), BossManError> {
    if is_own(folder)? {
        return Ok(());
    }
    match Inside::of(folder)?.link_out(folder)? {
        None => Ok(()),
        Some(link) => {
            let problem = "is a link out of this folder. Your bossman did not write the folder's \
                           run file, so no run writes through it: delete the link";
            Err(BossManError::file(&link, problem))
        }
    }
}

/// A folder, and its path without links.
struct Inside {
    canonical: PathBuf,
}

impl Inside {
    fn of(folder: &Path) -> Result<Self, BossManError> {
        let canonical = folder.canonicalize().map_err(|e| BossManError::io(folder, &e))?;
        Ok(Inside { canonical })
    }

    /// What is not there cannot be read, so only its folder counts.
    fn has(&self, path: &Path) -> bool {
        let there = path.ancestors().find_map(|path| path.canonicalize().ok());
        there.is_some_and(|there| there.starts_with(&self.canonical))
    }

    fn check(&self, key: &str, path: &Path) -> Result<(), BossManError> {
        if self.has(path) {
            return Ok(());
        }
        let run = self.canonical.join(RUN);
        let (path, file) = (path.display(), run.display());
        let problem = match has_run(&self.canonical) {
            true => format!(
                "`{key}` is {path}, which is not in this folder. Your bossman did not write this \
                 run file, so nothing else is read: name the folder of the data with --data-dir, \
                 or let it read what the run file names with --trust"
            ),
            false => format!(
                "`{key}` is {path}, which is not in this folder. No run has begun here, so the \
                 folder is read as one from somebody else; if the run file is yours, name the \
                 file, {file}"
            ),
        };
        Err(BossManError::file(&run, problem))
    }

    fn check_source(&self, source: &Source) -> Result<(), BossManError> {
        let check = |path: &Path| match self.check("data", path) {
            Ok(()) => Ok(path.to_path_buf()),
            Err(BossManError::File { path, problem }) => Err(DataError::File { path, problem }),
            Err(error) => Err(DataError::Usage(error.to_string())),
        };
        Ok(source.with_paths(&check).map(drop)?)
    }

    /// The first link in the folder that leads out of it. Files that the run file names are below
    /// the folder.
    fn link_out(&self, folder: &Path) -> Result<Option<PathBuf>, BossManError> {
        let (mut folders, mut files) = (vec![folder.to_path_buf()], 0);
        while let Some(folder) = folders.pop() {
            let fault = |e: std::io::Error| BossManError::io(&folder, &e);
            for entry in std::fs::read_dir(&folder).map_err(fault)? {
                let entry = entry.map_err(fault)?;
                let kind = entry.file_type().map_err(fault)?;
                files += 1;
                if files > MAX_FILES {
                    let problem = format!("has more than {MAX_FILES} files");
                    return Err(BossManError::file(&self.canonical, problem));
                }
                if kind.is_dir() {
                    folders.push(entry.path());
                } else if kind.is_symlink() && !self.has(&entry.path()) {
                    return Ok(Some(entry.path()));
                }
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> (tempfile::TempDir, RunFile) {
        let folder = tempfile::tempdir().unwrap();
        let example = Path::new("../examples/digits");
        for name in ["digits.yaml", "digits-train.csv.gz", "digits-test.csv.gz", "run.yaml"] {
            std::fs::copy(example.join(name), folder.path().join(name)).unwrap();
        }
        let file = RunFile::from_file(folder.path().join(RUN)).unwrap();
        (folder, file)
    }

    #[test]
    fn files_of_layers_stay_inside() {
        let (place, file) = folder();
        let folder = place.path();
        let layers = |layer: &str| {
            let model = format!("inputs: {{x: [batch, 64]}}\nlayers:\n  - {layer}\n");
            std::fs::write(folder.join("digits.yaml"), model).unwrap();
            check_stays_inside(folder, &file, Reads::Model).map_err(|error| error.to_string())
        };
        for path in ["../c.safetensors", "/etc/hostname"] {
            for layer in [
                format!("Constant: {{path: {path}, tensor: t, shape: 2}}"),
                format!("TorchScript: {{path: {path}}}"),
            ] {
                let error = layers(&layer).unwrap_err();
                assert!(error.contains("which is not in this folder"), "{error}");
            }
        }
        layers("Constant: {path: c.safetensors, tensor: t, shape: 2}").unwrap();
    }

    /// A run would empty or extend the file.
    #[test]
    fn no_run_writes_out_of_somebody_elses_folder() {
        let (place, _) = folder();
        let folder = place.path();
        check_may_write(folder).unwrap();
        std::os::unix::fs::symlink("/etc/hostname", folder.join("log.txt")).unwrap();
        let refused = check_may_write(folder).unwrap_err().to_string();
        assert!(refused.contains("log.txt: is a link out of this folder"), "{refused}");
    }

    #[test]
    fn a_run_file_and_links_stay_inside() {
        let (place, file) = folder();
        let folder = place.path();
        check_stays_inside(folder, &file, Reads::Data).unwrap();
        let refused = |file: &RunFile, reads| {
            check_stays_inside(folder, file, reads).unwrap_err().to_string()
        };
        let outside = RunFile { model: "../examples/digits/digits.yaml".into(), ..file.clone() };
        assert!(refused(&outside, Reads::Model).contains("`model` is ../examples"));
        let mut outside = file.clone();
        outside.data.as_mut().unwrap().train = Source::File(folder.join("../x.csv"));
        assert!(refused(&outside, Reads::Data).contains("`data` is "));
        check_stays_inside(folder, &outside, Reads::Model).unwrap();
        std::os::unix::fs::symlink("/etc/hostname", folder.join("metrics.jsonl")).unwrap();
        assert!(
            refused(&file, Reads::Model).contains("metrics.jsonl: is a link out of this folder")
        );
        std::fs::remove_file(folder.join("metrics.jsonl")).unwrap();
        std::os::unix::fs::symlink("run.yaml", folder.join("metrics.jsonl")).unwrap();
        check_stays_inside(folder, &file, Reads::Data).unwrap();
    }
}
