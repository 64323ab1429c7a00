//! The workers' memory as a limit for automatic cuts. It counts parameters, and what training adds
//! to each; activations depend on the schedule, and are counted once that is chosen.

use crate::cut::StageMemory;
use crate::ids::WorkerId;
use crate::replicas::StagePlacement;
use layerspec::{Layer, LayerGraph, Precision, Role};

/// The numbers for each number of a trained parameter, the most that training may need first: with
/// Adam its value, its gradient and two of state, with momentum one of state, with SGD none, and
/// without training its value. A model is cut before its optimizer is known.
const COPIES: [u64; 4] = [4, 3, 2, 1];

/// The bytes of every worker that automatic cuts may use, or `None` if unknown.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CutMemory {
    /// All that there are.
    pub all: Vec<Option<u64>>,
    /// Fewer, from which cuts rather come: activations did not fit beside the rest. Empty if not
    /// asked for.
    pub spared: Vec<Option<u64>>,
}

/// The limits of each stage, the most desirable first. Empty if no worker's memory is known.
pub(crate) fn limits(
    graph: &LayerGraph,
    stage_placement: &StagePlacement,
    memory: &CutMemory,
) -> Vec<StageMemory> {
    let of_layers = |copies| graph.layers().iter().map(|layer| bytes(layer, copies)).collect();
    let limit = |memory: &[Option<u64>], copies| {
        let rooms = rooms(stage_placement, memory)?;
        Some(StageMemory { bytes: of_layers(copies), rooms })
    };
    let spared = limit(&memory.spared, COPIES[0]);
    let all = COPIES.into_iter().filter_map(|copies| limit(&memory.all, copies));
    spared.into_iter().chain(all).collect()
}

/// The memory of each stage. `None` if nothing is known.
fn rooms(stage_placement: &StagePlacement, memory: &[Option<u64>]) -> Option<Vec<u64>> {
    let of_stage = |workers: &[WorkerId]| {
        workers.iter().filter_map(|worker| room(stage_placement, *worker, memory)).min()
    };
    let rooms: Vec<_> = stage_placement.iter().map(|(_, workers)| of_stage(workers)).collect();
    let is_known = rooms.iter().any(Option::is_some);
    is_known.then(|| rooms.into_iter().map(|room| room.unwrap_or(u64::MAX)).collect())
}

/// The memory of a worker for each of its stages, if known.
fn room(stage_placement: &StagePlacement, worker: WorkerId, memory: &[Option<u64>]) -> Option<u64> {
    let stages = stage_placement.iter().filter(|(stage, _)| stage_placement.has(*stage, worker));
    let available = memory.get(usize::from(worker.0)).copied().flatten()?;
    Some(available / (stages.count().max(1) as u64))
}

/// The bytes of a layer's parameters, with this number of copies of those that are trained. More
/// than one is for training, which keeps [rounded copies](rounded), too.
pub(crate) fn bytes(layer: &Layer, copies: u64) -> u64 {
    let of_parameter = |param: layerspec::ParamSpec| {
        let bytes = param.bytes().unwrap_or(u64::MAX);
        match (param.role, layer.frozen) {
            (Role::Parameter, false) => bytes.saturating_mul(copies),
            _ => bytes,
        }
    };
    let own = layer.kind.params().into_iter().map(of_parameter).fold(0, u64::saturating_add);
    if copies > 1 {
        own.saturating_add(rounded(layer))
    } else {
        own
    }
}

/// The bytes of the copies in a 16-bit type that products in mixed precision keep of parameters in
/// training, at most.
pub(crate) fn rounded(layer: &Layer) -> u64 {
    if layer.precision == Precision::F32 {
        return 0;
    }
    let params = layer.kind.params().into_iter().filter(|param| param.role == Role::Parameter);
    params.map(|param| param.bytes().unwrap_or(u64::MAX) / 2).fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn training_in_mixed_precision_keeps_rounded_copies() {
        let yaml =
            "{inputs: {x: [batch, 32]}, layers: [Linear: {in_features: 32, out_features: 32}]}";
        let graph = LayerGraph::from_yaml(yaml, "model.yaml").unwrap();
        let mut layer = graph.layers()[0].clone();
        let values = (32 * 32 + 32) * 4;
        assert_eq!([1, 4].map(|copies| bytes(&layer, copies)), [values, 4 * values]);
        layer.precision = Precision::Bf16;
        assert_eq!(bytes(&layer, 1), values);
        assert_eq!(bytes(&layer, 4), 4 * values + values / 2);
        layer.frozen = true;
        assert_eq!(bytes(&layer, 4), values + values / 2);
    }
}
