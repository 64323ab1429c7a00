//! The times of layers that earlier sessions of a run measured.

use link::WorkerInfo;
use parking_lot::Mutex;
use pipeline::task::{LayerProbe, LayerTimes};
use std::sync::Arc;

/// The times of layers on the workers of earlier sessions. After a loss of workers the next session
/// takes its times from here, and measures only what it does not find. Clones share the times.
#[derive(Clone, Default)]
pub(crate) struct KnownTimes(Arc<Mutex<Measured>>);

#[derive(Default)]
struct Measured {
    /// The layers that were measured.
    probes: Vec<LayerProbe>,
    /// The workers, and their time of each probe.
    workers: Vec<(WorkerInfo, Vec<LayerTimes>)>,
}

impl KnownTimes {
    /// Replaces the times of these probes on these workers. Times of other probes are forgotten.
    pub(crate) fn store(
        &self,
        probes: Vec<LayerProbe>,
        measured: impl IntoIterator<Item = (WorkerInfo, Vec<LayerTimes>)>,
    ) {
        let mut known = self.0.lock();
        if known.probes != probes {
            *known = Measured { probes, workers: Vec::new() };
        }
        for (worker, times) in measured {
            known.workers.retain(|(other, _)| !is_same_process(other, &worker));
            known.workers.push((worker, times));
        }
    }

    /// The times of these probes on each worker. `None` if they are not known for all of them.
    pub(crate) fn find(
        &self,
        probes: &[LayerProbe],
        workers: &[WorkerInfo],
    ) -> Option<Vec<Vec<LayerTimes>>> {
        let known = self.0.lock();
        let is_known = known.probes == probes;
        let times_of = |worker| known.times_of(worker).cloned().filter(|_| is_known);
        workers.iter().map(times_of).collect()
    }
}

impl Measured {
    /// The times of this process. For a new process, the slowest of those on the same device of
    /// the same machine, because a process may have shared its cores with others.
    fn times_of(&self, worker: &WorkerInfo) -> Option<&Vec<LayerTimes>> {
        let same_process = self.workers.iter().find(|(other, _)| is_same_process(other, worker));
        let alike = self.workers.iter().filter(|(other, _)| is_alike(other, worker));
        let found = same_process.or_else(|| alike.max_by_key(|(_, times)| total(times)));
        found.map(|(_, times)| times)
    }
}

fn is_alike(one: &WorkerInfo, other: &WorkerInfo) -> bool {
    let computer = |worker: &WorkerInfo| {
        let WorkerInfo { host, device, processor, threads, .. } = worker.clone();
        (host, device, processor, threads)
    };
    computer(one) == computer(other)
}

fn is_same_process(one: &WorkerInfo, other: &WorkerInfo) -> bool {
    one.is_same_process(other) && is_alike(one, other)
}

/// The time of a microbatch in all layers.
fn total(times: &[LayerTimes]) -> u64 {
    times.iter().fold(0, |sum, t| sum.saturating_add(t.forward).saturating_add(t.backward))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuning::layer_probes::probes;
    use layerspec::{Bindings, LayerGraph};
    use std::slice::from_ref;

    fn layers(batch: u64) -> Vec<LayerProbe> {
        let text =
            "inputs: {x: [batch, 4]}\nlayers: [{Linear: {in_features: 4, out_features: 2}}]\n";
        let graph = LayerGraph::from_yaml(text, "model.yaml").unwrap();
        probes(&graph, &Bindings::new().with("batch", batch)).0
    }

    fn worker(host: &str, process: u32) -> WorkerInfo {
        WorkerInfo { host: host.into(), process, ..WorkerInfo::default() }
    }

    fn times(forward: u64) -> Vec<LayerTimes> {
        vec![LayerTimes { forward, ..LayerTimes::default() }]
    }

    #[test]
    fn the_next_session_knows_the_workers_that_are_left_and_those_that_came_again() {
        let known = KnownTimes::default();
        let (a, b, c) = (worker("a", 1), worker("a", 2), worker("c", 1));
        known.store(layers(8), [(a.clone(), times(10)), (b.clone(), times(30))]);
        // A clone shares the times: each session has one.
        let next = known.clone();
        assert_eq!(
            next.find(&layers(8), &[b.clone(), a.clone()]),
            Some(vec![times(30), times(10)])
        );
        // A new process on that machine is as fast as the slowest that it had.
        assert_eq!(next.find(&layers(8), &[b, worker("a", 3)]), Some(vec![times(30), times(30)]));
        // A process of another container may have the same id.
        let twin = WorkerInfo { instance: 5, ..a.clone() };
        assert_eq!(next.find(&layers(8), from_ref(&twin)), Some(vec![times(30)]));
        assert_eq!(next.find(&layers(8), from_ref(&c)), None);
        next.store(layers(8), [(c.clone(), times(5))]);
        assert_eq!(known.find(&layers(8), &[c]), Some(vec![times(5)]));
    }

    #[test]
    fn times_of_other_layers_or_sizes_are_not_taken() {
        let known = KnownTimes::default();
        let a = worker("a", 1);
        known.store(layers(8), [(a.clone(), times(10))]);
        assert_eq!(known.find(&layers(4), from_ref(&a)), None);
        known.store(layers(4), [(a.clone(), times(5))]);
        assert_eq!(known.find(&layers(8), from_ref(&a)), None);
        // More threads or another device are another speed.
        assert_eq!(known.find(&layers(4), &[WorkerInfo { threads: 2, ..a.clone() }]), None);
        assert_eq!(known.find(&layers(4), &[WorkerInfo { device: "cuda:0".into(), ..a }]), None);
    }
}
