//! TorchScript files: layers that are programs and arrive over the network.

use bytes::Bytes;
use layerspec::layers::TorchScript;
use std::collections::BTreeMap;
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

/// The TorchScript files of a run.
#[derive(Debug, Clone, Default)]
pub(crate) struct ScriptFiles {
    pub(crate) policy: TorchScriptPolicy,
    /// By SHA-256.
    files: BTreeMap<String, Bytes>,
}

impl ScriptFiles {
    /// Replaces the files. A worker that refuses TorchScript keeps none.
    pub(crate) fn set(&mut self, files: BTreeMap<String, Bytes>) {
        self.files = match self.policy {
            TorchScriptPolicy::Allowed => files,
            TorchScriptPolicy::Refused => BTreeMap::new(),
        };
    }

    /// The number of files.
    pub(crate) fn len(&self) -> usize {
        self.files.len()
    }

    /// The module of a layer, whose parameters are those that the model file names.
    pub(crate) fn load(&self, layer: &TorchScript, device: Device) -> Result<Script, TensorError> {
        let wrong = |problem: String| TensorError::invalid(&layer.path, problem);
        if self.policy == TorchScriptPolicy::Refused {
            return Err(wrong(
                "it is a program, and this worker runs none that come over the network; start it \
                 with --allow-torchscript if you trust whoever starts the boss (`bossman train \
                 --allow-torchscript` does so for local workers)"
                    .into(),
            ));
        }
        let file = layer.sha256.as_ref().and_then(|hash| self.files.get(hash));
        let script = Script::load(
            file.ok_or_else(|| wrong("the boss has not sent the file".into()))?,
            device,
        )?;
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
        let script = self.load(layer, Device::Cpu)?;
        Ok(script.param_names().iter().cloned().zip(script.initial()).collect())
    }
}
