//! The peer snapshots that a worker stores beyond its runs: the tensors that
//! [`pipeline::peer_snapshot`] names.

use link::Payload;
use parking_lot::Mutex;
use pipeline::peer_snapshot::{PeerSnapshot, SnapshotId, SnapshotNote};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Snapshots in memory. Clones share them. Tensors from other workers lie in memory of this
/// process, because [`Channel::Background`](link::connection::outgoing::Channel::Background) never
/// uses shared memory.
#[derive(Clone, Default)]
pub struct SnapshotStore {
    snapshots: Arc<Mutex<BTreeMap<SnapshotId, Snapshot>>>,
}

struct Snapshot {
    note: SnapshotNote,
    parts: BTreeMap<u32, BTreeMap<String, Payload>>,
}

impl SnapshotStore {
    /// Lists the stored snapshots.
    pub fn list(&self) -> Vec<PeerSnapshot> {
        self.with(|snapshots| {
            let names = |(part, tensors): (&u32, &BTreeMap<String, Payload>)| {
                (*part, tensors.keys().cloned().collect())
            };
            let listed =
                snapshots.iter().map(|(snapshot, Snapshot { note, parts })| PeerSnapshot {
                    snapshot: *snapshot,
                    note: note.clone(),
                    parts: parts.iter().map(names).collect::<BTreeMap<u32, BTreeSet<String>>>(),
                });
            listed.collect()
        })
    }

    /// Stores the tensors of one part.
    pub(crate) fn insert(
        &self,
        snapshot: SnapshotId,
        part: u32,
        note: SnapshotNote,
        tensors: BTreeMap<String, Payload>,
    ) {
        self.with(|snapshots| {
            let snapshot = snapshots
                .entry(snapshot)
                .or_insert_with(|| Snapshot { note, parts: BTreeMap::new() });
            snapshot.parts.insert(part, tensors);
        });
    }

    /// Returns a stored tensor.
    pub(crate) fn get(&self, snapshot: SnapshotId, part: u32, name: &str) -> Option<Payload> {
        self.with(|snapshots| snapshots.get(&snapshot)?.parts.get(&part)?.get(name).cloned())
    }

    /// Drops all snapshots but these.
    pub(crate) fn retain(&self, wanted: &[SnapshotId]) {
        self.with(|snapshots| snapshots.retain(|snapshot, _| wanted.contains(snapshot)));
    }

    fn with<T>(&self, act: impl FnOnce(&mut BTreeMap<SnapshotId, Snapshot>) -> T) -> T {
        act(&mut self.snapshots.lock())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use layerspec::DType;
    use pipeline::TensorMeta;

    fn snapshot_id(step: u64) -> SnapshotId {
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
        kept.insert(snapshot_id(1), 0, note.clone(), part(10));
        kept.insert(snapshot_id(1), 1, note.clone(), part(11));
        let of_next_membership = kept.clone();
        kept.insert(snapshot_id(2), 0, note.clone(), part(20));
        let listed = of_next_membership.list();
        assert_eq!(
            listed.iter().map(|kept| (kept.snapshot.step, kept.parts.len())).collect::<Vec<_>>(),
            [(1, 2), (2, 1)]
        );
        assert_eq!(listed[0].note, note);
        let payload =
            kept.get(snapshot_id(1), 1, "w").map(|payload| payload.bytes).unwrap_or_default();
        assert_eq!(&payload[..], [11]);
        kept.retain(&[snapshot_id(2), snapshot_id(3)]);
        assert!(
            kept.get(snapshot_id(1), 1, "w").is_none()
                && kept.get(snapshot_id(2), 0, "w").is_some()
        );
        assert!(
            kept.get(snapshot_id(2), 0, "b").is_none()
                && kept.get(snapshot_id(2), 1, "w").is_none()
        );
    }
}
