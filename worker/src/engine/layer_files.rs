//! What layers are built from in files, which arrive over the network: constant tensors, and
//! TorchScript files, which are programs.

use crate::engine::sizes::sizes;
use bytes::Bytes;
use layerspec::layers::{Constant, TorchScript};
use std::collections::{BTreeMap, HashMap};
use tch::{Device, Tensor};
use tensor::script::Script;
use tensor::TensorError;

/// Whether this worker runs TorchScript files, which have the rights of its user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TorchScriptPolicy {
    /// A model with TorchScript layers is refused.
    #[default]
    Refused,
    /// They run.
    Allowed,
}

/// The files of a run.
#[derive(Debug, Clone, Default)]
pub(crate) struct LayerFiles {
    pub(crate) policy: TorchScriptPolicy,
    /// By SHA-256.
    files: BTreeMap<String, Bytes>,
}

/// The constants of a stage by SHA-256 and shape, so that layers share their memory.
pub(crate) type Constants = HashMap<(Option<String>, Vec<u64>), Tensor>;

impl LayerFiles {
    /// Replaces the files.
    pub(crate) fn set(&mut self, files: BTreeMap<String, Bytes>) {
        self.files = files;
    }

    /// The number of files.
    pub(crate) fn len(&self) -> usize {
        self.files.len()
    }

    fn get(&self, path: &str, hash: Option<&String>) -> Result<&Bytes, TensorError> {
        let file = hash.and_then(|hash| self.files.get(hash));
        file.ok_or_else(|| TensorError::invalid(path, "the boss has not sent the file"))
    }

    /// The tensor of a layer, in memory of the host.
    pub(crate) fn constant(&self, layer: &Constant) -> Result<Tensor, TensorError> {
        let bytes = self.get(&layer.path, layer.sha256.as_ref())?;
        tensor::payload::from_bytes(layer.dtype, &sizes(&layer.shape)?, bytes.clone())
    }

    /// The tensor of a layer, on this device. `known` has those of other layers.
    pub(crate) fn constant_on(
        &self,
        layer: &Constant,
        device: Device,
        known: &mut Constants,
    ) -> Result<Tensor, TensorError> {
        let key = (layer.sha256.clone(), layer.shape.clone());
        let same = known
            .get(&key)
            .filter(|tensor| tensor::dtype_of(tensor).is_ok_and(|dtype| dtype == layer.dtype));
        if let Some(tensor) = same {
            return Ok(tensor.shallow_clone());
        }
        let tensor = self.constant(layer)?.f_to_device(device)?;
        known.insert(key, tensor.shallow_clone());
        Ok(tensor)
    }

    /// The module of a layer, whose parameters are those that the model file names.
    pub(crate) fn script(
        &self,
        layer: &TorchScript,
        device: Device,
    ) -> Result<Script, TensorError> {
        let wrong = |problem: String| TensorError::invalid(&layer.path, problem);
        if self.policy == TorchScriptPolicy::Refused {
            return Err(wrong(
                "it is a program, and this worker runs none that come over the network; start it \
                 with --allow-torchscript if you trust whoever starts the boss (`bossman train \
                 --allow-torchscript` does so for local workers)"
                    .into(),
            ));
        }
        let script = Script::load(self.get(&layer.path, layer.sha256.as_ref())?, device)?;
        let mut found: Vec<(&str, Vec<u64>)> = Vec::new();
        for (name, tensor) in script.param_names().iter().zip(script.initial()) {
            if tensor::dtype_of(&tensor)? != layerspec::DType::Float32 {
                return Err(wrong(format!("its parameter `{name}` is not float32")));
            }
            found.push((
                name.as_str(),
                tensor.size().iter().map(|size| size.unsigned_abs()).collect(),
            ));
        }
        let mut declared: Vec<_> =
            layer.params.iter().map(|param| (param.name.as_str(), param.shape.clone())).collect();
        let written = found
            .iter()
            .map(|(name, shape)| format!("{name}: {shape:?}"))
            .collect::<Vec<_>>()
            .join(", ");
        found.sort();
        declared.sort();
        match found == declared {
            true => Ok(script),
            false => Err(wrong(format!(
                "its parameters are others; write in the model file `params: {{{written}}}`"
            ))),
        }
    }

    /// The initial values of a layer's parameters, if a file has them.
    pub(crate) fn initial_params(
        &self,
        layer: &layerspec::Layer,
    ) -> Result<BTreeMap<String, Tensor>, TensorError> {
        let layerspec::LayerKind::TorchScript(layer) = &layer.kind else {
            return Ok(BTreeMap::new());
        };
        let script = self.script(layer, Device::Cpu)?;
        Ok(script.param_names().iter().cloned().zip(script.initial()).collect())
    }
}
