//! The workers' memory as a limit for automatic cuts. It counts parameters, and what training adds
//! to each; activations depend on the schedule, and are counted once that is chosen.

use crate::cut::StageMemory;
use crate::ids::WorkerId;
use crate::replicas::StagePlacement;
use layerspec::{Layer, LayerGraph, Role};

/// The numbers for each number of a trained parameter: in training with Adam its value, its
/// gradient and two of state; else its value. A model is cut before its optimizer is known, and
/// rather for training.
const COPIES: [u64; 2] = [4, 1];

/// The limits of each stage, the most desirable first. Empty if no worker's memory is known.
/// `memory` has the bytes of every worker.
pub(crate) fn limits(
    graph: &LayerGraph,
    stage_placement: &StagePlacement,
    memory: &[Option<u64>],
) -> Vec<StageMemory> {
    let rooms: Vec<Option<u64>> = stage_placement
        .iter()
        .map(|(_, workers)| workers.iter().filter_map(|w| room(stage_placement, *w, memory)).min())
        .collect();
    if rooms.iter().all(Option::is_none) {
        return Vec::new();
    }
    let rooms: Vec<u64> = rooms.into_iter().map(|room| room.unwrap_or(u64::MAX)).collect();
    let of_layers = |copies| graph.layers().iter().map(|layer| bytes(layer, copies)).collect();
    COPIES
        .into_iter()
        .map(|copies| StageMemory { bytes: of_layers(copies), rooms: rooms.clone() })
        .collect()
}

/// The memory of a worker for each of its stages, if known.
fn room(stage_placement: &StagePlacement, worker: WorkerId, memory: &[Option<u64>]) -> Option<u64> {
    let stages = stage_placement.iter().filter(|(stage, _)| stage_placement.has(*stage, worker));
    let available = memory.get(usize::from(worker.0)).copied().flatten()?;
    Some(available / (stages.count().max(1) as u64))
}

/// The bytes of a layer's parameters, with this number of copies of those that are trained.
pub(crate) fn bytes(layer: &Layer, copies: u64) -> u64 {
    let of_parameter = |param: layerspec::ParamSpec| {
        let bytes = param.bytes().unwrap_or(u64::MAX);
        match (param.role, layer.frozen) {
            (Role::Parameter, false) => bytes.saturating_mul(copies),
            _ => bytes,
        }
    };
    layer.kind.params().into_iter().map(of_parameter).fold(0, u64::saturating_add)
}
