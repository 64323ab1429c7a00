//! The whole state of a run in memory, and its digest.

use crate::data::tensor_payload::{meta_of, to_payload};
use crate::session::position::Counters;
use crate::{BossManError, StateDict};
use pipeline::{hash_tensor, StateDigest, StateName, TensorMeta};
use std::collections::BTreeMap;
use tch::Tensor;

/// The sizes of each parameter and buffer.
pub(super) type Sizes = BTreeMap<String, Vec<i64>>;

/// The whole state of a run, except for its files.
#[derive(Debug)]
pub struct TrainingState {
    /// Parameters and buffers.
    pub weights: StateDict,
    /// The optimizer state, by names such as `0.weight.exp_avg`.
    pub optimizer: BTreeMap<String, Tensor>,
    /// The counters of training.
    pub counters: Counters,
}

impl TrainingState {
    /// Its digest. Equal states have equal digests, whoever holds them.
    ///
    /// # Errors
    /// libtorch fails.
    pub fn digest(&self) -> Result<StateDigest, BossManError> {
        let mut hashes = self.counters.hashes();
        for (name, tensor) in self.weights.iter() {
            hashes.insert(name.to_string(), hash(tensor)?);
        }
        for (name, tensor) in &self.optimizer {
            hashes.insert(StateName::of_optimizer(name, None).to_string(), hash(tensor)?);
        }
        Ok(StateDigest::of(&hashes))
    }

    /// The state name and the meta of each tensor.
    pub(super) fn heads(&self) -> Result<Vec<(String, TensorMeta)>, BossManError> {
        let weights = self.weights.iter().map(|(name, of)| (StateName::of_parameter(name), of));
        let optimizer = self.optimizer.iter();
        let optimizer = optimizer.map(|(name, of)| (StateName::of_optimizer(name, None), of));
        weights.chain(optimizer).map(|(name, of)| Ok((name.to_string(), meta_of(of)?))).collect()
    }

    /// The sizes of its parameters and buffers.
    pub(super) fn sizes(&self) -> Sizes {
        self.weights.iter().map(|(name, tensor)| (name.to_string(), tensor.size())).collect()
    }

    /// Removes a tensor by its state name.
    pub(super) fn take(&mut self, name: &str) -> Option<Tensor> {
        let StateName { optimizer, name, .. } = StateName::parse(name);
        match optimizer {
            true => self.optimizer.remove(name),
            false => self.weights.0.remove(name),
        }
    }
}

impl StateDict {
    /// The digest of its tensors. Equal weights have equal digests.
    ///
    /// # Errors
    /// libtorch fails.
    pub fn digest(&self) -> Result<StateDigest, BossManError> {
        let hashes = self.iter().map(|(name, tensor)| Ok((name.to_string(), hash(tensor)?)));
        Ok(StateDigest::of(&hashes.collect::<Result<_, BossManError>>()?))
    }
}

pub(super) fn hash(tensor: &Tensor) -> Result<[u8; 32], BossManError> {
    let payload = to_payload(tensor)?;
    Ok(hash_tensor(&payload.meta, &payload.bytes))
}
