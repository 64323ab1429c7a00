//! Samples from a safetensors file: a tensor for each model input, and `target`.

use crate::{BossManError, StateDict};
use layerspec::LayerGraph;
use std::path::Path;
use tch::Tensor;

type Samples = (Vec<(String, Tensor)>, Tensor);

pub(super) fn read(path: &Path, graph: &LayerGraph) -> Result<Samples, BossManError> {
    let file = StateDict::load(path)?;
    let tensor = |name: &str| {
        let names: Vec<_> = file.iter().map(|(name, _)| name).collect();
        let problem = || BossManError::file(path, format!("no tensor `{name}`; it holds {}", names.join(", ")));
        file.get(name).map(Tensor::shallow_clone).ok_or_else(problem)
    };
    let names = graph.inputs().iter().map(|id| graph.value(*id).name.clone());
    let inputs = names.map(|name| Ok((name.clone(), tensor(&name)?))).collect::<Result<_, BossManError>>()?;
    Ok((inputs, tensor("target")?))
}
