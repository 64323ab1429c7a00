//! Layers that not every worker has: in Rust, built into this program, or in TorchScript files.

use crate::engine::layer_files::{LayerFiles, TorchScriptPolicy};
use crate::engine::layers::op_context::OpContext;
use bytes::Bytes;
use layerspec::layers::{Args, Custom};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use tch::{Device, Tensor};
use tensor::random::Stream;
use tensor::TensorError;

/// A layer of your own, in Rust. Its parameters stand in the model file; autograd finds their
/// gradients and those of the inputs.
pub trait CustomLayer: Send {
    /// Computes the outputs from inputs and parameters with functions that autograd knows, in
    /// training and in evaluation.
    ///
    /// The results must depend only on the inputs, the parameters, [`ForwardContext::training`] and
    /// [`ForwardContext::random`]. A forward pass may be repeated, and must then give the same
    /// bits. Inputs must not be written to. A layer has no buffers, because its own state is not
    /// saved and would differ from worker to worker. The outputs must be those that the model file
    /// declares. Others are an error.
    fn forward(&self, ctx: &ForwardContext<'_>) -> Result<Vec<Tensor>, TensorError>;
}

/// One call of a [`CustomLayer`].
pub struct ForwardContext<'a> {
    pub(crate) ctx: &'a OpContext<'a>,
    pub(crate) inputs: &'a [Tensor],
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

    /// The parameter of this name in the model file.
    pub fn param(&self, name: &str) -> Result<&Tensor, TensorError> {
        let missing = || {
            TensorError::invalid(
                "the layer",
                format!("the model file gives it no parameter `{name}`"),
            )
        };
        self.ctx.optional_param(name).ok_or_else(missing)
    }

    /// Whether this is training. In evaluation nothing is random.
    pub fn training(&self) -> bool {
        self.ctx.training()
    }

    /// Random numbers that depend only on the run's seed, the step, the microbatch, the layer, and
    /// `purpose`.
    pub fn random(&self, purpose: &str) -> Result<Stream, TensorError> {
        self.ctx.random.stream(purpose, self.ctx.device())
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
    files: LayerFiles,
}

impl fmt::Debug for CustomLayers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CustomLayers({:?}, {} files)", self.custom.keys(), self.files.len())
    }
}

impl CustomLayers {
    /// Adds a layer in Rust. `make` reads its arguments.
    #[must_use]
    pub fn with<L: CustomLayer + 'static>(
        mut self,
        name: &str,
        make: impl Fn(&Args) -> Result<L, String> + Send + Sync + 'static,
    ) -> Self {
        let make =
            move |args: &Args| make(args).map(|layer| Box::new(layer) as Box<dyn CustomLayer>);
        self.custom.insert(name.to_owned(), Arc::new(make));
        self
    }

    /// Sets whether TorchScript files, which are programs, run.
    #[must_use]
    pub fn with_torchscript(mut self, policy: TorchScriptPolicy) -> Self {
        self.files.policy = policy;
        self
    }

    /// What layers are built from in files.
    pub(crate) fn files(&self) -> &LayerFiles {
        &self.files
    }

    /// Replaces the files, by their SHA-256.
    pub(crate) fn set_files(&mut self, files: BTreeMap<String, Bytes>) {
        self.files.set(files);
    }

    pub(crate) fn make_custom(&self, layer: &Custom) -> Result<Box<dyn CustomLayer>, TensorError> {
        let wrong = |problem: String| {
            Err(TensorError::invalid(format!("the own layer `{}`", layer.layer), problem))
        };
        let Some(make) = self.custom.get(&layer.layer) else {
            let names: Vec<&str> = self.custom.keys().map(String::as_str).collect();
            let has = if names.is_empty() {
                "none".to_owned()
            } else {
                format!("only {}", names.join(", "))
            };
            return wrong(format!(
                "this worker was built without it, of own layers it has {has}; start the worker \
                 program that registers it"
            ));
        };
        make(&layer.args).or_else(wrong)
    }
}
