//! Layers that remember what they saw.

use crate::stage_spec::StageSpec;
use layerspec::Role;

/// Whether some layer of a stage keeps running statistics, as batch norms do.
pub fn keeps_statistics(stage: &StageSpec) -> bool {
    let mut params = stage.layers.iter().flat_map(|layer| layer.kind.params());
    // An own layer's parameter may be called so, too.
    params.any(|param| param.role == Role::Buffer && param.name == "running_mean")
}
