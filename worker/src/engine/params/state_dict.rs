//! Exports and loads the parameters and buffers of a stage by name.

use crate::engine::error::EngineError;
use crate::engine::layout::host_copy;
use crate::engine::params::param_store::ParamStore;
use crate::engine::params::shards::{copy_elements, flat, slice_of};
use crate::engine::params::stage_params::Param;
use pipeline::TensorMeta;
use std::collections::HashMap;
use tch::Tensor;
use tensor::TensorError;

/// What [`ParamStore::match_state`] does with parameters for which there is no tensor.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(crate) enum Missing {
    /// They are problems.
    Refused,
    /// They stay as they are.
    Kept,
}

/// A tensor of the state, in the memory that the stage uses.
#[derive(Debug)]
pub struct StateTensor {
    /// Its name, as [`StateName`](pipeline::StateName) has it.
    pub name: String,
    /// The values. They share memory with the stage: do not write to them.
    pub tensor: Tensor,
    /// Whether the values stay until parameters are updated or replaced. If not, any pass may
    /// change or free them.
    pub stays_until_update: bool,
}

impl ParamStore {
    /// Copies of all parameters and buffers in the host's memory, named `<layer>.<name>` as in
    /// PyTorch. The parameters must be gathered. A shared tensor appears once, under its owner's
    /// name. Tensors that another stage owns do not appear.
    pub(crate) fn state(&self) -> Result<Vec<(String, Tensor)>, EngineError> {
        let tensors = self.state_in_place()?.into_iter();
        tensors.map(|StateTensor { name, tensor, .. }| Ok((name, host_copy(&tensor)?))).collect()
    }

    /// The same tensors where they lie.
    pub(crate) fn state_in_place(&self) -> Result<Vec<StateTensor>, EngineError> {
        self.check_gathered()?;
        // Sharded parameters are here only until the step ends, and their memory is needed then.
        let stay = self.shards.own_shards.is_none();
        let params = self.params.all.iter().filter(|param| param.owner_stage.is_none());
        let tensors = params.map(|param| {
            Ok::<_, TensorError>(StateTensor {
                name: param.name.clone(),
                tensor: param.tensor.f_detach()?,
                stays_until_update: stay && param.passes_only_read,
            })
        });
        Ok(tensors.collect::<Result<_, TensorError>>()?)
    }

    /// The trained parameters that the stage owns, by name.
    pub(crate) fn trained_params(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        let own =
            self.params.all.iter().filter(|param| param.trained && param.owner_stage.is_none());
        own.map(|param| (param.name.as_str(), &param.tensor))
    }

    /// Those of which every replica of the stage keeps all.
    pub(crate) fn replicated_trained_params(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        let all = self
            .params
            .all
            .iter()
            .enumerate()
            .filter(|(_, param)| param.trained && param.owner_stage.is_none());
        let of_all = all.filter(|(index, _)| self.shards.own_shard(&self.params, *index).is_none());
        of_all.map(|(_, param)| (param.name.as_str(), &param.tensor))
    }

    /// Sets parameters and buffers to the tensors that [`ParamStore::match_state`] returned.
    pub(crate) fn set_state(&mut self, fitting: &[Option<Tensor>]) -> Result<(), EngineError> {
        self.bump_version();
        self.reshard()?;
        tch::no_grad(|| {
            for (index, new) in fitting.iter().enumerate() {
                let Some(new) = new else { continue };
                self.params.all[index].before_set(&(0..new.numel() as i64))?;
                let param = &self.params.all[index];
                let own_shard = self.shards.own_shard(&self.params, index);
                match own_shard.zip(self.shards.shard_range(&self.params, index)) {
                    Some((shard, range)) => {
                        shard.shallow_clone().f_copy_(&slice_of(&new.f_contiguous()?, &range)?)?
                    }
                    None => param.tensor.shallow_clone().f_copy_(new)?,
                }
            }
            Ok::<_, TensorError>(())
        })?;
        Ok(())
    }

    /// Sets elements of a parameter or buffer, from `start` on in row-major order.
    ///
    /// # Errors
    /// There is no such parameter, it has fewer elements, or another dtype.
    pub(crate) fn set_slice(
        &mut self,
        name: &str,
        start: u64,
        values: &Tensor,
    ) -> Result<(), EngineError> {
        let problem = |problem: String| EngineError::StateMismatch {
            problems: vec![format!("{name}: {problem}")],
        };
        let index = self.params.all.iter().position(|param| param.has_name(name));
        let index = index.ok_or_else(|| problem("the stage has no such tensor".into()))?;
        let tensor = self.params.all[index].tensor.shallow_clone();
        let (count, all) = (values.numel() as u64, tensor.numel() as u64);
        let end = start.saturating_add(count);
        let (found, wanted) = (tensor::dtype_of(values)?, tensor::dtype_of(&tensor)?);
        if end > all || values.dim() != 1 || found != wanted {
            let found = format!("{found} {:?} from {start}", values.size());
            let problem_of = format!("expected a slice of {all} elements of {wanted}, got {found}");
            return Err(problem(problem_of));
        }
        self.bump_version();
        self.reshard()?;
        let slice = start.cast_signed()..end.cast_signed();
        self.params.all[index].before_set(&slice)?;
        let own_shard = self.shards.own_shard(&self.params, index);
        let (own, range) = match own_shard.zip(self.shards.shard_range(&self.params, index)) {
            Some((shard, range)) => (shard.shallow_clone(), range),
            None => (flat(&tensor)?, 0..all.cast_signed()),
        };
        Ok(copy_elements(values, &slice, &own, &range)?)
    }

    /// Whether a parameter or buffer has this name, here or in the stage that owns it.
    pub(crate) fn has_tensor(&self, name: &str) -> bool {
        self.named(name).is_some()
    }

    /// The dtype and the shape of the parameter or buffer of this name.
    pub(crate) fn meta_of(&self, name: &str) -> Result<Option<TensorMeta>, EngineError> {
        let meta = |param: &Param| {
            let shape = param.tensor.size().into_iter().map(i64::unsigned_abs).collect();
            Ok(TensorMeta { dtype: tensor::dtype_of(&param.tensor)?, shape })
        };
        self.named(name).map(meta).transpose()
    }

    fn named(&self, name: &str) -> Option<&Param> {
        self.params.all.iter().find(|param| param.has_name(name))
    }

    /// Finds the tensor for each parameter, in the stage's order. `None` if there is none.
    ///
    /// # Errors
    /// Tensors are unexpected, or of another shape or dtype, or missing and refused so. Each of
    /// them is listed.
    pub(crate) fn match_state(
        &self,
        state: Vec<(String, Tensor)>,
        missing: Missing,
    ) -> Result<Vec<Option<Tensor>>, EngineError> {
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
                problems.extend(
                    difference(&param.tensor, tensor)?.map(|problem| format!("{name}: {problem}")),
                );
            }
            if let [(first, tensor), others @ ..] = &found[..] {
                for (other, same) in others {
                    if !same.f_equal(tensor).unwrap_or(false) {
                        problems.push(format!(
                            "{other}: differs from {first}, with which it is shared"
                        ));
                    }
                }
            }
            let found = found.into_iter().next().map(|(_, tensor)| tensor);
            if found.is_none() && missing == Missing::Refused {
                problems.push(format!("{}: missing", param.name));
            }
            fitting.push(found);
        }
        let mut unexpected: Vec<String> = given.into_keys().collect();
        unexpected.sort();
        problems.extend(
            unexpected
                .into_iter()
                .map(|name| format!("{name}: unexpected, the stage has no such tensor")),
        );
        if problems.is_empty() {
            Ok(fitting)
        } else {
            Err(EngineError::StateMismatch { problems })
        }
    }
}

/// The difference of a tensor from the expected type, if any.
fn difference(expected: &Tensor, got: &Tensor) -> Result<Option<String>, TensorError> {
    let describe = |tensor: &Tensor| {
        Ok::<_, TensorError>(format!("{} {:?}", tensor::dtype_of(tensor)?, tensor.size()))
    };
    let (expected, got) = (describe(expected)?, describe(got)?);
    Ok((expected != got).then(|| format!("expected {expected}, got {got}")))
}
