//! Checkpoints in folders that are cut short, damaged or strange.

mod every_operation;
mod faulty_store;
mod kept;
mod read_errors;
mod stored;
mod writing;

use super::*;
use crate::StateDict;
use std::path::{Path, PathBuf};
use tch::{Device, Kind, Tensor};

pub(super) fn state(step: u64) -> TrainingState {
    let numbers =
        |from: i64| Tensor::arange_start(from, from + 6, (Kind::Float, Device::Cpu)).view([2, 3]);
    let mut weights = StateDict::default();
    weights.insert("0.weight", &numbers(step as i64));
    weights.insert("block/odd name.bias", &numbers(100 * step as i64));
    let optimizer = [
        ("0.weight.exp_avg".to_string(), numbers(7)),
        ("0.weight.step".to_string(), Tensor::from(step as f32)),
    ];
    let counters = Counters { step, updates: step, loss_scale: None };
    TrainingState { weights, optimizer: optimizer.into(), counters }
}

pub(super) fn run() -> RunRecord {
    let best = ScoreAtStep { step: 1, loss: Some(0.1 + 0.2), accuracy: None };
    RunRecord {
        seed: 3,
        batch_size: 8,
        samples: 100,
        metrics: Some(77),
        best: Some(best),
        ..RunRecord::default()
    }
}

pub(super) fn assert_is(found: &TrainingState, step: u64) {
    let expected = state(step);
    assert_eq!(found.counters, expected.counters);
    let same =
        |name: &str| found.weights.get(name).unwrap().equal(expected.weights.get(name).unwrap());
    assert!(same("0.weight") && same("block/odd name.bias") && found.weights.iter().count() == 2);
    assert!(found.optimizer.keys().eq(expected.optimizer.keys()));
    assert!(found.optimizer.iter().all(|(name, tensor)| tensor.equal(&expected.optimizer[name])));
}

/// A folder with the checkpoints of steps 1 and 2.
async fn two() -> (tempfile::TempDir, Checkpoints) {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::open(folder.path().join("c").to_str().unwrap(), true).unwrap();
    for step in [1, 2] {
        checkpoints.write(state(step), run()).await.unwrap();
    }
    (folder, checkpoints)
}

/// Every file of a checkpoint.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files.extend(self::files(&path)),
            false => files.push(path),
        }
    }
    files.sort();
    files
}

/// CKPT-2.
#[tokio::test]
async fn what_is_written_is_read() {
    let (folder, checkpoints) = two().await;
    let found = checkpoints.resume(None).await.unwrap();
    assert_is(&found.load().unwrap(), 2);
    assert_eq!(found.run, run());
    let names = files(&folder.path().join("c/step-00000002"));
    let names: Vec<_> = names
        .iter()
        .map(|path| path.strip_prefix(folder.path()).unwrap().display().to_string())
        .collect();
    assert_eq!(
        names,
        [
            "c/step-00000002/manifest.json",
            "c/step-00000002/optimizer/0000-0.safetensors",
            "c/step-00000002/weights/0000-0.safetensors",
            "c/step-00000002/weights/0001-block_odd_name.safetensors",
        ]
    );
    // The folder can be loaded as weights to start from.
    let weights = StateDict::load(folder.path().join("c/step-00000001")).unwrap();
    assert!(weights.get("0.weight").unwrap().equal(state(1).weights.get("0.weight").unwrap()));
    // A checkpoint of the same step is replaced.
    checkpoints.write(state(2), RunRecord::default()).await.unwrap();
    assert_eq!(checkpoints.resume(None).await.unwrap().run, RunRecord::default());
    assert_eq!(checkpoints.list().await.unwrap().len(), 2);
}

#[tokio::test]
async fn its_weights_are_exported_from_their_files() {
    let (folder, _) = two().await;
    let text = "inputs: {x: [batch, 3]}\nlayers:\n  - Linear: {in_features: 3, out_features: 2, \
                bias: false}\n";
    let model = crate::Model::from_yaml(text).unwrap();
    let mut rename = crate::rename::RenameRules::default();
    rename.ignore("block/odd name.bias").unwrap();
    let (from, to) = (folder.path().join("c/step-00000002"), folder.path().join("w.safetensors"));
    let settings = crate::ExportSettings { dtype: None, max_shard_bytes: None };
    let export = || crate::export_files(&from, &rename, &model, &to, &settings);
    assert_eq!(export().unwrap(), 1);
    let found = StateDict::load(&to).unwrap();
    assert!(found.get("0.weight").unwrap().equal(state(2).weights.get("0.weight").unwrap()));
    let damaged = from.join("weights/0000-0.safetensors");
    let mut bytes = std::fs::read(&damaged).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&damaged, bytes).unwrap();
    let error = export().unwrap_err().to_string();
    assert_eq!(error, format!("{}: {}", damaged.display(), manifest::DAMAGED));
}

/// The last whole checkpoint is used if writing stops at any byte, or if a disk changes any byte.
/// CKPT-2.
#[tokio::test]
async fn the_one_before_is_used_where_one_is_cut_short_or_damaged() {
    let (folder, checkpoints) = two().await;
    let last = folder.path().join("c/step-00000002");
    for path in files(&last) {
        let whole = std::fs::read(&path).unwrap();
        let lengths = (0..whole.len()).step_by(1 + whole.len() / 40);
        let cut: Vec<Vec<u8>> = lengths.clone().map(|length| whole[..length].to_vec()).collect();
        let changed = lengths.map(|at| {
            let mut changed = whole.clone();
            changed[at] ^= 0x21;
            changed
        });
        let longer = [[&whole[..], b"x"].concat()];
        for bytes in cut.into_iter().chain(changed).chain(longer) {
            std::fs::write(&path, &bytes).unwrap();
            assert_is(&checkpoints.resume(None).await.unwrap().load().unwrap(), 1);
        }
        std::fs::remove_file(&path).unwrap();
        assert_is(&checkpoints.resume(None).await.unwrap().load().unwrap(), 1);
        std::fs::write(&path, &whole).unwrap();
        assert_is(&checkpoints.resume(None).await.unwrap().load().unwrap(), 2);
    }
}

/// CKPT-7.
#[tokio::test]
async fn errors_name_the_file() {
    let (folder, checkpoints) = two().await;
    let here = |error: BossManError| {
        error.to_string().replace(&format!("{}/", folder.path().display()), "")
    };
    let weights = folder.path().join("c/step-00000002/weights/0000-0.safetensors");
    let mut bytes = std::fs::read(&weights).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&weights, bytes).unwrap();
    let damaged = "c/step-00000002/weights/0000-0.safetensors: is damaged: its content is not \
                   what was written";
    assert_eq!(here(checkpoints.verify("step-00000002").await.unwrap_err().into()), damaged);
    assert_eq!(here(StateDict::load(folder.path().join("c/step-00000002")).unwrap_err()), damaged);
    let named = here(checkpoints.resume(Some("step-00000001")).await.unwrap_err());
    assert!(
        named.contains("step-00000002 and later would be mixed up with what follows step-00000001"),
        "{named}"
    );
    let unknown = here(checkpoints.resume(Some("step-3")).await.unwrap_err());
    assert_eq!(unknown, "c: there is no checkpoint `step-3`; it has step-00000001, step-00000002");
    let manifest = folder.path().join("c/step-00000002/manifest.json");
    let text = std::fs::read_to_string(&manifest).unwrap();
    for (from, to, expected) in [
        (
            "\"version\": 3",
            "\"version\": 9",
            "is of version 9; this program reads versions 1 to 3, take another BossMan",
        ),
        ("\"step\": 2", "\"step\": 3", "is damaged"),
        ("weights/0000", "weights/../0000", "is damaged"),
        ("{", "[", "is no manifest: "),
    ] {
        assert!(text.contains(from));
        std::fs::write(&manifest, text.replacen(from, to, 1)).unwrap();
        let error = here(checkpoints.verify("step-00000002").await.unwrap_err().into());
        assert!(
            error.starts_with(&format!("c/step-00000002/manifest.json: {expected}")),
            "{error}"
        );
    }
    std::fs::remove_file(&manifest).unwrap();
    let error = here(checkpoints.verify("step-00000002").await.unwrap_err().into());
    assert_eq!(error, "c/step-00000002/manifest.json: is missing");
    for (place, expected) in [
        (
            "ftp://host/run",
            "; name a local folder, or one of an object store as s3://bucket/folder",
        ),
        (
            "https://example.org/run",
            "there are no checkpoints in such a place; name a local folder",
        ),
        ("s3://", "; name a local folder"),
    ] {
        let refused = Checkpoints::open(place, true).unwrap_err().to_string();
        assert!(refused.starts_with(place) && refused.contains(expected), "{refused}");
    }
    for secret in
        ["s3://key:secret@bucket/run", "s3://key:sec/ret@bucket/run", "s3://bucket/run?secret"]
    {
        let refused = Checkpoints::open(secret, true).unwrap_err().to_string();
        let expected = "checkpoints at s3://...: an object store's keys come from the \
                        environment, not from its URL";
        assert_eq!(refused, expected);
    }
    let none = Checkpoints::open(folder.path().join("none").to_str().unwrap(), false).unwrap_err();
    assert!(here(none).ends_with("none: there is no such folder"));
}

/// CKPT-6.
#[tokio::test]
async fn what_is_deleted_is_gone_and_nothing_else() {
    let (folder, checkpoints) = two().await;
    std::fs::write(folder.path().join("c/notes.txt"), "mine").unwrap();
    let policy = Policy { dir: None, every: Every::Steps(1), keep: 1, keep_best: None, audit: 0 };
    assert_eq!(checkpoints.prune(&policy, 2).await.unwrap(), ["step-00000001"]);
    let names = |listed: Vec<CheckpointEntry>| {
        listed.into_iter().map(|listed| listed.name).collect::<Vec<_>>()
    };
    assert_eq!(names(checkpoints.list().await.unwrap()), ["step-00000002"]);
    checkpoints.remove("step-00000002").await.unwrap();
    assert!(checkpoints.resume(None).await.is_err());
    assert_eq!(files(folder.path()), [folder.path().join("c/notes.txt")]);
}

/// A damaged checkpoint is deleted once the run has written a newer one. Other files stay. CKPT-6.
#[tokio::test]
async fn a_damaged_checkpoint_does_not_outlive_good_ones() {
    let (folder, checkpoints) = two().await;
    let there = |name: &str| folder.path().join("c").join(name);
    checkpoints.write(state(9), run()).await.unwrap();
    std::fs::write(there("step-00000009/weights/0000-0.safetensors"), "damaged").unwrap();
    std::fs::create_dir_all(there("step-5")).unwrap();
    std::fs::write(there("step-5/mine.txt"), "mine").unwrap();
    std::fs::create_dir_all(there("step-00000001/weights")).unwrap();
    std::fs::remove_file(there("step-00000001/manifest.json")).unwrap();
    assert_is(&checkpoints.resume(None).await.unwrap().load().unwrap(), 2);
    checkpoints.write(state(3), run()).await.unwrap();
    let policy = Policy { dir: None, every: Every::Steps(1), keep: 1, keep_best: None, audit: 0 };
    let gone = checkpoints.prune(&policy, 3).await.unwrap();
    assert_eq!(gone, ["step-00000001", "step-00000002", "step-00000009"]);
    assert_is(&checkpoints.resume(None).await.unwrap().load().unwrap(), 3);
    assert!(there("step-5/mine.txt").exists());
    // This process has not noticed the new damage, so nothing is deleted.
    std::fs::write(there("step-00000003/manifest.json"), "{}").unwrap();
    checkpoints.write(state(4), run()).await.unwrap();
    assert!(checkpoints.prune(&policy, 4).await.unwrap().is_empty());
}

/// A full disk, or a folder that nothing can be written to, leaves what was there. CKPT-1.
#[tokio::test]
#[cfg(target_os = "linux")]
async fn what_cannot_be_written_leaves_what_was_there() {
    let (folder, checkpoints) = two().await;
    // A file takes the name of the next checkpoint's folder.
    std::fs::write(folder.path().join("c/step-00000003"), "in the way").unwrap();
    let error = checkpoints.write(state(3), run()).await.unwrap_err().to_string();
    assert!(error.contains("step-00000003/"), "{error}");
    assert_is(&checkpoints.resume(None).await.unwrap().load().unwrap(), 2);
}

/// Pieces with a meaning in a manifest.
const PIECES: [&str; 14] = [
    "0",
    "-1",
    "1e400",
    "null",
    "[]",
    "{}",
    "\"",
    ",",
    ":",
    "../",
    "/etc/passwd",
    "18446744073709551616",
    "\\u0000",
    "\"a\":1,",
];

/// A manifest with any content is read or refused, also if its own SHA-256 is correct. CKPT-7.
#[test]
fn a_manifest_of_any_content_is_read_or_refused() {
    let file = |name: &str| manifest::FileEntry {
        name: name.into(),
        bytes: 7,
        sha256: manifest::hash(b"x"),
    };
    let of = |step| {
        let counters = Counters { step, updates: step, loss_scale: Some(Default::default()) };
        manifest::Manifest::new(counters, run(), vec![file("weights/a"), file("optimizer/b")])
            .unwrap()
    };
    let corpus: Vec<_> =
        [0, 1, 300].into_iter().map(|step| serde_json::to_vec_pretty(&of(step)).unwrap()).collect();
    let mut read = 0;
    testkit::mutate::fuzz("manifest", &corpus, &PIECES, |bytes| {
        manifest::Manifest::parse(bytes, "step-00000001").ok();
        let Ok(broken) = serde_json::from_slice::<manifest::Manifest>(bytes) else { return };
        let manifest::Manifest { counters, run, files, .. } = broken;
        let Ok(signed) = manifest::Manifest::new(counters, run, files) else { return };
        if let Ok(taken) =
            manifest::Manifest::parse(&serde_json::to_vec(&signed).unwrap(), "step-00000001")
        {
            assert!(
                taken.counters.step == 1
                    && taken.files.iter().all(|file| file.name.split('/').all(|part| part != ".."))
            );
            read += 1;
        }
    });
    assert!(read > 0, "none was like one that is whole");
}
