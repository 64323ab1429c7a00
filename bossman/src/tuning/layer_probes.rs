//! The layers that workers measure, and the machines that their links reveal.

use crate::data::batch_inputs::Inputs;
use layerspec::{Bindings, LayerGraph, TensorType};
use link::Payload;
use pipeline::ids::WorkerId;
use pipeline::message::LinkReport;
use pipeline::schedule::Process;
use pipeline::task::LayerProbe;
use pipeline::TensorMeta;
use std::collections::BTreeMap;

/// The machine of each process, by arbitrary numbers. Two processes are on one machine if their
/// link says so.
pub(crate) fn machines(
    workers: usize,
    links: &[(WorkerId, Option<WorkerId>, LinkReport)],
) -> BTreeMap<Process, u32> {
    let processes =
        (0..workers as u16).map(|w| Process::Worker(WorkerId(w))).chain([Process::Boss]);
    let mut machines: BTreeMap<Process, u32> = processes.zip(0..).collect();
    for (from, to, _) in links.iter().filter(|(.., report)| report.same_machine) {
        let ends = [Process::Worker(*from), to.map_or(Process::Boss, Process::Worker)];
        if let [Some(one), Some(other)] = ends.map(|end| machines.get(&end).copied()) {
            machines
                .values_mut()
                .filter(|machine| **machine == other)
                .for_each(|machine| *machine = one);
        }
    }
    machines
}

/// A probe for each kind of layer with its sizes, and for each layer the index of its probe.
pub(crate) fn probes(graph: &LayerGraph, sizes: &Bindings) -> (Vec<LayerProbe>, Vec<usize>) {
    let mut probes: Vec<LayerProbe> = Vec::new();
    let mut of_layer = Vec::with_capacity(graph.layers().len());
    for layer in graph.layers() {
        let meta = |ty: &TensorType| {
            let shape = ty.dims().iter().map(|dim| dim.eval(sizes).unwrap_or(1)).collect();
            TensorMeta { dtype: ty.dtype, shape }
        };
        let inputs = layer.inputs.iter().map(|value| meta(&graph.value(*value).ty)).collect();
        let input_grads = layer.inputs.iter().any(|value| graph.requires_grad(*value));
        let probe = LayerProbe { layer: layer.clone(), inputs, input_grads };
        let alike = |other: &LayerProbe| {
            (
                &other.layer.kind,
                other.layer.frozen,
                other.layer.recompute,
                &other.inputs,
                other.input_grads,
            ) == (
                &probe.layer.kind,
                probe.layer.frozen,
                probe.layer.recompute,
                &probe.inputs,
                probe.input_grads,
            )
        };
        of_layer.push(probes.iter().position(alike).unwrap_or(probes.len()));
        if of_layer.last() == Some(&probes.len()) {
            probes.push(probe);
        }
    }
    (probes, of_layer)
}

/// The bytes of the first microbatch's targets. `None` if workers read inputs and targets.
pub(crate) fn first_target_bytes(inputs: &Inputs, targets: &[(u32, Payload)]) -> Option<u64> {
    let first = targets.iter().filter(|(index, _)| *index == 0);
    let bytes = first.map(|(_, payload)| payload.bytes.len() as u64).sum();
    inputs.samples_to_read().is_none().then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_says_that_it_shares_a_machine_is_on_one() {
        let report = |same_machine| LinkReport { same_machine, ..LinkReport::default() };
        let w = WorkerId;
        // Worker 1 runs beside the boss; 2 and 3 share a machine elsewhere; 0 and 4 are alone.
        let links = [
            (w(0), None, report(false)),
            (w(1), None, report(true)),
            (w(2), None, report(false)),
            (w(2), Some(w(3)), report(true)),
            (w(3), Some(w(4)), report(false)),
        ];
        let machines = machines(5, &links);
        let of = |worker| machines[&Process::Worker(w(worker))];
        assert_eq!(of(1), machines[&Process::Boss]);
        assert_eq!(of(2), of(3));
        let different: std::collections::BTreeSet<u32> = [0, 1, 2, 4].map(of).into();
        assert_eq!(different.len(), 4);
    }
}
