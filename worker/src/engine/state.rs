//! Weights and optimizer state, out and in, by name.

use super::error::EngineError;
use super::shards::slice_of;
use super::Engine;
use std::collections::HashMap;
use tch::Tensor;
use tensor::TensorError;

impl Engine {
    /// Copies of all parameters and buffers, which must be here, named `<layer>.<name>` as in PyTorch. What several
    /// layers share is there once, under its owner's name; what another stage owns is not there.
    pub fn state(&self) -> Result<Vec<(String, Tensor)>, EngineError> {
        self.check_gathered()?;
        let params = self.params.all.iter().filter(|param| param.owner_stage.is_none());
        params.map(|param| Ok((param.name.clone(), copy(&param.tensor)?))).collect()
    }

    /// The trained parameters that the stage owns, by name.
    pub fn trained_params(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        let own = self.params.all.iter().filter(|param| param.trained && param.owner_stage.is_none());
        own.map(|param| (param.name.as_str(), &param.tensor))
    }

    /// Those of which every replica of the stage keeps all.
    pub fn replicated_trained_params(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        let all = self.params.all.iter().enumerate().filter(|(_, param)| param.trained && param.owner_stage.is_none());
        let of_all = all.filter(|(index, _)| self.shards.own_shard(&self.params, *index).is_none());
        of_all.map(|(_, param)| (param.name.as_str(), &param.tensor))
    }

    /// Copies of the optimizer's state, named `<layer>.<name>.<state>`: `0.weight.exp_avg`; of that which replicas share out,
    /// this one's part, flat, with the element at which it begins. Empty before the first step. `parts` leaves out what every
    /// replica has.
    pub fn optimizer_state(&self, parts: bool) -> Result<Vec<(String, Option<u64>, Tensor)>, EngineError> {
        let mut tensors = Vec::new();
        let Some(optimizer) = &self.optimizer else { return Ok(tensors) };
        for (index, param) in self.params.all.iter().enumerate() {
            let part = self.shards.shard_range(&self.params, index);
            let nothing = part.as_ref().is_some_and(std::ops::Range::is_empty);
            if nothing || (part.is_none() && parts) {
                continue;
            }
            let start = part.map(|part| part.start.unsigned_abs());
            for (kind, tensor) in optimizer.state(index) {
                tensors.push((format!("{}.{kind}", param.name), start, copy(tensor)?));
            }
        }
        Ok(tensors)
    }

    /// Sets the optimizer's state, whole and named `<layer>.<name>.<state>` (`0.weight.exp_avg`),
    /// for the same parameters and optimizer; of what replicas share out this one keeps its part.
    /// State that is missing starts fresh.
    ///
    /// # Errors
    /// It is not that of this stage's parameters or of this optimizer; the state is then empty.
    pub fn load_optimizer_state(&mut self, state: Vec<(String, Tensor)>) -> Result<(), EngineError> {
        let optimizer = self.optimizer.as_mut().ok_or(EngineError::NoOptimizer)?;
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
        for (index, param) in self.params.all.iter().enumerate() {
            if let Some(parts) = of_param.remove(&param.name) {
                let device = param.tensor.device();
                let sizes = param.tensor.size();
                let share = self.shards.shard_range(&self.params, index);
                if share.as_ref().is_some_and(std::ops::Range::is_empty) {
                    continue;
                }
                let mine = |name: &str, whole: &Tensor| match &share {
                    Some(part) if name != "step" && whole.size() == sizes => slice_of(&whole.f_contiguous()?, part),
                    _ => Ok(whole.shallow_clone()),
                };
                // Copies: what came lies in memory that others may share and that cannot be written to.
                let there = |(name, whole): (String, Tensor)| {
                    let mine = copy(&mine(&name, &whole)?)?.f_to_device(device)?;
                    Ok((name, mine))
                };
                let parts = parts.into_iter().map(there).collect::<Result<_, TensorError>>()?;
                let size = share.map_or(sizes, |part| vec![part.end - part.start]);
                let set = optimizer.set_state(index, &size, parts);
                problems.extend(set.err().map(|problem| format!("optimizer state of {}: {problem}", param.name)));
            }
        }
        problems.extend(of_param.into_keys().map(|name| format!("optimizer state of {name}: no such parameter")));
        if problems.is_empty() {
            return Ok(());
        }
        optimizer.clear();
        Err(EngineError::StateMismatch { problems })
    }

    /// Sets all parameters and buffers. Nothing changes unless everything fits; the error lists
    /// every tensor that is missing, unexpected, or of another shape or dtype.
    ///
    /// Shared ones may come under any of their names, or under several with equal contents. Copies
    /// of parameters that another stage owns are set, too.
    pub fn load_state(&mut self, state: Vec<(String, Tensor)>) -> Result<(), EngineError> {
        let fitting = self.match_params(state)?;
        self.version += 1;
        self.statistics.forget_restore_points();
        self.reshard()?;
        tch::no_grad(|| {
            for (index, (param, new)) in self.params.all.iter().zip(&fitting).enumerate() {
                let kept = self.shards.own_shard(&self.params, index).zip(self.shards.shard_range(&self.params, index));
                match kept {
                    Some((kept, part)) => kept.shallow_clone().f_copy_(&slice_of(&new.f_contiguous()?, &part)?)?,
                    None => param.tensor.shallow_clone().f_copy_(new)?,
                }
            }
            Ok::<_, TensorError>(())
        })?;
        Ok(())
    }

    /// Whether a parameter or buffer has this name, here or in the stage that owns it.
    pub fn has_tensor(&self, name: &str) -> bool {
        self.params.all.iter().any(|param| param.name == name || param.aliases.iter().any(|alias| alias == name))
    }

    /// The tensor for each parameter, in the stage's order.
    fn match_params(&self, state: Vec<(String, Tensor)>) -> Result<Vec<Tensor>, EngineError> {
        let mut given: HashMap<String, Tensor> = HashMap::new();
        let mut problems = Vec::new();
        for (name, tensor) in state {
            if given.contains_key(&name) {
                problems.push(format!("{name}: given twice"));
            }
            given.insert(name, tensor);
        }
        let mut fitting = Vec::new();
        for param in &self.params.all {
            let names = std::iter::once(&param.name).chain(&param.aliases);
            let found: Vec<_> = names.filter_map(|name| given.remove_entry(name)).collect();
            for (name, tensor) in &found {
                problems.extend(difference(&param.tensor, tensor)?.map(|problem| format!("{name}: {problem}")));
            }
            if let [(first, tensor), others @ ..] = &found[..] {
                for (other, same) in others {
                    if !same.f_equal(tensor).unwrap_or(false) {
                        problems.push(format!("{other}: differs from {first}, with which it is shared"));
                    }
                }
            }
            match found.into_iter().next() {
                Some((_, tensor)) => fitting.push(tensor),
                None => problems.push(format!("{}: missing", param.name)),
            }
        }
        let mut unexpected: Vec<String> = given.into_keys().collect();
        unexpected.sort();
        problems.extend(unexpected.into_iter().map(|name| format!("{name}: unexpected, the stage has no such tensor")));
        if problems.is_empty() {
            Ok(fitting)
        } else {
            Err(EngineError::StateMismatch { problems })
        }
    }
}

/// How a tensor differs in type from what it is to be.
fn difference(expected: &Tensor, got: &Tensor) -> Result<Option<String>, TensorError> {
    let describe = |tensor: &Tensor| Ok::<_, TensorError>(format!("{} {:?}", tensor::dtype_of(tensor)?, tensor.size()));
    let (expected, got) = (describe(expected)?, describe(got)?);
    Ok((expected != got).then(|| format!("expected {expected}, got {got}")))
}

pub(super) fn copy(tensor: &Tensor) -> Result<Tensor, TensorError> {
    let source = tensor.f_detach()?;
    let mut copy = source.f_empty_like()?;
    copy.f_copy_(&source)?;
    Ok(copy)
}
