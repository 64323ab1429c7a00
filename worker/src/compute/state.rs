//! Exports and loads weights and optimizer state by name.

use crate::compute::failures::{engine_failure, tensor_failure};
use crate::compute::payloads::{hash_meta, hash_payload, meta_of, to_payload};
use crate::compute::stage_compute::StageCompute;
use crate::compute::state_view::{can_be_viewed, SnapshotPoint};
use crate::compute::task_tensors::to_tensor;
use crate::engine::{
    host_copy, Engine, EngineError, OptimizerStateScope, OptimizerTensor, StateTensor,
};
use bytes::Bytes;
use data::HashedWeight;
use link::Payload;
use pipeline::ids::StageId;
use pipeline::message::Failure;
use pipeline::task::Outcome;
use pipeline::{hash_tensor, slices, StateForm, StateName, StateSlice, SLICE_BYTES};
use runtime::TaskTensor;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt::Display;
use tch::Tensor;
use tensor::parts::concat_shards;
use tracing::debug;

impl StageCompute {
    /// Loads some parameters, buffers and tensors of optimizer state, or slices of them.
    pub(super) fn load(&mut self, tensors: &[(String, TaskTensor)]) -> Result<(), Failure> {
        debug!(tensors = tensors.len(), "a part of the state arrived");
        let mut whole = Vec::new();
        for (text, payload) in tensors {
            let StateName { optimizer, name, start } = StateName::parse(text);
            if optimizer {
                let values = to_tensor(payload).map_err(tensor_failure)?;
                let owner = self.owner_of(name)?;
                let engine = self.stage(owner)?;
                engine.load_optimizer_part(name, start, &values).map_err(engine_failure)?;
            } else if let Some(start) = start {
                let values = to_tensor(payload).map_err(tensor_failure)?;
                for stage in self.stages_of(name)? {
                    self.stage(stage)?.load_slice(name, start, &values).map_err(engine_failure)?;
                }
            } else {
                whole.push((text.clone(), payload.clone()));
            }
        }
        for (stage, tensors) in self.by_stage(&whole)? {
            self.stage(stage)?.load_part(tensors).map_err(engine_failure)?;
        }
        Ok(())
    }

    /// Loads some parameters and buffers that this worker reads from its own files, one after the
    /// other.
    pub(super) fn load_from_files(
        &mut self,
        sources: &[(String, TaskTensor)],
    ) -> Result<(), Failure> {
        debug!(tensors = sources.len(), "places of parameters arrived");
        let Some(folder) = self.weights_folder.clone() else {
            return Err(Failure::new(
                "the run has `on: workers` in its weights, but this worker was not told where its \
                 files are; start it with --weights FOLDER",
            ));
        };
        for (name, source) in sources {
            let of_name = |problem: &dyn Display| Failure::new(format!("`{name}`: {problem}"));
            let weight = HashedWeight::decode(&source.to_host()?.bytes);
            let weight = weight.map_err(|problem| of_name(&problem))?;
            let stages = self.stages_of(name)?;
            // Before memory is taken for it.
            for stage in &stages {
                let expected = self.stage(*stage)?.meta_of(name).map_err(engine_failure)?;
                match (expected, &weight.source.meta) {
                    (Some(expected), found) if expected == *found => {}
                    (Some(expected), found) => {
                        return Err(of_name(&format!("expected {expected}, got {found}")));
                    }
                    (None, _) => return Err(of_name(&"no layer here has such a tensor")),
                }
            }
            let tensor = weight.read(&folder).map_err(|problem| of_name(&problem))?;
            for stage in stages {
                let tensors = vec![(name.clone(), tensor.shallow_clone())];
                self.stage(stage)?.load_part(tensors).map_err(engine_failure)?;
            }
        }
        Ok(())
    }

    /// The tensors of each stage.
    fn by_stage(
        &self,
        tensors: &[(String, TaskTensor)],
    ) -> Result<BTreeMap<StageId, Vec<(String, Tensor)>>, Failure> {
        let mut by_stage: BTreeMap<StageId, Vec<(String, Tensor)>> = BTreeMap::new();
        for (name, payload) in tensors {
            for stage in self.stages_of(name)? {
                let tensor = to_tensor(payload).map_err(tensor_failure)?;
                by_stage.entry(stage).or_default().push((name.clone(), tensor));
            }
        }
        Ok(by_stage)
    }

    /// Loads parameters, buffers and optimizer state.
    pub(super) fn load_with_optimizer(
        &mut self,
        tensors: Vec<(String, TaskTensor)>,
    ) -> Result<(), Failure> {
        debug!(tensors = tensors.len(), "parameters and optimizer state arrived");
        let (optimizer_tensors, state): (Vec<_>, Vec<_>) =
            tensors.into_iter().partition(|(name, _)| StateName::parse(name).optimizer);
        for (stage, tensors) in self.by_stage(&state)? {
            self.stage(stage)?.load_state(tensors).map_err(engine_failure)?;
        }
        let mut by_stage: BTreeMap<StageId, Vec<(String, Tensor)>> = BTreeMap::new();
        let mut parts: BTreeMap<(StageId, &str), BTreeMap<u64, Tensor>> = BTreeMap::new();
        for (name, payload) in &optimizer_tensors {
            let StateName { name, start, .. } = StateName::parse(name);
            let stage = self.owner_of(name)?;
            let tensor = to_tensor(payload).map_err(tensor_failure)?;
            match start {
                None => by_stage.entry(stage).or_default().push((name.to_string(), tensor)),
                // Each replica has its shard of a sharded parameter.
                Some(start) => drop(parts.entry((stage, name)).or_default().insert(start, tensor)),
            }
        }
        for ((stage, name), parts) in parts {
            let of_param = name.rsplit_once('.').map_or("", |(param, _)| param);
            let trained = self.stages.get(&stage).into_iter().flat_map(Engine::trained_params);
            let sizes = trained
                .into_iter()
                .find(|(own, _)| *own == of_param)
                .map(|(_, param)| param.size());
            let whole = concat_shards(parts, &sizes.unwrap_or_default());
            let whole = whole
                .map_err(|problem| Failure::new(format!("optimizer state `{name}`: {problem}")))?;
            by_stage.entry(stage).or_default().push((name.to_string(), whole));
        }
        for (stage, engine) in &mut self.stages {
            engine
                .load_optimizer_state(by_stage.remove(stage).unwrap_or_default())
                .map_err(engine_failure)?;
        }
        Ok(())
    }

    /// The stage that owns the parameter of this optimizer state (`0.weight.exp_avg`).
    fn owner_of(&self, state: &str) -> Result<StageId, Failure> {
        let of_param = state.rsplit_once('.').map_or("", |(param, _)| param);
        let mut stages = self.stages.iter();
        let owner =
            stages.find(|(_, engine)| engine.trained_params().any(|(own, _)| own == of_param));
        match owner {
            Some((stage, _)) => Ok(*stage),
            None => Err(Failure::new(format!(
                "optimizer state of `{of_param}`, which is not trained here"
            ))),
        }
    }

    /// The stages that load a tensor of this name.
    fn stages_of(&self, name: &str) -> Result<Vec<StageId>, Failure> {
        match self.stages_with_tensor(name) {
            none if none.is_empty() => {
                Err(Failure::new(format!("no layer on this worker has a tensor `{name}`")))
            }
            stages => Ok(stages),
        }
    }

    /// The stages that use a parameter or buffer of this name. If no stage does, the stage whose
    /// layer begins the name. It then reports the name as unknown.
    fn stages_with_tensor(&self, name: &str) -> Vec<StageId> {
        let having = self.stages.iter().filter(|(_, engine)| engine.has_tensor(name));
        let having: Vec<StageId> = having.map(|(stage, _)| *stage).collect();
        let of_layer = |layer: &layerspec::Layer| {
            name.strip_prefix(&layer.name).is_some_and(|rest| rest.starts_with('.'))
        };
        let mut owners =
            self.stages.iter().filter(|(_, engine)| engine.stage().layers.iter().any(of_layer));
        if having.is_empty() {
            owners.next().map(|(stage, _)| *stage).into_iter().collect()
        } else {
            having
        }
    }

    /// Hands out state. What stays until the next update is sliced and hashed where it lies, and
    /// later; see [`OpenViews`](crate::compute::state_view::OpenViews).
    pub(super) fn snapshot(
        &mut self,
        parameters: &[StageId],
        optimizer: &[StageId],
        form: StateForm,
    ) -> Result<Outcome<TaskTensor>, Failure> {
        let tensors = self.state_in_place(parameters, optimizer).map_err(engine_failure)?;
        let point = SnapshotPoint::now(self.device, self.location).map_err(tensor_failure)?;
        self.views.forget_closed();
        let (mut heads, mut sent) = (Vec::new(), Vec::new());
        for StateTensor { name, tensor, stays_until_update } in tensors {
            let meta = meta_of(&tensor).map_err(tensor_failure)?;
            let in_place = stays_until_update && can_be_viewed(&tensor, &meta);
            // Shards of optimizer state are not hashed here: they travel in slices.
            let hashed = form == StateForm::Hashes && StateName::parse(&name).start.is_none();
            heads.push((name.clone(), if hashed { hash_meta() } else { meta }));
            match form {
                StateForm::Tensors => sent.push((name, TaskTensor::from(copied(&tensor)?))),
                _ if hashed && in_place => {
                    let view = self.views.open_hash(&tensor, &point).map_err(tensor_failure)?;
                    sent.push((name, view));
                }
                _ if hashed => sent.push((name, hash_payload(digest(&tensor)?).into())),
                _ if in_place => {
                    let views = self.views.open_slices(&name, &tensor, SLICE_BYTES, &point);
                    sent.extend(views.map_err(tensor_failure)?);
                }
                StateForm::Slices | StateForm::Hashes => {
                    let parts = sliced(&name, &copied(&tensor)?, SLICE_BYTES).into_iter();
                    sent.extend(parts.map(|(name, part)| (name, TaskTensor::from(part))));
                }
            }
        }
        Ok(Outcome::State { heads, tensors: sent })
    }

    /// The state of these stages, in the memory that they use.
    fn state_in_place(
        &self,
        parameters: &[StageId],
        optimizer: &[StageId],
    ) -> Result<Vec<StateTensor>, EngineError> {
        let mut tensors = Vec::new();
        for (stage, engine) in &self.stages {
            let all = parameters.contains(stage);
            if all {
                tensors.extend(engine.state_in_place()?);
            }
            if optimizer.contains(stage) {
                let scope = match all {
                    true => OptimizerStateScope::All,
                    false => OptimizerStateScope::Shards,
                };
                let state = engine.optimizer_state_in_place(scope)?.into_iter();
                tensors.extend(state.map(|OptimizerTensor { name, start, tensor }| StateTensor {
                    name: StateName::of_optimizer(&name, start).to_string(),
                    tensor,
                    stays_until_update: true,
                }));
            }
        }
        Ok(tensors)
    }

    pub(super) fn digests(&self) -> Result<Outcome<TaskTensor>, Failure> {
        let mut digests = Vec::new();
        for (stage, engine) in &self.stages {
            for (name, value) in engine.replicated_trained_params() {
                digests.push((*stage, name.to_string(), digest(value)?));
            }
        }
        Ok(Outcome::Digests { digests })
    }

    /// Replaces what the run's layers are built from in files.
    pub(super) fn set_files(&mut self, files: Vec<(String, TaskTensor)>) -> Result<(), Failure> {
        self.custom_layers.set_files(verify_sha256(files)?);
        Ok(())
    }
}

/// A tensor in slices of at most this number of bytes, over the same memory.
fn sliced(name: &str, payload: &Payload, most: u64) -> Vec<(String, Payload)> {
    let part = |StateSlice { name, meta, bytes }: StateSlice| {
        (name, Payload { meta, bytes: payload.bytes.slice(bytes) })
    };
    slices(name, &payload.meta, most).into_iter().map(part).collect()
}

fn digest(value: &Tensor) -> Result<[u8; 32], Failure> {
    let payload = to_payload(value).map_err(tensor_failure)?;
    Ok(hash_tensor(&payload.meta, &payload.bytes))
}

/// A copy in host memory.
fn copied(tensor: &Tensor) -> Result<Payload, Failure> {
    host_copy(tensor).and_then(|copy| to_payload(&copy)).map_err(tensor_failure)
}

/// Checks that files have the SHA-256 that names them.
fn verify_sha256(files: Vec<(String, TaskTensor)>) -> Result<BTreeMap<String, Bytes>, Failure> {
    let file = |(hash, payload): (String, TaskTensor)| {
        let payload = payload.to_host()?;
        let found = Sha256::digest(&payload.bytes)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>();
        match found == hash {
            true => Ok((hash, payload.bytes)),
            false => {
                Err(Failure::new(format!("a file came with the SHA-256 {found} instead of {hash}")))
            }
        }
    };
    files.into_iter().map(file).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use layerspec::DType;
    use pipeline::TensorMeta;

    #[test]
    fn slices_lie_in_the_memory_of_their_tensor() {
        let meta = TensorMeta { dtype: DType::Int64, shape: vec![3, 1] };
        let payload = Payload { meta, bytes: (0..24).collect::<Vec<u8>>().into() };
        let parts = sliced("0.weight", &payload, 16);
        let names: Vec<&str> = parts.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["slice/0.weight[0]", "slice/0.weight[2]"]);
        let joined: Vec<u8> = parts.iter().flat_map(|(_, part)| part.bytes.to_vec()).collect();
        assert_eq!(joined, payload.bytes);
        assert_eq!(parts[0].1.bytes.as_ptr(), payload.bytes.as_ptr());
        let sizes: Vec<u64> = parts.iter().flat_map(|(_, part)| part.meta.shape.clone()).collect();
        assert_eq!(sizes, [2, 1]);
    }
}
