//! A checkpoint that stays in its files until workers need it.

use super::run;
use crate::checkpoint::stored_state::Piece;
use crate::checkpoint::*;
use crate::data::tensor_payload::to_payload;
use crate::weights::chunks::Unread;
use crate::StateDict;
use bytes::Bytes;
use pipeline::{StateName, SLICE_BYTES};
use std::collections::BTreeMap;
use tch::{Device, Kind, Tensor};

/// A state with tensors of several slices, and small ones.
fn large() -> TrainingState {
    let count = (5 * SLICE_BYTES / 2 / 4) as i64;
    let numbers = |from: i64| Tensor::arange_start(from, from + count, (Kind::Float, Device::Cpu));
    let mut weights = StateDict::default();
    weights.insert("0.weight", &numbers(1).reshape([2, count / 2]));
    weights.insert("0.bias", &Tensor::from_slice(&[7f32, 8.0]));
    let optimizer = [
        ("0.weight.exp_avg".to_string(), numbers(2).reshape([2, count / 2])),
        ("0.weight.exp_avg_sq".to_string(), numbers(3).reshape([2, count / 2])),
        ("0.weight.step".to_string(), Tensor::from(9f32)),
    ];
    let counters = Counters { step: 4, updates: 4, loss_scale: None };
    TrainingState { weights, optimizer: optimizer.into(), counters }
}

async fn stored(folder: &tempfile::TempDir) -> StoredState {
    let checkpoints = Checkpoints::open(folder.path().to_str().unwrap(), true).unwrap();
    checkpoints.write(large(), run()).await.unwrap();
    checkpoints.resume(None).await.unwrap()
}

/// The bytes of each tensor, joined from its parts in the order of their elements.
fn joined(state: &StoredState, pieces: Vec<Unread<Piece>>) -> BTreeMap<String, Vec<u8>> {
    let mut parts: BTreeMap<String, BTreeMap<u64, Bytes>> = BTreeMap::new();
    for Unread { name, bytes, place } in pieces {
        let payload = state.read(place).unwrap();
        assert!(bytes <= SLICE_BYTES && payload.bytes.len() as u64 == bytes);
        let name = StateName::parse(&name);
        let whole = StateName { start: None, ..name }.to_string();
        let of = parts.entry(whole).or_default();
        assert!(of.insert(name.start.unwrap_or(0), payload.bytes).is_none());
    }
    let join = |of: BTreeMap<u64, Bytes>| of.into_values().flatten().collect();
    parts.into_iter().map(|(name, of)| (name, join(of))).collect()
}

#[tokio::test]
async fn what_is_read_in_pieces_is_the_state() {
    let folder = tempfile::tempdir().unwrap();
    let state = stored(&folder).await;
    let expected = large();
    let bytes = |tensor: &Tensor| to_payload(tensor).unwrap().bytes.to_vec();
    let weights = joined(&state, state.weights());
    assert!(weights.keys().eq(["0.bias", "0.weight"]));
    assert!(expected.weights.iter().all(|(name, tensor)| weights[name] == bytes(tensor)));
    let optimizer = joined(&state, state.optimizer());
    assert_eq!(optimizer.len(), 3);
    for (name, tensor) in &expected.optimizer {
        let name = StateName::of_optimizer(name, None).to_string();
        assert!(optimizer[&name] == bytes(tensor), "{name}");
    }
    let digest = expected.digest().unwrap();
    assert_eq!(state.digest().unwrap(), digest);
    assert_eq!(state.load().unwrap().digest().unwrap(), digest);
}

/// CKPT-9.
#[tokio::test]
async fn a_file_that_changes_after_it_was_compared_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let state = stored(&folder).await;
    let path = folder.path().join("step-00000004/optimizer/0000-0.safetensors");
    let mut content = std::fs::read(&path).unwrap();
    let last = content.len() - 1;
    content[last] ^= 1;
    std::fs::write(&path, content).unwrap();
    let read = |pieces: Vec<Unread<Piece>>| {
        pieces.into_iter().try_for_each(|one| state.read(one.place).map(drop))
    };
    read(state.weights()).unwrap();
    let error = read(state.optimizer()).unwrap_err().to_string();
    let expected = format!("{}: was replaced or changed after", path.display());
    assert!(error.contains(&expected), "{error}");
    assert!(state.digest().is_err() && state.load().is_err());
}
