//! Checkpoints that were written by each version of the format.
//!
//! `bossman/tests/kept/checkpoint-N` is such a folder, written once by a program of version `N`,
//! and never changed. A new version adds its own: `UPDATE_GOLDEN=1 cargo test -p bossman` writes
//! the folder that is missing.

use super::{assert_is, files, run, state};
use crate::checkpoint::manifest::VERSION;
use crate::checkpoint::Checkpoints;
use std::path::{Path, PathBuf};

fn kept(version: u32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/kept/checkpoint-{version}"))
}

/// CKPT-8.
#[tokio::test]
async fn checkpoints_of_every_version_are_read() {
    for version in 1..=VERSION {
        let folder = kept(version);
        if !folder.exists() && std::env::var_os("UPDATE_GOLDEN").is_some() {
            let checkpoints = Checkpoints::open(folder.to_str().unwrap(), true).unwrap();
            checkpoints.write(state(2), run()).await.unwrap();
        }
        let manifest = folder.join("step-00000002/manifest.json");
        let text = std::fs::read_to_string(manifest).unwrap();
        assert!(text.starts_with(&format!("{{\n  \"version\": {version},")), "{text}");
        let checkpoints = Checkpoints::open(folder.to_str().unwrap(), false).unwrap();
        let found = checkpoints.resume(None).await.unwrap();
        assert_eq!(found.run, run(), "version {version}");
        assert_is(&found.load().unwrap(), 2);
    }
    assert!(!kept(VERSION + 1).exists(), "a folder of a version that no program has written");
}

/// The bytes of files are part of the format, too: a checkpoint of today has those that were kept.
/// CKPT-8.
#[tokio::test]
async fn a_checkpoint_of_today_has_the_files_that_were_kept() {
    let place = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::open(place.path().to_str().unwrap(), true).unwrap();
    checkpoints.write(state(2), run()).await.unwrap();
    let tensors = |folder: &Path| -> Vec<_> {
        let is_tensors = |path: &PathBuf| path.extension().is_some_and(|e| e == "safetensors");
        let of = |path: PathBuf| {
            let name = path.strip_prefix(folder).unwrap().to_path_buf();
            (name, std::fs::read(path).unwrap())
        };
        files(folder).into_iter().filter(is_tensors).map(of).collect()
    };
    let (today, then) = (tensors(place.path()), tensors(&kept(VERSION)));
    assert_eq!(today.len(), 3);
    assert!(today == then, "raise VERSION and keep a folder of the new one");
}
