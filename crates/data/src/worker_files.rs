//! Data that workers read from their own files.
//!
//! A description names the files. By a digest, two machines find out whether they have the same
//! files.

use crate::expected_tensor::ExpectedTensor;
use crate::normalize::Normalize;
use crate::source::Source;
use crate::{DataError, Dataset, Opened};
use layerspec::LayerGraph;
use pipeline::samples::{DataId, DataSpec};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

/// The largest description in bytes. A usual one has a few hundred.
const MAX_DESCRIPTION: usize = 1 << 20;

/// If all files together have more than this (256 MiB), only parts of them are compared.
const WHOLE: u64 = 256 << 20;
/// The number of compared parts, at equal distances. Each has `PART` bytes.
const PARTS: u64 = 4096;
const PART: u64 = 64 << 10;

/// The number of files that are named with their sizes, so that an error can name the one that
/// differs.
const NAMED: usize = 64;

/// Describes the files and how to read them. Paths are below a folder that each machine has
/// somewhere.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct FilesDescription {
    pub(crate) source: Source,
    pub(crate) inputs: Vec<ExpectedTensor>,
    pub(crate) target: Option<ExpectedTensor>,
    pub(crate) normalize: Option<Normalize>,
    /// The first files with their sizes in bytes.
    sizes: Vec<(PathBuf, u64)>,
}

/// A data set whose files are on the workers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WorkerFiles {
    pub(crate) id: DataId,
    pub(crate) description: Vec<u8>,
}

impl Dataset {
    /// Lets workers read the samples from their own files, at the same paths below a folder of
    /// theirs.
    ///
    /// Batches then hold sample numbers. The files are read once for a digest, by which workers
    /// check that they have the same files. The digest covers the whole files if they have at most
    /// 256 MiB together, and otherwise 4096 parts.
    ///
    /// # Errors
    /// A file is not below the folder, or cannot be read.
    pub fn for_workers(self, folder: &Path) -> Result<Self, DataError> {
        let Opened { source, inputs, target, normalize, .. } = self.opened.as_ref();
        let description =
            FilesDescription::new(source, folder, inputs, target.as_ref(), normalize.as_ref())?;
        Ok(Dataset { worker_files: Some(Arc::new(description.with_digest(folder)?)), ..self })
    }

    /// Opens the described data in this folder: the worker's side of [`Dataset::for_workers`].
    ///
    /// # Errors
    /// A file is missing, is wrong, or differs from the boss's.
    pub fn from_description(
        description: &[u8],
        id: DataId,
        folder: &Path,
    ) -> Result<Self, DataError> {
        let description = FilesDescription::parse(description)?;
        if description.with_digest(folder)?.id != id {
            return Err(description.difference(folder));
        }
        let FilesDescription { source, inputs, target, normalize, .. } = description;
        let source = source.with_paths(&|path| Ok(folder.join(path)))?;
        Self::of(Opened { source, inputs, target, normalize, has_classes: false })
    }

    /// Returns the description for workers that read the data from their own files. Returns `None`
    /// if the boss sends the samples.
    pub fn spec(&self, graph: &LayerGraph) -> Option<DataSpec> {
        let WorkerFiles { id, description } = self.worker_files.as_ref()?.as_ref();
        Some(DataSpec {
            id: *id,
            description: description.clone(),
            inputs: graph.inputs().to_vec(),
        })
    }

    /// Returns the id of the data, if workers read it from their own files.
    pub fn id(&self) -> Option<DataId> {
        self.worker_files.as_ref().map(|files| files.id)
    }
}

impl FilesDescription {
    /// Describes data whose files are all below this folder.
    pub(crate) fn new(
        source: &Source,
        folder: &Path,
        inputs: &[ExpectedTensor],
        target: Option<&ExpectedTensor>,
        normalize: Option<&Normalize>,
    ) -> Result<Self, DataError> {
        let below = |path: &Path| {
            let relative = path
                .strip_prefix(folder)
                .map_err(|_| ())
                .and_then(|path| relative_path(path).ok_or(()));
            relative.map_err(|()| {
                let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
                let problem =
                    "so workers do not know it; put it there, and name it as seen from there";
                DataError::file(path, format!("is not below {}, {problem}", folder.display()))
            })
        };
        let source = source.with_paths(&below)?;
        let files = source.with_paths(&|path| Ok(folder.join(path)))?.files()?;
        let mut sizes = Vec::new();
        for file in files.iter().take(NAMED) {
            sizes.push((below(file)?, size(file)?));
        }
        let (inputs, target) = (inputs.to_vec(), target.cloned());
        Ok(FilesDescription { source, inputs, target, normalize: normalize.cloned(), sizes })
    }

    /// Parses a description that came from elsewhere.
    ///
    /// # Errors
    /// The bytes are no description, or name a path that leads out of the folder.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, DataError> {
        let wrong = |problem: String| DataError::Usage(format!("a description of data {problem}"));
        if bytes.len() > MAX_DESCRIPTION {
            return Err(wrong(format!(
                "of {} bytes; at most {MAX_DESCRIPTION} are allowed",
                bytes.len()
            )));
        }
        let description: FilesDescription =
            rmp_serde::from_slice(bytes).map_err(|e| wrong(format!("is wrong: {e}")))?;
        let below = |path: &Path| {
            relative_path(path).ok_or_else(|| {
                wrong(format!("names {}, which leads out of the folder", path.display()))
            })
        };
        let source = description.source.with_paths(&below)?;
        description.sizes.iter().try_for_each(|(path, _)| below(path).map(drop))?;
        Ok(FilesDescription { source, ..description })
    }

    /// Returns the encoded description, with the digest of the files in this folder.
    pub(crate) fn with_digest(&self, folder: &Path) -> Result<WorkerFiles, DataError> {
        let description = rmp_serde::to_vec(self)
            .map_err(|e| DataError::Usage(format!("data that cannot be described: {e}")))?;
        if description.len() > MAX_DESCRIPTION {
            return Err(DataError::Usage(format!(
                "workers cannot read this data themselves: its description has {} bytes, and at \
                 most {MAX_DESCRIPTION} are allowed; let the boss send the samples (leave out \
                 `on: workers`)",
                description.len()
            )));
        }
        let mut digest = Sha256::new();
        digest.update((description.len() as u64).to_le_bytes());
        digest.update(&description);
        contents(
            &self.source.with_paths(&|path| Ok(folder.join(path)))?.files()?,
            folder,
            &mut digest,
        )?;
        Ok(WorkerFiles { id: DataId(digest.finalize().into()), description })
    }

    /// Makes an error that names a file in this folder with a wrong size, or says that the contents
    /// differ.
    pub(crate) fn difference(&self, folder: &Path) -> DataError {
        for (name, meant) in &self.sizes {
            let file = folder.join(name);
            match size(&file) {
                Ok(found) if found == *meant => {}
                Ok(found) => {
                    let problem = format!(
                        "has {found} bytes, but the boss's has {meant}; give both the same files"
                    );
                    return DataError::file(&file, problem);
                }
                Err(error) => return error,
            }
        }
        let problem = "has other contents than the boss's; give both the same files";
        match self.sizes.as_slice() {
            [(only, _)] => DataError::file(&folder.join(only), problem),
            [(first, _), .., (last, _)] => {
                let (first, last) = (first.display(), last.display());
                DataError::file(
                    folder,
                    format!("something of what is read there, from {first} to {last}, {problem}"),
                )
            }
            [] => DataError::file(&folder.join(self.source.path()), problem),
        }
    }
}

/// Returns the path without its `.` parts, if it only leads down.
pub(crate) fn relative_path(path: &Path) -> Option<PathBuf> {
    let parts = || path.components().filter(|part| *part != Component::CurDir);
    let down = parts().all(|part| matches!(part, Component::Normal(_)));
    (down && parts().next().is_some()).then(|| parts().collect())
}

fn size(path: &Path) -> Result<u64, DataError> {
    Ok(std::fs::metadata(path).map_err(|e| DataError::io(path, &e))?.len())
}

/// Digests the names, sizes and contents of files. Large contents are digested in parts at equal
/// distances, counted over the bytes of all files one after the other.
fn contents(files: &[PathBuf], folder: &Path, digest: &mut Sha256) -> Result<(), DataError> {
    let mut starts = Vec::new();
    let mut total = 0u64;
    for file in files {
        let (name, size) =
            (file.strip_prefix(folder).unwrap_or(file).to_string_lossy(), size(file)?);
        digest.update((name.len() as u64).to_le_bytes());
        digest.update(name.as_bytes());
        digest.update(size.to_le_bytes());
        starts.push((total, size));
        total = total.saturating_add(size);
    }
    let parts: Vec<(u64, u64)> = match total <= WHOLE {
        true => vec![(0, total)],
        false => (0..PARTS).map(|part| ((total - PART) / (PARTS - 1) * part, PART)).collect(),
    };
    let mut buffer = vec![0; PART as usize];
    for (file, (start, size)) in files.iter().zip(starts) {
        let error = |e: std::io::Error| DataError::io(file, &e);
        let mut opened = None;
        let here = parts.partition_point(|(from, len)| from + len <= start);
        for (from, len) in parts[here..].iter().take_while(|(from, _)| *from < start + size) {
            let (mut at, end) = ((*from).max(start), (from + len).min(start + size));
            while at < end {
                let opened = match &mut opened {
                    Some(opened) => opened,
                    none => none.insert(File::open(file).map_err(error)?),
                };
                let read = &mut buffer[..(end - at).min(PART) as usize];
                opened.seek(SeekFrom::Start(at - start)).map_err(error)?;
                opened.read_exact(read).map_err(error)?;
                digest.update(read);
                at += PART;
            }
        }
    }
    Ok(())
}
