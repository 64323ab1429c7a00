//! What each kind of layer computes: one file each (or one for a family), and one line in the table below.

mod activation;
mod batch_norm;
mod conv;
mod dropout;
mod embedding;
mod join;
mod layer_norm;
mod linear;
mod pool;
mod shape;
mod softmax;

use super::stage::{Mode, Pass};
use super::Engine;
use layerspec::LayerKind;
use tch::{Device, Tensor};
use tensor::random::{Key, Stream};
use tensor::TensorError;

/// What a kind of layer computes. Its arguments are the spec's; its parameters come with the call.
pub(super) trait Module {
    /// The layer's outputs. They may share memory with the inputs, which are never written to.
    fn forward(&self, call: &Call<'_>) -> Result<Vec<Tensor>, TensorError>;
}

/// The table: a new kind of layer is a file above and a line here.
pub(super) fn module(kind: &LayerKind) -> &dyn Module {
    match kind {
        LayerKind::Linear(layer) => layer,
        LayerKind::ReLU(layer) => layer,
        LayerKind::GELU(layer) => layer,
        LayerKind::SiLU(layer) => layer,
        LayerKind::Sigmoid(layer) => layer,
        LayerKind::Tanh(layer) => layer,
        LayerKind::Softmax(layer) => layer,
        LayerKind::LogSoftmax(layer) => layer,
        LayerKind::Dropout(layer) => layer,
        LayerKind::LayerNorm(layer) => layer,
        LayerKind::Embedding(layer) => layer,
        LayerKind::Conv2d(layer) => layer,
        LayerKind::BatchNorm2d(layer) => layer,
        LayerKind::MaxPool2d(layer) => layer,
        LayerKind::AvgPool2d(layer) => layer,
        LayerKind::AdaptiveAvgPool2d(layer) => layer,
        LayerKind::Flatten(layer) => layer,
        LayerKind::Reshape(layer) => layer,
        LayerKind::Transpose(layer) => layer,
        LayerKind::Add(layer) => layer,
        LayerKind::Mul(layer) => layer,
        LayerKind::Concat(layer) => layer,
        LayerKind::Identity(layer) => layer,
    }
}

/// One call of one layer: its inputs, parameters and circumstances.
pub(super) struct Call<'a> {
    engine: &'a Engine,
    place: usize,
    pass: &'a Pass,
    inputs: &'a [Tensor],
}

impl<'a> Call<'a> {
    pub(super) fn new(engine: &'a Engine, place: usize, pass: &'a Pass, inputs: &'a [Tensor]) -> Self {
        Call { engine, place, pass, inputs }
    }

    /// All inputs, by port; at least one.
    fn inputs(&self) -> Result<(&'a Tensor, &'a [Tensor]), TensorError> {
        self.inputs.split_first().ok_or_else(|| TensorError::invalid("the layer", "expected an input, got none"))
    }

    /// The input of a layer that takes one.
    fn input(&self) -> Result<&'a Tensor, TensorError> {
        match self.inputs {
            [input] => Ok(input),
            inputs => Err(TensorError::invalid("the layer", format!("expected one input, got {}", inputs.len()))),
        }
    }

    /// A parameter or buffer that the layer has under this name, if its arguments give it one.
    fn optional(&self, name: &str) -> Option<&'a Tensor> {
        let params = &self.engine.params;
        let binding = params.bindings[self.place].iter().find(|binding| binding.name == name)?;
        Some(&params.all[binding.index].tensor)
    }

    /// A parameter that the layer always has.
    fn param(&self, name: &str) -> Result<&'a Tensor, TensorError> {
        self.optional(name).ok_or_else(|| TensorError::invalid("the layer", format!("has no parameter {name}")))
    }

    fn training(&self) -> bool {
        self.pass.mode == Mode::Train
    }

    /// Random numbers that depend on the run's seed, the step, the microbatch and the layer alone.
    fn random(&self, purpose: &str) -> Result<Stream, TensorError> {
        let stage = &self.engine.stage;
        Key::new(stage.seed)
            .text(purpose)
            .number(self.pass.step)
            .number(u64::from(self.pass.key.index))
            .text(&stage.layers[self.place].name)
            .stream(self.device())
    }

    fn device(&self) -> Device {
        self.engine.stage.device
    }
}

/// Sizes as libtorch takes them.
pub(super) fn sizes(sizes: &[u64]) -> Result<Vec<i64>, TensorError> {
    sizes.iter().map(|&size| self::size(size)).collect()
}

fn size(size: u64) -> Result<i64, TensorError> {
    i64::try_from(size).map_err(|_| TensorError::invalid("the layer", format!("a size of {size} is out of range")))
}
