//! The peer snapshots that a worker stores beyond its runs: the tensors that `pipeline`'s
//! [`kept`](pipeline::kept) names.

use link::Payload;
use parking_lot::Mutex;
use pipeline::kept::{PeerSnapshot, SnapshotId, SnapshotNote};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Copies of state, in memory. Clones share them. What others sent lies in memory of its own: it never comes through the
/// sender's (`outgoing::Channel::Background`).
#[derive(Clone, Default)]
pub struct SnapshotStore {
    copies: Arc<Mutex<BTreeMap<SnapshotId, Snapshot>>>,
}

struct Snapshot {
    note: SnapshotNote,
    parts: BTreeMap<u32, BTreeMap<String, Payload>>,
}

impl SnapshotStore {
    /// The stored snapshots.
    pub fn list(&self) -> Vec<PeerSnapshot> {
        self.with(|copies| {
            let names =
                |(part, tensors): (&u32, &BTreeMap<String, Payload>)| (*part, tensors.keys().cloned().collect());
            let listed = copies.iter().map(|(copy, Snapshot { note, parts })| PeerSnapshot {
                copy: *copy,
                note: note.clone(),
                parts: parts.iter().map(names).collect::<BTreeMap<u32, BTreeSet<String>>>(),
            });
            listed.collect()
        })
    }

    pub(crate) fn insert(
        &self,
        (copy, part): (SnapshotId, u32),
        note: SnapshotNote,
        tensors: BTreeMap<String, Payload>,
    ) {
        self.with(|copies| {
            let copy = copies.entry(copy).or_insert_with(|| Snapshot { note, parts: BTreeMap::new() });
            copy.parts.insert(part, tensors);
        });
    }

    pub(crate) fn get(&self, (copy, part): (SnapshotId, u32), name: &str) -> Option<Payload> {
        self.with(|copies| copies.get(&copy)?.parts.get(&part)?.get(name).cloned())
    }

    pub(crate) fn retain(&self, wanted: &[SnapshotId]) {
        self.with(|copies| copies.retain(|copy, _| wanted.contains(copy)));
    }

    fn with<T>(&self, act: impl FnOnce(&mut BTreeMap<SnapshotId, Snapshot>) -> T) -> T {
        act(&mut self.copies.lock())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use layerspec::DType;
    use pipeline::TensorMeta;

    fn copy(step: u64) -> SnapshotId {
        SnapshotId { run: 1, step, membership: 1 }
    }

    fn payload(bytes: &[u8]) -> Payload {
        let meta = TensorMeta { dtype: DType::UInt8, shape: vec![bytes.len() as u64] };
        Payload { meta, bytes: Bytes::copy_from_slice(bytes) }
    }

    #[test]
    fn snapshots_are_kept_until_they_are_released() {
        let (kept, note) = (SnapshotStore::default(), SnapshotNote { parts: 2, text: "it".into() });
        let part = |byte| BTreeMap::from([("w".to_string(), payload(&[byte]))]);
        kept.insert((copy(1), 0), note.clone(), part(10));
        kept.insert((copy(1), 1), note.clone(), part(11));
        let of_next_membership = kept.clone();
        kept.insert((copy(2), 0), note.clone(), part(20));
        let listed = of_next_membership.list();
        assert_eq!(listed.iter().map(|kept| (kept.copy.step, kept.parts.len())).collect::<Vec<_>>(), [(1, 2), (2, 1)]);
        assert_eq!(listed[0].note, note);
        let payload = kept.get((copy(1), 1), "w").map(|payload| payload.bytes).unwrap_or_default();
        assert_eq!(&payload[..], [11]);
        kept.retain(&[copy(2), copy(3)]);
        assert!(kept.get((copy(1), 1), "w").is_none() && kept.get((copy(2), 0), "w").is_some());
        assert!(kept.get((copy(2), 0), "b").is_none() && kept.get((copy(2), 1), "w").is_none());
    }
}
