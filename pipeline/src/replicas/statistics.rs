//! Layers that remember what they saw.

use crate::stage_spec::StageSpec;

/// Whether some layer of a stage keeps running statistics, as batch norms do.
pub fn keeps_statistics(stage: &StageSpec) -> bool {
    let mut params = stage.layers.iter().flat_map(|layer| layer.kind.params());
    params.any(|param| param.name == "running_mean")
}
