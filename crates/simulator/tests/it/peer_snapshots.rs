//! The snapshots that workers store beyond the life of a world.

use super::*;
use pipeline::peer_snapshot::{SnapshotId, SnapshotNote};

/// A worker's snapshots, which its process stores beyond a run.
#[derive(Clone, Default)]
pub struct Kept(BTreeMap<SnapshotId, (SnapshotNote, Parts)>);

type Parts = BTreeMap<u32, BTreeMap<String, Fake>>;

impl Kept {
    pub fn put(
        &mut self,
        snapshot: SnapshotId,
        note: SnapshotNote,
        part: u32,
        tensors: BTreeMap<String, Fake>,
    ) {
        let (_, parts) = self.0.entry(snapshot).or_insert_with(|| (note, Parts::new()));
        assert!(parts.insert(part, tensors).is_none(), "part {part} of {snapshot:?} is kept twice");
        assert!(self.0.len() <= 2, "more snapshots are kept than the last and the next");
    }

    pub fn get(&self, snapshot: SnapshotId, part: u32, name: &str) -> Fake {
        self.0[&snapshot].1[&part][name]
    }

    pub fn keep_only(&mut self, wanted: &[SnapshotId]) {
        self.0.retain(|snapshot, _| wanted.contains(snapshot));
    }

    fn list(&self) -> Vec<PeerSnapshot> {
        let names = |(part, tensors): (&u32, &BTreeMap<String, Fake>)| {
            (*part, tensors.keys().cloned().collect())
        };
        let listed = self.0.iter().map(|(snapshot, (note, parts))| PeerSnapshot {
            snapshot: *snapshot,
            note: note.clone(),
            parts: parts.iter().map(names).collect(),
        });
        listed.collect()
    }
}

/// A worker that is alive after a run.
pub struct LeftWorker {
    pub worker: WorkerId,
    /// Its snapshots.
    pub kept: Kept,
}

impl World {
    /// Checks that all holders of a part of a peer snapshot hold equal tensors. A recall takes the
    /// part from any of them.
    pub(super) fn assert_parts_equal(&self) {
        let mut parts = BTreeMap::new();
        for (index, worker) in self.workers.iter().enumerate() {
            for (snapshot, (_, own)) in &worker.kept.0 {
                for (part, tensors) in own {
                    let (first, known) =
                        *parts.entry((*snapshot, *part)).or_insert((index, tensors));
                    assert_eq!(
                        known, tensors,
                        "workers {first} and {index} hold other tensors in part {part} of \
                         {snapshot:?}"
                    );
                }
            }
        }
    }

    /// Gives its first workers these snapshots of earlier runs.
    pub fn bring(&mut self, kept: Vec<Kept>) {
        for (worker, kept) in self.workers.iter_mut().zip(kept) {
            worker.session = StageSession::with_snapshots(kept.list());
            worker.kept = kept;
        }
    }

    /// Lets workers that fell silent come again later than the others.
    pub fn hold_back_silenced(&mut self) {
        for worker in self.workers.iter_mut().filter(|worker| worker.silenced) {
            worker.far = true;
        }
    }

    /// The snapshots of workers that are alive, or only silent.
    pub fn left(&mut self) -> Vec<Kept> {
        let (here, away) = self.left_here_and_away();
        here.into_iter().chain(away).map(|left| left.kept).collect()
    }

    /// The same workers, and separately those that cannot be reached yet.
    pub fn left_here_and_away(&mut self) -> (Vec<LeftWorker>, Vec<LeftWorker>) {
        let there = |(_, worker): &(WorkerId, &mut Worker)| {
            worker.alive || worker.finished || worker.rejoins || worker.asleep > 0
        };
        let (mut here, mut away) = (Vec::new(), Vec::new());
        let numbered = (0..).map(WorkerId).zip(&mut self.workers);
        for (number, worker) in numbered.filter(there) {
            let of = if worker.far { &mut away } else { &mut here };
            of.push(LeftWorker { worker: number, kept: std::mem::take(&mut worker.kept) });
        }
        (here, away)
    }
}
