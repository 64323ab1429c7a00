//! What workers of a world keep beyond it.

use super::*;
use pipeline::kept::{SnapshotId, SnapshotNote};

/// A worker's copies, as its process has them whatever becomes of a run.
#[derive(Clone, Default)]
pub struct Kept(BTreeMap<SnapshotId, (SnapshotNote, Parts)>);

type Parts = BTreeMap<u32, BTreeMap<String, Fake>>;

impl Kept {
    pub fn put(&mut self, copy: SnapshotId, note: SnapshotNote, part: u32, tensors: BTreeMap<String, Fake>) {
        let (_, parts) = self.0.entry(copy).or_insert_with(|| (note, Parts::new()));
        assert!(parts.insert(part, tensors).is_none(), "part {part} of {copy:?} is kept twice");
        assert!(self.0.len() <= 2, "more copies are kept than the last and the next");
    }

    pub fn get(&self, copy: SnapshotId, part: u32, name: &str) -> Fake {
        self.0[&copy].1[&part][name]
    }

    pub fn keep_only(&mut self, wanted: &[SnapshotId]) {
        self.0.retain(|copy, _| wanted.contains(copy));
    }

    fn list(&self) -> Vec<PeerSnapshot> {
        let names = |(part, tensors): (&u32, &BTreeMap<String, Fake>)| (*part, tensors.keys().cloned().collect());
        let listed = self.0.iter().map(|(copy, (note, parts))| PeerSnapshot {
            copy: *copy,
            note: note.clone(),
            parts: parts.iter().map(names).collect(),
        });
        listed.collect()
    }
}

impl World {
    /// Has its first workers keep these from before.
    pub fn bring(&mut self, kept: Vec<Kept>) {
        for (worker, kept) in self.workers.iter_mut().zip(kept) {
            worker.session = StageSession::with_kept(kept.list());
            worker.kept = kept;
        }
    }

    /// What is kept by workers that are there, or only silent.
    pub fn left(&mut self) -> Vec<Kept> {
        let (here, away) = self.left_here_and_away();
        here.into_iter().chain(away).collect()
    }

    /// The same, and apart from it what those keep that nobody reaches yet.
    pub fn left_here_and_away(&mut self) -> (Vec<Kept>, Vec<Kept>) {
        let there = |worker: &&mut Worker| worker.alive || worker.finished || worker.rejoins || worker.asleep > 0;
        let (mut here, mut away) = (Vec::new(), Vec::new());
        for worker in self.workers.iter_mut().filter(there) {
            let of = if worker.far { &mut away } else { &mut here };
            of.push(std::mem::take(&mut worker.kept));
        }
        (here, away)
    }
}
