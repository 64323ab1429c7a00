//! The links between workers, as far as the boss knows them.

use crate::ids::WorkerId;
use crate::message::{LinkReport, TensorHead};
use std::collections::{BTreeMap, BTreeSet};

/// Two workers, the lower number first.
fn pair(a: WorkerId, b: WorkerId) -> (WorkerId, WorkerId) {
    (a.min(b), a.max(b))
}

/// The links between workers: their figures, and the pairs that send through the boss.
#[derive(Default)]
pub(super) struct Links {
    /// The last figures of each worker's links, to another worker or to the boss.
    pub(super) reports: BTreeMap<(WorkerId, Option<WorkerId>), LinkReport>,
    relayed: BTreeSet<(WorkerId, WorkerId)>,
    /// The pairs of sender and receiver of parts of snapshots. They need no link.
    snapshot_routes: BTreeSet<(WorkerId, WorkerId)>,
    /// Pairs without a link that the user knows of.
    announced: BTreeSet<(WorkerId, WorkerId)>,
}

impl Links {
    /// Workers receive their stages anew, and try direct links again.
    pub(super) fn restart(&mut self) {
        self.relayed.clear();
        self.snapshot_routes.clear();
    }

    pub(super) fn is_relayed(&self, a: WorkerId, b: WorkerId) -> bool {
        self.relayed.contains(&pair(a, b))
    }

    /// The boss relays for this pair from now on. Returns false if it did before.
    pub(super) fn relay(&mut self, a: WorkerId, b: WorkerId) -> bool {
        self.relayed.insert(pair(a, b))
    }

    /// Whether the user does not know yet that this pair has no link. Returns true once: the next
    /// distribution of the model would notice the same.
    pub(super) fn is_news(&mut self, a: WorkerId, b: WorkerId) -> bool {
        self.announced.insert(pair(a, b))
    }

    /// These workers are told to send parts of snapshots to others.
    pub(super) fn allow_snapshots(&mut self, routes: Vec<(WorkerId, WorkerId)>) {
        self.snapshot_routes.extend(routes);
    }

    /// Whether the first worker was told to send the second such a frame through the boss.
    pub(super) fn allows(&self, from: WorkerId, to: WorkerId, head: &TensorHead) -> bool {
        let of_snapshot =
            matches!(head, TensorHead::SnapshotPart { .. } | TensorHead::Weight { .. });
        self.is_relayed(from, to) || of_snapshot && self.snapshot_routes.contains(&(from, to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::StageId;

    #[test]
    fn only_frames_that_a_worker_was_told_to_send_go_through_the_boss() {
        let [a, b] = [0, 1].map(WorkerId);
        let mut links = Links::default();
        let weight = TensorHead::Weight { id: 1, name: "0.weight".into(), stage: StageId(0) };
        let state = TensorHead::State { id: 1, name: "0.weight".into() };
        assert!(!links.allows(a, b, &weight));
        links.allow_snapshots(vec![(a, b)]);
        assert!(links.allows(a, b, &weight) && !links.allows(b, a, &weight));
        assert!(!links.allows(a, b, &state));
        assert!(links.relay(b, a) && !links.relay(a, b));
        assert!(links.allows(a, b, &state) && links.allows(b, a, &state));
        links.restart();
        assert!(!links.allows(a, b, &weight) && !links.is_relayed(a, b));
    }

    #[test]
    fn a_missing_link_is_news_once() {
        let mut links = Links::default();
        assert!(links.is_news(WorkerId(1), WorkerId(0)));
        links.restart();
        assert!(!links.is_news(WorkerId(0), WorkerId(1)));
    }
}
