//! Layers that not every worker has: those in Rust that this program was built with, and TorchScript files.

use super::call::OpContext;
use bytes::Bytes;
use layerspec::layers::{Args, Custom, TorchScript};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use tch::{Device, Tensor};
use tensor::random::Stream;
use tensor::script::Script;
use tensor::TensorError;

/// A layer of your own, in Rust. Its parameters stand in the model file; autograd finds their gradients and those of the
/// inputs.
pub trait CustomLayer: Send {
    /// The outputs, made of inputs and parameters by functions that autograd knows, in training and in use.
    ///
    /// The results must depend on the inputs, the parameters, [`ForwardContext::training`] and [`ForwardContext::random`] alone: a
    /// forward pass may be done a second time, and then it must give the same bits. Inputs must not be written to. What
    /// the layer itself remembers is saved nowhere and differs from worker to worker: there are no buffers. The outputs must
    /// be those that the model file says; others are an error.
    fn forward(&self, ctx: &ForwardContext<'_>) -> Result<Vec<Tensor>, TensorError>;
}

/// One call of a [`CustomLayer`].
pub struct ForwardContext<'a> {
    pub(super) ctx: &'a OpContext<'a>,
    pub(super) inputs: &'a [Tensor],
}

impl ForwardContext<'_> {
    /// All inputs.
    pub fn inputs(&self) -> &[Tensor] {
        self.inputs
    }

    /// The input at this place.
    pub fn input(&self, port: usize) -> Result<&Tensor, TensorError> {
        let missing = || TensorError::invalid("the layer", format!("has no input {port}"));
        self.inputs.get(port).ok_or_else(missing)
    }

    /// The parameter that the model file calls so.
    pub fn param(&self, name: &str) -> Result<&Tensor, TensorError> {
        let missing = || TensorError::invalid("the layer", format!("the model file gives it no parameter `{name}`"));
        self.ctx.optional_param(name).ok_or_else(missing)
    }

    /// Whether it is trained; else it is in use, and what is random in training is not.
    pub fn training(&self) -> bool {
        self.ctx.training()
    }

    /// Random numbers that depend on the run's seed, the step, the microbatch and the layer alone, and on what they are
    /// for.
    pub fn random(&self, purpose: &str) -> Result<Stream, TensorError> {
        self.ctx.random(purpose)
    }

    /// The device of the tensors.
    pub fn device(&self) -> Device {
        self.ctx.device()
    }
}

type LayerFactory = dyn Fn(&Args) -> Result<Box<dyn CustomLayer>, String> + Send + Sync;

/// The custom layers of a worker.
#[derive(Clone, Default)]
pub struct CustomLayers {
    custom: BTreeMap<String, Arc<LayerFactory>>,
    torchscript: bool,
    /// By SHA-256.
    files: BTreeMap<String, Bytes>,
}

impl fmt::Debug for CustomLayers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CustomLayers({:?}, {} files)", self.custom.keys(), self.files.len())
    }
}

impl CustomLayers {
    /// The same and one more layer in Rust; `make` reads its arguments.
    #[must_use]
    pub fn with<L: CustomLayer + 'static>(
        mut self,
        name: &str,
        make: impl Fn(&Args) -> Result<L, String> + Send + Sync + 'static,
    ) -> Self {
        let make = move |args: &Args| make(args).map(|layer| Box::new(layer) as Box<dyn CustomLayer>);
        self.custom.insert(name.to_owned(), Arc::new(make));
        self
    }

    /// Whether TorchScript files are run, which are programs.
    #[must_use]
    pub fn allowing_torchscript(mut self, allowed: bool) -> Self {
        self.torchscript = allowed;
        self
    }

    /// Keeps these files instead of others, by their SHA-256; none where no TorchScript is run.
    pub(crate) fn set_torchscript_files(&mut self, files: BTreeMap<String, Bytes>) {
        self.files = if self.torchscript { files } else { BTreeMap::new() };
    }

    pub(super) fn make_custom(&self, layer: &Custom) -> Result<Box<dyn CustomLayer>, TensorError> {
        let wrong = |problem: String| Err(TensorError::invalid(format!("the own layer `{}`", layer.layer), problem));
        let Some(make) = self.custom.get(&layer.layer) else {
            let names: Vec<&str> = self.custom.keys().map(String::as_str).collect();
            let has = if names.is_empty() { "none".to_owned() } else { format!("only {}", names.join(", ")) };
            return wrong(format!(
                "this worker was built without it, of own layers it has {has}; start the worker program that registers it"
            ));
        };
        make(&layer.args).or_else(wrong)
    }

    /// The module of a layer, whose parameters are those that the model file names.
    pub(super) fn load_script(&self, layer: &TorchScript, device: Device) -> Result<Script, TensorError> {
        let wrong = |problem: String| TensorError::invalid(&layer.path, problem);
        if !self.torchscript {
            return Err(wrong(
                "it is a program, and this worker runs none that come over the network; start it with \
                 --allow-torchscript if you trust whoever starts the boss (`bossman train --allow-torchscript` does so \
                 for local workers)"
                    .into(),
            ));
        }
        let file = layer.sha256.as_ref().and_then(|hash| self.files.get(hash));
        let script = Script::load(file.ok_or_else(|| wrong("the boss has not sent the file".into()))?, device)?;
        let mut found: Vec<(&str, Vec<u64>)> = Vec::new();
        for (name, tensor) in script.param_names().iter().zip(script.initial()) {
            if tensor::dtype_of(&tensor)? != layerspec::DType::Float32 {
                return Err(wrong(format!("its parameter `{name}` is not float32")));
            }
            found.push((name.as_str(), tensor.size().iter().map(|size| size.unsigned_abs()).collect()));
        }
        let mut declared: Vec<_> =
            layer.params.iter().map(|param| (param.name.as_str(), param.shape.clone())).collect();
        let written = found.iter().map(|(name, shape)| format!("{name}: {shape:?}")).collect::<Vec<_>>().join(", ");
        found.sort();
        declared.sort();
        match found == declared {
            true => Ok(script),
            false => Err(wrong(format!("its parameters are others; write in the model file `params: {{{written}}}`"))),
        }
    }

    /// The values with which a layer's parameters begin, where a file has them.
    pub(super) fn initial_params(&self, layer: &layerspec::Layer) -> Result<BTreeMap<String, Tensor>, TensorError> {
        let layerspec::LayerKind::TorchScript(layer) = &layer.kind else { return Ok(BTreeMap::new()) };
        let script = self.load_script(layer, Device::Cpu)?;
        Ok(script.param_names().iter().cloned().zip(script.initial()).collect())
    }
}
