//! Tests with stores and disks that fail: a failed read proves no damage, and a failed write leaves
//! nothing.

use super::faulty_store::{Faulty, Operation};
use super::{assert_is, run, state};
use crate::checkpoint::folder::Folder;
use crate::checkpoint::manifest::Manifest;
use crate::checkpoint::*;
use object_store::Error;
use std::sync::Arc;
use std::time::Duration;
use tch::{Device, Kind, Tensor};

const NEWEST: [&str; 4] = [
    "step-00000002/manifest.json",
    "step-00000002/optimizer/0000-0.safetensors",
    "step-00000002/weights/0000-0.safetensors",
    "step-00000002/weights/0001-block_odd_name.safetensors",
];

fn checkpoints_in(store: &Faulty, waits: &'static [Duration]) -> Checkpoints {
    Checkpoints::of(Folder::of(Arc::new(store.clone()), "test://run", waits))
}

/// A store with the checkpoints of these steps.
async fn with(steps: &[u64]) -> (Faulty, Checkpoints) {
    let store = Faulty::new();
    let writer = checkpoints_in(&store, &[]);
    for step in steps {
        writer.write(state(*step), run()).await.unwrap();
    }
    // As a new process sees them.
    let reader = checkpoints_in(&store, &[]);
    (store, reader)
}

fn policy(keep: usize) -> Policy {
    Policy { dir: None, every: Every::Steps(1), keep, keep_best: None, audit: 0 }
}

/// A failure, and a part of its message.
type Failure = (fn() -> Error, &'static str);

/// Server errors and refusals.
fn failures() -> [Failure; 3] {
    [
        (|| Error::Generic { store: "Test", source: "503 Slow Down".into() }, "503 Slow Down"),
        (
            || Error::PermissionDenied { path: "x".into(), source: "403 Forbidden".into() },
            "403 Forbidden",
        ),
        (
            || Error::Unauthenticated { path: "x".into(), source: "401 Unauthorized".into() },
            "401 Unauthorized",
        ),
    ]
}

async fn names(checkpoints: &Checkpoints) -> Vec<String> {
    checkpoints.list().await.unwrap().into_iter().map(|listed| listed.name).collect()
}

/// CKPT-4, CKPT-6.
#[tokio::test]
async fn what_cannot_be_read_is_an_error_that_names_it_and_no_damage() {
    let (store, checkpoints) = with(&[1, 2]).await;
    for file in NEWEST {
        for (error, cause) in failures() {
            store.fails(move |operation, name| {
                (operation == Operation::Get && name == file).then(error)
            });
            let messages = [
                checkpoints.resume(None).await.unwrap_err().to_string(),
                checkpoints.last().await.unwrap_err().to_string(),
            ];
            for message in messages {
                assert!(
                    message.starts_with(&format!("test://run/{file}: cannot be read: ")),
                    "{message}"
                );
                assert!(message.contains(cause), "{message}");
                let advice = "step-00000002 may be whole, so no older checkpoint is used: try \
                              again when it can be read, or delete it with `bossman checkpoint \
                              prune test://run --after step-00000001`";
                assert!(message.ends_with(advice), "{message}");
            }
            let verified = checkpoints.verify("step-00000002").await.unwrap_err();
            assert!(matches!(verified, ReadError::Unreadable(_)), "{verified}");
            checkpoints.verify("step-00000001").await.unwrap();
            // The checkpoint is not recorded as useless.
            assert_eq!(checkpoints.prune(&policy(1), 1).await.unwrap(), [""; 0]);
            store.heals();
            assert_is(&checkpoints.resume(None).await.unwrap().load().unwrap(), 2);
        }
    }
}

#[tokio::test]
async fn an_older_one_that_cannot_be_read_is_in_nobodys_way() {
    let (store, checkpoints) = with(&[1, 2]).await;
    store.fails(|_, name| name.starts_with("step-00000001/").then(failures()[0].0));
    assert_is(&checkpoints.resume(None).await.unwrap().load().unwrap(), 2);
    let listed = checkpoints.list().await.unwrap();
    assert!(
        listed[0].is_unreadable() && !listed[0].is_unfinished() && listed[1].bytes.is_ok(),
        "{listed:?}"
    );
}

/// CKPT-4.
#[tokio::test]
async fn a_folder_that_cannot_be_listed_is_not_empty() {
    let (store, checkpoints) = with(&[1, 2]).await;
    store.fails(|operation, _| (operation == Operation::List).then(failures()[0].0));
    let policy = policy(1);
    for message in [
        checkpoints.list().await.unwrap_err().to_string(),
        checkpoints.resume(None).await.unwrap_err().to_string(),
        checkpoints.last().await.unwrap_err().to_string(),
        checkpoints.prune(&policy, 2).await.unwrap_err().to_string(),
    ] {
        assert!(
            message.starts_with("test://run") && message.contains("cannot be listed: "),
            "{message}"
        );
    }
    store.heals();
    assert_eq!(names(&checkpoints).await, ["step-00000001", "step-00000002"]);
}

/// CKPT-4.
#[tokio::test]
async fn reading_is_tried_again() {
    const WAITS: &[Duration] = &[Duration::ZERO; 2];
    let (store, _) = with(&[1, 2]).await;
    for operation in [Operation::List, Operation::Get] {
        for (times, succeeds) in [(2, true), (3, false)] {
            let mut left = times;
            store.fails(move |of, name| {
                let fails =
                    of == operation && (of == Operation::List || name == NEWEST[2]) && left > 0;
                left -= usize::from(fails);
                fails.then(failures()[0].0)
            });
            let found = checkpoints_in(&store, WAITS).resume(None).await;
            assert_eq!(found.is_ok(), succeeds, "{operation:?} {times}: {:?}", found.err());
        }
    }
    // Absence is an answer, so it is not retried.
    store.heals();
    let before = store.count(Operation::Get, "step-00000003");
    checkpoints_in(&store, WAITS).verify("step-00000003").await.unwrap_err();
    assert_eq!(store.count(Operation::Get, "step-00000003"), before + 1);
}

#[tokio::test]
async fn prune_deletes_only_what_is_proven() {
    let (store, checkpoints) = with(&[1, 2, 3, 9, 10]).await;
    let unreadable = ["step-00000002/manifest.json", "step-00000010/manifest.json"];
    store.fails(move |operation, name| {
        (operation == Operation::Get && unreadable.contains(&name)).then(failures()[1].0)
    });
    // Unfinished checkpoints. Another process may be writing the last one.
    store.set("step-00000004/weights/0000-0.safetensors", "begun").await;
    store.set("step-00000011/weights/0000-0.safetensors", "begun").await;
    checkpoints.write(state(5), run()).await.unwrap();
    let gone = checkpoints.prune(&policy(1), 5).await.unwrap();
    // The second cannot be read. Later ones were not read.
    assert_eq!(gone, ["step-00000001", "step-00000003", "step-00000004"]);
    store.heals();
    assert_eq!(
        names(&checkpoints).await,
        ["step-00000002", "step-00000005", "step-00000009", "step-00000010", "step-00000011"]
    );
    for name in ["step-00000002", "step-00000009", "step-00000010"] {
        checkpoints.verify(name).await.unwrap();
    }
}

/// CKPT-6.
#[tokio::test]
async fn prune_deletes_what_this_run_found_damaged_or_unfinished() {
    let (store, checkpoints) = with(&[1, 2, 3, 4, 5]).await;
    store.set("step-00000003/weights/0000-0.safetensors", "damaged").await;
    store.set("step-00000004/manifest.json", "{}").await;
    store.set("step-00000006/weights/0000-0.safetensors", "begun").await;
    store.set("step-00000005/optimizer/0000-0.safetensors", "damaged").await;
    assert_is(&checkpoints.resume(None).await.unwrap().load().unwrap(), 2);
    assert_eq!(checkpoints.newest_known(), Some(2));
    // One of them is written again.
    checkpoints.write(state(3), run()).await.unwrap();
    // One of them cannot be read now.
    store.fails(|operation, name| {
        (operation == Operation::Get && name == "step-00000005/manifest.json").then(failures()[2].0)
    });
    let gone = checkpoints.prune(&policy(2), 3).await.unwrap();
    assert_eq!(gone, ["step-00000001", "step-00000004", "step-00000006"]);
    store.heals();
    assert_eq!(checkpoints.prune(&policy(2), 3).await.unwrap(), ["step-00000005"]);
    assert_is(&checkpoints.resume(None).await.unwrap().load().unwrap(), 3);
    assert_eq!(names(&checkpoints).await, ["step-00000002", "step-00000003"]);
}

/// An older program must not destroy what a newer one wrote. CKPT-6, CKPT-8.
#[tokio::test]
async fn a_manifest_of_another_version_is_not_damaged() {
    let (store, checkpoints) = with(&[1, 2]).await;
    let text = store.text(NEWEST[0]).await;
    let newer = text.replacen("\"version\": 3", "\"version\": 4,\n  \"of_the_future\": [1]", 1);
    assert_ne!(text, newer);
    store.set(NEWEST[0], &newer).await;
    let message = checkpoints.resume(None).await.unwrap_err().to_string();
    let expected = "test://run/step-00000002/manifest.json: is of version 4; this program reads \
                    versions 1 to 3, take another BossMan";
    assert!(message.starts_with(expected), "{message}");
    checkpoints.write(state(3), run()).await.unwrap();
    assert_eq!(checkpoints.prune(&policy(1), 3).await.unwrap(), ["step-00000001"]);
}

/// A run goes on from the checkpoints of an older program. CKPT-8.
#[tokio::test]
async fn a_manifest_of_version_1_is_read() {
    let (store, checkpoints) = with(&[1, 2]).await;
    let manifest = checkpoints.list().await.unwrap().pop().unwrap().manifest.unwrap();
    let older = Manifest { version: 1, time: None, ..manifest }.signed().unwrap();
    let text = serde_json::to_string_pretty(&older).unwrap();
    assert!(!text.contains("time") && !text.contains("made_for"), "{text}");
    store.set(NEWEST[0], &text).await;
    assert_is(&checkpoints.resume(None).await.unwrap().load().unwrap(), 2);
}

/// A missing file that the manifest names is damage, unless the whole checkpoint disappears.
/// CKPT-4.
#[tokio::test]
async fn a_missing_file_is_damage_while_its_manifest_is_there() {
    let missing = || Error::NotFound { path: "x".into(), source: "no such key".into() };
    let (store, checkpoints) = with(&[1, 2]).await;
    store.fails(move |operation, name| {
        (operation == Operation::Get && name == NEWEST[2]).then(missing)
    });
    assert!(matches!(checkpoints.verify("step-00000002").await, Err(ReadError::Damaged(_))));
    assert_is(&checkpoints.resume(None).await.unwrap().load().unwrap(), 1);
    let mut deleted = false;
    store.fails(move |operation, name| {
        deleted |= name == NEWEST[2];
        (operation == Operation::Get && deleted && name.starts_with("step-00000002/")).then(missing)
    });
    let error = checkpoints.verify("step-00000002").await.unwrap_err();
    assert!(matches!(error, ReadError::Unreadable(_)), "{error}");
    assert!(
        error.to_string().ends_with("is missing, and now also the manifest that named it"),
        "{error}"
    );
}

/// CKPT-5.
#[tokio::test]
async fn a_write_that_fails_leaves_no_files() {
    let (store, checkpoints) = with(&[1, 2]).await;
    let before = store.files().await;
    let full = || Error::Generic { store: "Test", source: "no room".into() };
    for fails_at in NEWEST.map(|name| name.replace("step-00000002", "step-00000003")) {
        let at = fails_at.clone();
        store.fails(move |operation, name| (operation == Operation::Put && name == at).then(full));
        let error = checkpoints.write(state(3), run()).await.unwrap_err().to_string();
        assert!(error.contains(&fails_at) && error.ends_with("no room"), "{error}");
        assert_eq!(store.files().await, before);
    }
    // The error also names a file that cannot be deleted.
    store.fails(move |operation, name| {
        let fails = match operation {
            Operation::Put => name.ends_with("manifest.json"),
            Operation::Delete => name.contains("weights"),
            _ => false,
        };
        fails.then(full)
    });
    let error = checkpoints.write(state(3), run()).await.unwrap_err().to_string();
    assert!(
        error.contains("step-00000003/manifest.json: ")
            && error.contains("no room; and what was written"),
        "{error}"
    );
    assert!(
        error.contains("step-00000003 cannot be deleted: test://run/step-00000003/weights/"),
        "{error}"
    );
    store.heals();
    assert_is(&checkpoints.resume(None).await.unwrap().load().unwrap(), 2);
    // There is room again.
    checkpoints.write(state(3), run()).await.unwrap();
    assert_is(&checkpoints.resume(None).await.unwrap().load().unwrap(), 3);
}

/// A write that takes too long is aborted, wherever it stands. CKPT-1, CKPT-5.
#[tokio::test]
async fn an_aborted_write_is_cleared_and_a_complete_one_stays() {
    let (store, checkpoints) = with(&[1]).await;
    let before = store.files().await;
    store.set("step-00000002/weights/0000-0.safetensors", "begun").await;
    assert!(checkpoints.clear(2).await.unwrap());
    assert_eq!(store.files().await, before);
    checkpoints.write(state(2), run()).await.unwrap();
    assert!(!checkpoints.clear(2).await.unwrap());
    assert_is(&checkpoints.resume(None).await.unwrap().load().unwrap(), 2);
}

/// CKPT-5.
#[tokio::test]
async fn an_upload_in_parts_that_fails_is_aborted() {
    let (store, checkpoints) = with(&[1]).await;
    let before = store.files().await;
    let large = || {
        let mut state = state(2);
        // 12 MB, which go up in two parts.
        state.weights.insert("0.weight", &Tensor::zeros([3 << 20], (Kind::Float, Device::Cpu)));
        state
    };
    let full = || Error::Generic { store: "Test", source: "no room".into() };
    for (number, fails_at) in [Operation::Part, Operation::Complete].into_iter().enumerate() {
        store.fails(move |operation, _| (operation == fails_at).then(full));
        let error = checkpoints.write(large(), run()).await.unwrap_err().to_string();
        assert!(
            error.contains("step-00000002/weights/0000") && error.ends_with("no room"),
            "{error}"
        );
        assert_eq!(store.count(Operation::Abort, "step-00000002/weights/0000"), number + 1);
        assert_eq!(store.files().await, before);
    }
    store.fails(move |operation, _| {
        matches!(operation, Operation::Complete | Operation::Abort).then(full)
    });
    let error = checkpoints.write(large(), run()).await.unwrap_err().to_string();
    assert!(error.contains("no room; and the parts sent cannot be deleted: "), "{error}");
    store.heals();
    checkpoints.write(large(), run()).await.unwrap();
    let found = checkpoints.resume(None).await.unwrap().load().unwrap();
    assert!(found.weights.get("0.weight").unwrap().equal(large().weights.get("0.weight").unwrap()));
}

/// On this machine, too, only what the system does not find is missing. CKPT-4, CKPT-6.
#[tokio::test]
#[cfg(unix)]
async fn a_disk_that_cannot_be_read_proves_nothing() {
    use std::os::unix::fs::symlink;
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("c");
    let open = || Checkpoints::open(folder.to_str().unwrap(), true).unwrap();
    for step in [1, 2] {
        open().write(state(step), run()).await.unwrap();
    }
    for name in NEWEST {
        // A link to itself cannot be opened by anybody.
        let (file, aside) = (folder.join(name), place.path().join("aside"));
        std::fs::rename(&file, &aside).unwrap();
        symlink(&file, &file).unwrap();
        let checkpoints = open();
        let message = checkpoints.resume(None).await.unwrap_err().to_string();
        assert!(message.starts_with(&format!("{}: cannot be read: ", file.display())), "{message}");
        assert!(checkpoints.prune(&policy(1), 1).await.unwrap().is_empty());
        if name == NEWEST[0] {
            assert!(crate::StateDict::load(folder.join("step-00000002")).is_err());
        }
        std::fs::rename(&aside, &file).unwrap();
        assert_is(&checkpoints.resume(None).await.unwrap().load().unwrap(), 2);
    }
    // The weights' folder is a file: its files are missing, for sure.
    let (weights, aside) = (folder.join("step-00000002/weights"), place.path().join("aside"));
    std::fs::rename(&weights, &aside).unwrap();
    std::fs::write(&weights, "in the way").unwrap();
    assert!(matches!(open().verify("step-00000002").await, Err(ReadError::Damaged(_))));
    std::fs::remove_file(&weights).unwrap();
    std::fs::rename(&aside, &weights).unwrap();
    // A checkpoint on another disk, which is not there.
    let (last, aside) = (folder.join("step-00000002"), place.path().join("aside"));
    std::fs::rename(&last, &aside).unwrap();
    symlink(place.path().join("elsewhere"), &last).unwrap();
    let message = open().resume(None).await.unwrap_err().to_string();
    assert!(
        message.ends_with("step-00000002 is a link to a folder that is not there"),
        "{message}"
    );
    std::fs::remove_file(&last).unwrap();
    symlink(&aside, &last).unwrap();
    assert_is(&open().resume(None).await.unwrap().load().unwrap(), 2);
    // The folder itself goes away.
    let checkpoints = open();
    std::fs::rename(&folder, place.path().join("gone")).unwrap();
    let message = checkpoints.resume(None).await.unwrap_err().to_string();
    assert!(message.contains("cannot be listed: "), "{message}");
}
