//! The files beside the weights that go along: configuration, tokenizer, licence.

use super::config_dtype::with_dtype;
use crate::data::{atomic_file, bounded_file};
use crate::weights::export::float_dtype;
use crate::BossManError;
use std::io::Write;
use std::path::{Path, PathBuf};
use tch::Kind;

/// The most bytes of a file.
const MAX_BYTES: u64 = 256 << 20;
const CONFIG: &str = "config.json";
/// The files that go along. Code never does.
const NAMES: [&str; 18] = [
    CONFIG,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    "chat_template.jinja",
    "preprocessor_config.json",
    // Of sentence-transformers: what follows the model, and how it is called.
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "README.md",
    "USE_POLICY.md",
];
/// The files of a module of sentence-transformers that go along.
const OF_MODULES: [&str; 2] = [CONFIG, "model.safetensors"];
/// The beginnings of further names.
const BEGINNINGS: [&str; 2] = ["LICENSE", "NOTICE"];
/// Endings that no licence has: code, and weights.
const ENDINGS: [&str; 6] = ["py", "safetensors", "bin", "pt", "pth", "gguf"];

/// Files of a folder.
pub(super) struct OtherFiles {
    source: PathBuf,
    names: Vec<String>,
}

impl OtherFiles {
    /// Lists the files of a folder that go along.
    ///
    /// # Errors
    /// The folder cannot be read, or a file is too large.
    pub(super) fn of(source: &Path) -> Result<Self, BossManError> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(source).map_err(|e| BossManError::io(source, &e))? {
            let entry = entry.map_err(|e| BossManError::io(source, &e))?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            if goes_along(&name) {
                names.push(name);
            } else if is_module(&name) {
                names.extend(OF_MODULES.map(|file| format!("{name}/{file}")));
            }
        }
        names.retain(|name| source.join(name).is_file());
        names.sort();
        names.iter().try_for_each(|name| check(source, name))?;
        Ok(OtherFiles { source: source.to_path_buf(), names })
    }

    /// Copies them into a folder. The configuration tells of a new type of the weights.
    ///
    /// # Errors
    /// A file cannot be read or written, or the configuration is not one.
    pub(super) fn copy(&self, to: &Path, dtype: Option<Kind>) -> Result<(), BossManError> {
        for name in &self.names {
            let from = self.source.join(name);
            let Some(mut bytes) = bounded_file::read(&from, MAX_BYTES)? else {
                return Err(BossManError::file(&from, "was deleted meanwhile"));
            };
            if let Some(kind) = dtype.filter(|_| name == CONFIG) {
                let wrong = |problem: String| BossManError::file(&from, problem);
                let text = String::from_utf8(bytes).map_err(|e| wrong(e.to_string()))?;
                bytes = with_dtype(&text, float_dtype(kind)?).map_err(wrong)?.into_bytes();
            }
            let path = to.join(name);
            if let Some(folder) = path.parent() {
                std::fs::create_dir_all(folder).map_err(|e| BossManError::io(folder, &e))?;
            }
            let mut file = atomic_file::create(&path)?;
            file.write_all(&bytes).map_err(|e| BossManError::io(&path, &e))?;
            atomic_file::commit(&path, file)?;
        }
        Ok(())
    }
}

/// Checks that a file is inside the folder, and not too large.
fn check(source: &Path, name: &str) -> Result<(), BossManError> {
    let path = source.join(name);
    check_stays_inside(source, &path)?;
    let bytes = path.metadata().map_err(|e| BossManError::io(&path, &e))?.len();
    match bytes > MAX_BYTES {
        true => Err(BossManError::file(
            &path,
            format!("has {bytes} bytes; at most {MAX_BYTES} are copied. Is it the right file?"),
        )),
        false => Ok(()),
    }
}

/// Refuses a link that leads out of the folder: an export is made to be given away.
///
/// # Errors
/// It does, and not to the files of a downloaded model, which lie beside its `snapshots`.
fn check_stays_inside(folder: &Path, path: &Path) -> Result<(), BossManError> {
    let real = |path: &Path| path.canonicalize().map_err(|e| BossManError::io(path, &e));
    let (folder, file) = (real(folder)?, real(path)?);
    let snapshots = folder.parent().filter(|parent| parent.ends_with("snapshots"));
    let blobs = snapshots.and_then(Path::parent).map(|model| model.join("blobs"));
    match file.starts_with(&folder) || blobs.is_some_and(|blobs| file.starts_with(blobs)) {
        true => Ok(()),
        false => Err(BossManError::file(
            path,
            "is a link that leads out of the folder; put a copy of the file in its place, or \
             delete it",
        )),
    }
}

/// Whether a folder is a module of sentence-transformers, as `1_Pooling`.
fn is_module(folder: &str) -> bool {
    let number = folder.split_once('_').map_or("", |(number, _)| number);
    !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
}

fn goes_along(name: &str) -> bool {
    let ending = Path::new(name).extension().unwrap_or_default().to_string_lossy();
    NAMES.contains(&name)
        || BEGINNINGS.iter().any(|beginning| name.starts_with(beginning))
            && !ENDINGS.contains(&&*ending)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn a_link_stays_inside_the_folder_or_the_download() {
        use std::os::unix::fs::symlink;
        let place = tempfile::tempdir().unwrap();
        let (model, secret) = (place.path().join("models--a--b"), place.path().join("secret"));
        let source = model.join("snapshots/1");
        for folder in [&source, &model.join("blobs")] {
            std::fs::create_dir_all(folder).unwrap();
        }
        std::fs::write(&secret, "a key").unwrap();
        std::fs::write(model.join("blobs/x"), "{}").unwrap();
        symlink("../../blobs/x", source.join("config.json")).unwrap();
        assert_eq!(OtherFiles::of(&source).unwrap().names, ["config.json"]);
        symlink(&secret, source.join("LICENSE")).unwrap();
        let error = OtherFiles::of(&source).err().unwrap().to_string();
        assert!(error.contains("LICENSE: is a link that leads out of the folder"), "{error}");
    }

    #[test]
    fn known_files_are_copied_and_code_and_weights_are_not() {
        let place = tempfile::tempdir().unwrap();
        let (source, to) = (place.path().join("a"), place.path().join("b"));
        std::fs::create_dir_all(source.join("vocab.txt")).unwrap();
        std::fs::create_dir(&to).unwrap();
        for module in ["1_Pooling", "2_Dense", "runs_1"] {
            std::fs::create_dir(source.join(module)).unwrap();
        }
        for name in [
            "1_Pooling/config.json",
            "2_Dense/model.safetensors",
            "2_Dense/pytorch_model.bin",
            "runs_1/config.json",
            "config.json",
            "LICENSE",
            "LICENSE.txt",
            "NOTICE.py",
            "modeling.py",
            "pytorch_model.bin",
            "model.safetensors",
            "tokenizer.model",
        ] {
            std::fs::write(source.join(name), "{\"dtype\": \"float32\"}\r\n").unwrap();
        }
        let files = OtherFiles::of(&source).unwrap();
        let expected = [
            "1_Pooling/config.json",
            "2_Dense/model.safetensors",
            "LICENSE",
            "LICENSE.txt",
            "config.json",
            "tokenizer.model",
        ];
        assert_eq!(files.names, expected);
        let text = |name: &str| std::fs::read_to_string(to.join(name)).unwrap();
        files.copy(&to, None).unwrap();
        assert_eq!(text("config.json"), "{\"dtype\": \"float32\"}\r\n");
        files.copy(&to, Some(Kind::Half)).unwrap();
        assert_eq!(text("config.json"), "{\"dtype\": \"float16\"}\r\n");
        assert_eq!(text("tokenizer.model"), "{\"dtype\": \"float32\"}\r\n");
        assert!(text("1_Pooling/config.json").contains("float32"));
        assert_eq!(std::fs::read_dir(&to).unwrap().count(), 6);
        std::fs::File::create(source.join("LICENSE")).unwrap().set_len(MAX_BYTES + 1).unwrap();
        let error = OtherFiles::of(&source).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("LICENSE: has 268435457 bytes; at most 268435456"), "{error}");
        std::fs::remove_file(source.join("LICENSE.txt")).unwrap();
        let error = files.copy(&to, None).unwrap_err().to_string();
        assert!(error.contains("LICENSE"), "{error}");
    }
}
