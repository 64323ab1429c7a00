//! Data sets whose packages have nearly the wanted files.

use crate::import::gguf;
use crate::BossManError;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

pub(super) fn mnist(from: &Path, to: &Path) -> Result<(), BossManError> {
    for part in ["train", "t10k"] {
        for name in [format!("{part}-images-idx3-ubyte"), format!("{part}-labels-idx1-ubyte")] {
            copy(&from.join("package/data").join(&name), &to.join(name))?;
        }
    }
    Ok(())
}

pub(super) fn digits(from: &Path, to: &Path) -> Result<(), BossManError> {
    copy(&from.join("digits.csv.gz"), &to.join("digits.csv.gz"))
}

/// A folder as transformers has it, of a file as llama.cpp has it.
pub(super) fn smollm2(from: &Path, to: &Path) -> Result<(), BossManError> {
    gguf::to_huggingface(&from.join("SmolLM2-135M-Instruct.Q4_1.gguf"), to)
}

pub(super) fn diamonds(from: &Path, to: &Path) -> Result<(), BossManError> {
    copy(&from.join("diamonds.csv"), &to.join("diamonds.csv"))
}

/// All speeches in one file, in the order of their names, which begin with the year.
pub(super) fn sotu(from: &Path, to: &Path) -> Result<(), BossManError> {
    let folder = from.join("package/data");
    let entries = std::fs::read_dir(&folder).map_err(|e| BossManError::file(&folder, e))?;
    let mut speeches: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    speeches.retain(|path| path.extension().is_some_and(|ending| ending == "txt"));
    speeches.sort();
    let path = to.join("sotu.txt");
    let mut whole = File::create(&path).map_err(|e| BossManError::file(&path, e))?;
    for speech in speeches {
        let copied = File::open(&speech).and_then(|mut file| io::copy(&mut file, &mut whole));
        copied.map_err(|e| BossManError::file(&speech, e))?;
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<(), BossManError> {
    std::fs::copy(from, to)
        .map(drop)
        .map_err(|e| BossManError::file(from, format!("{e}; the package has changed")))
}
