//! Each operation of a store fails in turn, once or for good.
//!
//! The story: a run writes the checkpoints of steps 2 and 3 after that of step 1, and deletes old
//! ones. At operation N the store refuses, or stays away. Then the run's process dies, and another
//! resumes. What must hold:
//!
//! - **newest** (CKPT-1): it resumes from the last checkpoint that was reported as written, or a
//!   newer one.
//! - **whole** (CKPT-2): it gets the state of that step to the bit, never a mixture.
//! - **again** (CKPT-5): the store works again, and so do writing and deleting.
//! - **no silent step back** (CKPT-4): while reading fails, it gets an error, never an older
//!   checkpoint.

use super::faulty_store::Faulty;
use super::{assert_is, run, state};
use crate::checkpoint::folder::Folder;
use crate::checkpoint::*;
use object_store::Error;
use std::sync::Arc;

/// How long the store refuses.
#[derive(Copy, Clone, Debug, PartialEq)]
enum Outage {
    One,
    ForGood,
}

fn checkpoints_in(store: &Faulty) -> Checkpoints {
    Checkpoints::of(Folder::of(Arc::new(store.clone()), "test://run", &[]))
}

/// From now on, this operation fails, and with [`Outage::ForGood`] all after it.
fn fails_at(store: &Faulty, number: usize, outage: Outage) {
    let mut seen = 0;
    store.fails(move |_, _| {
        seen += 1;
        let fails = match outage {
            Outage::One => seen == number,
            Outage::ForGood => seen >= number,
        };
        fails.then(|| Error::Generic { store: "Test", source: "503 Slow Down".into() })
    });
}

fn policy() -> Policy {
    Policy { dir: None, every: Every::Steps(1), keep: 1, keep_best: None, audit: 0 }
}

async fn with_first() -> Faulty {
    let store = Faulty::new();
    checkpoints_in(&store).write(state(1), run()).await.unwrap();
    store
}

/// Writes two checkpoints, each followed by deleting old ones. Returns the last step that was
/// reported as written.
async fn train_on(checkpoints: &Checkpoints) -> u64 {
    let mut newest = 1;
    for step in [2, 3] {
        if checkpoints.write(state(step), run()).await.is_ok() {
            newest = step;
            checkpoints.prune(&policy(), step).await.ok();
        }
    }
    newest
}

/// CKPT-1, CKPT-2, CKPT-3, CKPT-5.
#[tokio::test]
async fn a_write_that_fails_at_any_operation_costs_at_most_its_own_checkpoint() {
    let quiet = with_first().await;
    let before = quiet.operations();
    assert_eq!(train_on(&checkpoints_in(&quiet)).await, 3);
    let operations = quiet.operations() - before;
    assert!(operations > 20, "{operations}");
    for outage in [Outage::One, Outage::ForGood] {
        let mut lost = 0;
        for number in 1..=operations {
            let store = with_first().await;
            fails_at(&store, number, outage);
            let newest = train_on(&checkpoints_in(&store)).await;
            lost += usize::from(newest < 3);
            store.heals();
            let next = checkpoints_in(&store);
            let found = next.resume(None).await.unwrap();
            let step = found.counters.step;
            assert!(step >= newest, "{outage:?} at {number}: {step}, {newest} was written");
            assert_is(&found.load().unwrap(), step);
            next.write(state(4), run()).await.unwrap();
            next.prune(&policy(), 4).await.unwrap();
            assert_is(&next.resume(None).await.unwrap().load().unwrap(), 4);
            let left = store.files().await;
            assert!(left.iter().all(|file| file.starts_with("step-00000004/")), "{left:?}");
        }
        assert!(lost > 0, "{outage:?}: no operation mattered");
    }
}

/// CKPT-2, CKPT-4.
#[tokio::test]
async fn a_read_that_fails_at_any_operation_is_an_error_and_no_step_back() {
    let store = with_first().await;
    checkpoints_in(&store).write(state(2), run()).await.unwrap();
    let resumed = |checkpoints: Checkpoints| async move {
        let found = checkpoints.resume(None).await?;
        found.load()
    };
    let before = store.operations();
    assert_is(&resumed(checkpoints_in(&store)).await.unwrap(), 2);
    let operations = store.operations() - before;
    assert!(operations > 3, "{operations}");
    for outage in [Outage::One, Outage::ForGood] {
        let mut refused = 0;
        for number in 1..=operations {
            fails_at(&store, number, outage);
            match resumed(checkpoints_in(&store)).await {
                Ok(found) => assert_is(&found, 2),
                Err(error) => {
                    refused += 1;
                    assert!(error.to_string().contains("503 Slow Down"), "{number}: {error}");
                }
            }
            store.heals();
            assert_is(&resumed(checkpoints_in(&store)).await.unwrap(), 2);
        }
        assert!(refused > 0, "{outage:?}: no operation mattered");
    }
}
