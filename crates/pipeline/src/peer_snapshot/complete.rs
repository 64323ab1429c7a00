//! The complete snapshots of a run, found among the parts that workers report to store.

use super::{PeerSnapshot, SnapshotId};
use crate::ids::WorkerId;
use crate::model_parameters::ModelParameters;
use crate::StateName;
use std::collections::{BTreeMap, BTreeSet};

/// A part, at a worker that stores it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct StoredPart {
    /// The worker.
    pub holder: WorkerId,
    /// The number of the part.
    pub part: u32,
}

/// A snapshot of which connected workers store every part.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CompleteSnapshot {
    /// The snapshot.
    pub id: SnapshotId,
    /// The rest of the run's state, as the boss wrote it.
    pub text: String,
    /// For each tensor, by its name, the parts that contain it. They are copies of each other.
    tensors: BTreeMap<String, Vec<StoredPart>>,
}

impl CompleteSnapshot {
    /// The complete snapshots of a run, the last one first. `reports` lists what each worker
    /// stores.
    pub fn all(run: u64, reports: impl IntoIterator<Item = (WorkerId, PeerSnapshot)>) -> Vec<Self> {
        let mut by_snapshot: BTreeMap<SnapshotId, Vec<(WorkerId, PeerSnapshot)>> = BTreeMap::new();
        for (worker, stored) in reports {
            // A worker may report anything.
            if stored.snapshot.run == run {
                by_snapshot.entry(stored.snapshot).or_default().push((worker, stored));
            }
        }
        let complete = by_snapshot.into_iter().rev();
        complete.filter_map(|(id, reports)| Self::of(id, &reports)).collect()
    }

    /// The snapshot, if all its parts are stored.
    fn of(id: SnapshotId, reports: &[(WorkerId, PeerSnapshot)]) -> Option<Self> {
        let note = &reports.first()?.1.note;
        let parts: BTreeSet<u32> =
            reports.iter().flat_map(|(_, stored)| stored.parts.keys().copied()).collect();
        if !parts.into_iter().eq(0..note.parts) {
            return None;
        }
        let mut tensors: BTreeMap<String, Vec<StoredPart>> = BTreeMap::new();
        for (holder, stored) in reports {
            for (part, names) in &stored.parts {
                let copy = StoredPart { holder: *holder, part: *part };
                for name in names {
                    tensors.entry(name.clone()).or_default().push(copy);
                }
            }
        }
        Some(CompleteSnapshot { id, text: note.text.clone(), tensors })
    }

    /// Whether it holds all parameters and buffers of a model, and no others.
    pub fn is_of(&self, parameters: &ModelParameters) -> bool {
        let weights = self.tensors.keys().filter(|name| !StateName::parse(name).optimizer);
        weights.map(String::as_str).eq(parameters.names())
    }

    /// The tensors by their names, ascending, each with the parts that contain it.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &[StoredPart])> {
        self.tensors.iter().map(|(name, copies)| (name.as_str(), copies.as_slice()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::SnapshotNote;
    use super::*;
    use layerspec::LayerGraph;

    const RUN: u64 = 7;

    fn id(step: u64) -> SnapshotId {
        SnapshotId { run: RUN, step, membership: 1 }
    }

    /// What a worker reports of the snapshot of a step: parts of three, each with one tensor.
    fn report(worker: u16, step: u64, parts: &[(u32, &str)]) -> (WorkerId, PeerSnapshot) {
        let parts = parts.iter().map(|(part, name)| (*part, BTreeSet::from([name.to_string()])));
        let note = SnapshotNote { parts: 3, text: format!("after {step}") };
        let stored = PeerSnapshot { snapshot: id(step), note, parts: parts.collect() };
        (WorkerId(worker), stored)
    }

    /// The report of one of three workers in a row. Each stores its own part and that of the worker
    /// before it.
    fn in_row(worker: u16, step: u64) -> (WorkerId, PeerSnapshot) {
        const PARTS: [(u32, &str); 3] = [(0, "a"), (1, "b"), (2, "c")];
        let own = usize::from(worker);
        report(worker, step, &[PARTS[own], PARTS[(own + 2) % 3]])
    }

    fn found(reports: Vec<(WorkerId, PeerSnapshot)>) -> Vec<u64> {
        CompleteSnapshot::all(RUN, reports).iter().map(|snapshot| snapshot.id.step).collect()
    }

    #[test]
    fn a_snapshot_without_all_parts_is_not_complete() {
        assert!(found(Vec::new()).is_empty());
        assert!(found(vec![report(0, 5, &[(0, "a"), (1, "b")])]).is_empty());
        // A part too many is of another snapshot.
        let parts = [(0, "a"), (1, "b"), (2, "c"), (3, "d")];
        assert!(found(vec![report(0, 5, &parts)]).is_empty());
        assert_eq!(found(vec![report(0, 5, &parts[..3])]), [5]);
    }

    #[test]
    fn the_last_complete_snapshot_is_the_first() {
        let both = (0..3).flat_map(|worker| [in_row(worker, 4), in_row(worker, 6)]);
        assert_eq!(found(both.chain([in_row(1, 8)]).collect()), [6, 4]);
    }

    /// A membership that repeats a step has a snapshot of its own, and parts do not mix.
    #[test]
    fn the_later_membership_wins_among_snapshots_of_one_step() {
        let again = |(worker, stored): (WorkerId, PeerSnapshot)| {
            let snapshot = SnapshotId { membership: 2, ..stored.snapshot };
            (worker, PeerSnapshot { snapshot, ..stored })
        };
        let first = (0..3).map(|worker| in_row(worker, 4));
        let all: Vec<_> = first.chain((0..3).map(|worker| again(in_row(worker, 4)))).collect();
        let memberships: Vec<u64> =
            CompleteSnapshot::all(RUN, all).iter().map(|found| found.id.membership).collect();
        assert_eq!(memberships, [2, 1]);
        assert!(found(vec![in_row(0, 4), again(in_row(2, 4))]).is_empty());
    }

    #[test]
    fn a_lost_worker_leaves_its_part_with_its_neighbour() {
        let left = CompleteSnapshot::all(RUN, [in_row(0, 4), in_row(2, 4)]);
        let copies = |holder, part| StoredPart { holder: WorkerId(holder), part };
        let tensors: Vec<_> = left[0].tensors().collect();
        assert_eq!(
            tensors,
            [
                ("a", &[copies(0, 0)][..]),
                ("b", &[copies(2, 1)][..]),
                ("c", &[copies(0, 2), copies(2, 2)][..])
            ]
        );
        assert_eq!((left.len(), left[0].text.as_str()), (1, "after 4"));
    }

    #[test]
    fn a_part_is_lost_with_both_its_holders() {
        for last in 0..3 {
            assert!(found(vec![in_row(last, 4)]).is_empty(), "worker {last} is left");
        }
    }

    #[test]
    fn snapshots_of_other_runs_do_not_count() {
        let reports: Vec<_> = (0..3).map(|worker| in_row(worker, 4)).collect();
        assert!(CompleteSnapshot::all(RUN + 1, reports.clone()).is_empty());
        assert_eq!(found(reports), [4]);
    }

    #[test]
    fn a_snapshot_of_another_model_is_told() {
        let text =
            "inputs: {x: [batch, 4]}\nlayers:\n  - Linear: {in_features: 4, out_features: 2}";
        let graph = LayerGraph::from_yaml(text, "model.yaml").expect("a good model");
        let parameters = ModelParameters::of(&graph);
        let fits = |third: &str| {
            let parts = [(0, "0.bias"), (1, "0.weight"), (2, third)];
            CompleteSnapshot::all(RUN, [report(0, 4, &parts)])[0].is_of(&parameters)
        };
        assert!(fits("optimizer/0.weight.exp_avg") && fits("0.weight"));
        assert!(!fits("1.weight"));
    }
}
