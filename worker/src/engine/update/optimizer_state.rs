//! Exports and loads the state of the optimizer by name.

use crate::engine::error::EngineError;
use crate::engine::layout::{deep_copy, host_copy};
use crate::engine::params::param_store::ParamStore;
use crate::engine::params::shards::slice_of;
use crate::engine::update::optimizer::Optimizer;
use std::collections::HashMap;
use std::ops::Range;
use tch::Tensor;
use tensor::TensorError;

/// The requested part of the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OptimizerStateScope {
    /// All that this replica has.
    All,
    /// Only this replica's shards: every replica has the rest.
    Shards,
}

/// One tensor of the optimizer's state.
#[derive(Debug)]
pub struct OptimizerTensor {
    /// `<layer>.<name>.<state>`: `0.weight.exp_avg`.
    pub name: String,
    /// For a shard, the element of the parameter at which it begins. The tensor is then flat.
    pub start: Option<u64>,
    /// A copy of the values.
    pub tensor: Tensor,
}

/// Copies the optimizer's state. It is empty before the first step.
pub(crate) fn optimizer_state(
    optimizer: &Optimizer,
    store: &ParamStore,
    scope: OptimizerStateScope,
) -> Result<Vec<OptimizerTensor>, EngineError> {
    let mut tensors = Vec::new();
    for (index, param) in store.params().all.iter().enumerate() {
        let range = store.shards().shard_range(store.params(), index);
        let empty = range.as_ref().is_some_and(Range::is_empty);
        if empty || (range.is_none() && scope == OptimizerStateScope::Shards) {
            continue;
        }
        let start = range.map(|range| range.start.unsigned_abs());
        for (kind, tensor) in optimizer.state(index) {
            let name = format!("{}.{kind}", param.name);
            tensors.push(OptimizerTensor { name, start, tensor: host_copy(tensor)? });
        }
    }
    Ok(tensors)
}

/// Sets the optimizer's state, whole and by name. Of a sharded parameter this replica keeps its
/// shard. Missing state starts fresh.
///
/// # Errors
/// The state is not that of these parameters or of this optimizer. It is then empty.
pub(crate) fn load_optimizer_state(
    optimizer: &mut Optimizer,
    store: &ParamStore,
    state: Vec<(String, Tensor)>,
) -> Result<(), EngineError> {
    optimizer.clear();
    let mut of_param: HashMap<String, HashMap<String, Tensor>> = HashMap::new();
    let mut problems = Vec::new();
    for (name, tensor) in state {
        match name.rsplit_once('.') {
            Some((param, part)) => {
                of_param.entry(param.to_string()).or_default().insert(part.to_string(), tensor);
            }
            None => problems.push(format!("{name}: unexpected")),
        }
    }
    for (index, param) in store.params().all.iter().enumerate() {
        let Some(parts) = of_param.remove(&param.name) else { continue };
        let range = store.shards().shard_range(store.params(), index);
        if range.as_ref().is_some_and(Range::is_empty) {
            continue;
        }
        let (device, sizes) = (param.tensor.device(), param.tensor.size());
        // Copies: the given tensors may lie in shared memory that cannot be written to.
        let own = |(name, whole): (String, Tensor)| {
            let own = match &range {
                Some(range) if name != "step" && whole.size() == sizes => {
                    slice_of(&whole.f_contiguous()?, range)?
                }
                _ => whole,
            };
            Ok((name, deep_copy(&own)?.f_to_device(device)?))
        };
        let parts = parts.into_iter().map(own).collect::<Result<_, TensorError>>()?;
        let size = range.map_or(sizes, |range| vec![range.end - range.start]);
        let problem = optimizer.set_state(index, &size, parts).err();
        problems
            .extend(problem.map(|problem| format!("optimizer state of {}: {problem}", param.name)));
    }
    let unknown = of_param.into_keys();
    problems.extend(unknown.map(|name| format!("optimizer state of {name}: no such parameter")));
    if problems.is_empty() {
        return Ok(());
    }
    optimizer.clear();
    Err(EngineError::StateMismatch { problems })
}
