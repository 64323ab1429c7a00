//! Exports and loads the state of the optimizer by name.

use crate::engine::error::EngineError;
use crate::engine::layout::{deep_copy, host_copy};
use crate::engine::params::param_store::ParamStore;
use crate::engine::params::shards::{copy_elements, flat, slice_of};
use crate::engine::update::optimizer::{Optimizer, STEP};
use layerspec::DType;
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
    /// The values.
    pub tensor: Tensor,
}

/// Copies the optimizer's state to the host's memory. It is empty before the first step.
pub(crate) fn optimizer_state(
    optimizer: &Optimizer,
    store: &ParamStore,
    scope: OptimizerStateScope,
) -> Result<Vec<OptimizerTensor>, EngineError> {
    let mut tensors = optimizer_state_in_place(optimizer, store, scope)?;
    for part in &mut tensors {
        part.tensor = host_copy(&part.tensor)?;
    }
    Ok(tensors)
}

/// The same tensors where they lie.
pub(crate) fn optimizer_state_in_place(
    optimizer: &Optimizer,
    store: &ParamStore,
    scope: OptimizerStateScope,
) -> Result<Vec<OptimizerTensor>, TensorError> {
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
            tensors.push(OptimizerTensor { name, start, tensor: tensor.f_detach()? });
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
                Some(range) if name != STEP && whole.size() == sizes => {
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

/// Sets a tensor of the optimizer's state by name (`0.weight.exp_avg`), or with `start` a flat
/// slice of it. Of a sharded parameter this replica keeps its shard. A parameter without state gets
/// zeros first, but not before the values are checked: with state its next step is not its first.
///
/// # Errors
/// It is not state of these parameters or of this optimizer, or it has another size or type.
/// Nothing is changed.
pub(crate) fn load_optimizer_part(
    optimizer: &mut Optimizer,
    store: &ParamStore,
    name: &str,
    start: Option<u64>,
    values: &Tensor,
) -> Result<(), EngineError> {
    let (of_param, kind) = name.rsplit_once('.').unwrap_or((name, ""));
    let problem = |problem: String| EngineError::StateMismatch {
        problems: vec![format!("optimizer state of {of_param}: {problem}")],
    };
    let index = store.params().all.iter().position(|param| param.name == of_param);
    let index = index.ok_or_else(|| problem("no such parameter".into()))?;
    if !optimizer.kinds().contains(&kind) {
        return Err(problem(format!("{kind} is unexpected")));
    }
    let param = &store.params().all[index].tensor;
    let (device, sizes) = (param.device(), param.size());
    let is_step = kind == STEP;
    let whole: &[i64] = if is_step { &[] } else { &sizes };
    let elements = match start {
        Some(_) if is_step => None,
        _ => elements_of(whole, start, values)?,
    };
    let Some(elements) = elements else {
        let found = format!("{} {:?}", tensor::dtype_of(values)?, values.size());
        let from = start.map_or(String::new(), |start| format!(" from {start}"));
        let or_slice = if is_step { "" } else { " or a slice of it" };
        return Err(problem(format!(
            "{kind}: expected float32 {whole:?}{or_slice}, got {found}{from}"
        )));
    };
    let shard = store.shards().shard_range(store.params(), index);
    if shard.as_ref().is_some_and(Range::is_empty) {
        return Ok(());
    }
    let size = shard.as_ref().map_or_else(|| sizes.clone(), |shard| vec![shard.end - shard.start]);
    // Each replica has the number of steps.
    let range = shard.filter(|_| !is_step).unwrap_or(0..whole.iter().product::<i64>());
    let values = flat(&values.f_contiguous().map_err(TensorError::from)?)?;
    optimizer.begin_state(index, &size, device)?;
    for (_, own) in optimizer.state(index).into_iter().filter(|(found, _)| *found == kind) {
        copy_elements(&values, &elements, &flat(own)?, &range)?;
    }
    Ok(())
}

/// The elements of a tensor of these sizes that the values set: all, or with `start` a flat slice.
/// `None` if they do not fit, or are not float32.
fn elements_of(
    sizes: &[i64],
    start: Option<u64>,
    values: &Tensor,
) -> Result<Option<Range<i64>>, TensorError> {
    let (all, found) = (sizes.iter().product::<i64>(), values.size());
    if tensor::dtype_of(values)? != DType::Float32 {
        return Ok(None);
    }
    let Some(start) = start else {
        return Ok((found == sizes).then_some(0..all));
    };
    let slice = match (i64::try_from(start), &found[..]) {
        (Ok(start), [count]) => start.checked_add(*count).map(|end| start..end),
        _ => None,
    };
    Ok(slice.filter(|slice| slice.end <= all))
}
