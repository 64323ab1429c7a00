//! The workers' memory as a limit for automatic cuts. It counts parameters, and what training adds
//! to each. Activations depend on the schedule, and count once that and their sizes are known.

use crate::cut::StageMemory;
use crate::ids::WorkerId;
use crate::replicas::StagePlacement;
use layerspec::{Layer, LayerGraph, Precision, Role};

/// The most numbers for each number of a trained parameter: with Adam its value, its gradient and
/// two of state.
const MOST_COPIES: u64 = 4;

/// The bytes of every worker that automatic cuts may use, or `None` if unknown.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CutMemory {
    /// All that there are.
    pub all: Vec<Option<u64>>,
    /// Fewer, from which cuts rather come: activations did not fit beside the rest. Empty if not
    /// asked for.
    pub spared: Vec<Option<u64>>,
    /// The numbers that training needs for each number of a parameter. `None`: the optimizer is not
    /// known yet.
    pub copies: Option<u64>,
    /// For each stage, the bytes of each layer's activations. Empty: they are not known yet.
    pub activations: Vec<Vec<u64>>,
}

/// The limits of each stage, the most desirable first. Empty if no worker's memory is known.
pub(crate) fn limits<'a>(
    graph: &'a LayerGraph,
    stage_placement: &'a StagePlacement,
    memory: &'a CutMemory,
) -> impl Iterator<Item = StageMemory> + 'a {
    let of_stages = |copies| -> Vec<Vec<u64>> {
        let params: Vec<_> = graph.layers().iter().map(|layer| bytes(layer, copies)).collect();
        let of_stage = |stage: usize| match memory.activations.get(stage) {
            Some(more) => params.iter().zip(more).map(|(a, b)| a.saturating_add(*b)).collect(),
            None => params.clone(),
        };
        (0..stage_placement.stages()).map(of_stage).collect()
    };
    let limit = move |memory: &[Option<u64>], copies| {
        let rooms = rooms(stage_placement, memory)?;
        Some(StageMemory { bytes: of_stages(copies), rooms })
    };
    // Those for training first, and last the values alone.
    let most = memory.copies.unwrap_or(MOST_COPIES);
    let spared = (!memory.spared.is_empty()).then_some((&memory.spared, most));
    let all = (1..=most).rev().map(|copies| (&memory.all, copies));
    spared.into_iter().chain(all).filter_map(move |(memory, copies)| limit(memory, copies))
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
