//! Layers with running statistics, and what replicas of a stage exchange.

use crate::stage_spec::StageSpec;
use layerspec::Role;

/// Whether some layer of a stage keeps running statistics, as batch norms do.
pub fn keeps_statistics(stage: &StageSpec) -> bool {
    let mut params = stage.layers.iter().flat_map(|layer| layer.kind.params());
    // A parameter of a user-defined layer may have this name, too.
    params.any(|param| param.role == Role::Buffer && param.name == "running_mean")
}

/// Whether the replicas of a stage exchange something at the end of a round: gradients, or running
/// statistics.
pub fn is_reduced(stage: &StageSpec) -> bool {
    stage.is_trained() || keeps_statistics(stage)
}
