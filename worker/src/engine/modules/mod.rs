//! The computation of each kind of layer: one file each (or one for a family), and one line in the
//! table below.
//!
//! A layer is made of ops, most of one. An op goes forward, and back in two halves: the gradients of its inputs, and later
//! those of its parameters. What it keeps in between is listed ([`SavedForBackward`]), so that nothing is kept without need.

mod activation;
mod attention;
mod batch_norm;
mod bilinear;
mod by_autograd;
mod conv;
mod dropout;
mod elementwise;
mod embedding;
mod image;
mod join;
mod layer_norm;
mod linear;
mod llama;
mod mask;
mod multihead_attention;
mod norm;
mod ops;
mod own;
mod part;
mod pool;
mod positions;
mod recurrent;
mod reduced;
mod rotary;
mod shape;
mod softmax;
mod transformer;

use super::call::OpContext;
use super::gradient::OpGradients;
use super::own::CustomLayers;
use by_autograd::AutogradOp;
use conv::Convolution;
use layerspec::{LayerKind, Precision};
use parking_lot::Mutex;
use recurrent::Recurrent;
use reduced::AutocastOp;
use std::fmt;
use tch::{Device, Kind, Tensor};
use tensor::{memory, TensorError};

/// A piece of a layer that goes forward and back by itself. Its arguments are the spec's; its parameters come with the call.
pub(super) trait Op: fmt::Debug + Send {
    /// The outputs, and what backward needs, which is nothing where [`OpContext::saves_for_backward`] says so.
    ///
    /// An input may be written to where nobody else refers to it ([`memory::is_uniquely_owned`]). Outputs may share memory with
    /// inputs.
    fn forward(&self, ctx: &OpContext<'_>, inputs: Vec<Tensor>) -> Result<ForwardOutput, TensorError>;

    /// The first half of backward: the gradients of the inputs that want one, from those of the outputs (at least one of
    /// them). The same goes for writing to `grads` as for inputs of the forward pass.
    fn backward(
        &self,
        ctx: &OpContext<'_>,
        saved: SavedForBackward,
        grads: Vec<Option<Tensor>>,
    ) -> Result<BackwardOutput, TensorError>;

    /// The second half: the gradients of the parameters, from what the first one left, added to those of earlier
    /// microbatches.
    fn backward_weight(&self, _: &OpContext<'_>, _: Vec<Tensor>, _: &mut OpGradients<'_>) -> Result<(), TensorError> {
        Ok(())
    }

    /// The source of its saved tensors.
    fn save_policy(&self) -> SavePolicy {
        SavePolicy::FromForward
    }

    /// Its saved tensors, for an op with [`SavePolicy::FromInputs`].
    fn save_inputs(&self, _: &OpContext<'_>, _: &[Tensor]) -> Result<SavedForBackward, TensorError> {
        Ok(SavedForBackward::default())
    }

    /// Whether computing it a second time takes little beside the memory of its output.
    fn is_cheap(&self) -> bool {
        false
    }

    /// Whether it is a product that mixed precision computes in a 16-bit type.
    fn runs_in_autocast(&self) -> bool {
        false
    }
}

/// The result of an op's forward pass.
#[derive(Debug)]
pub(super) struct ForwardOutput {
    pub(super) outputs: Vec<Tensor>,
    pub(super) saved: SavedForBackward,
}

/// The tensors that an op saves for its backward pass.
#[derive(Debug, Default)]
pub(super) struct SavedForBackward {
    pub(super) tensors: Vec<Tensor>,
    pub(super) sizes: Vec<Vec<i64>>,
}

/// The result of the first half of a backward pass.
#[derive(Debug, Default)]
pub(super) struct BackwardOutput {
    /// By port; `None` if no gradient is needed, or none arrives.
    pub(super) inputs: Vec<Option<Tensor>>,
    /// The tensors for the second half; nothing where there is nothing left to do.
    pub(super) weight_inputs: Vec<Tensor>,
}

/// The source of an op's saved tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SavePolicy {
    /// From running it.
    FromForward,
    /// From its inputs alone, by [`Op::save_inputs`].
    FromInputs,
    /// It keeps nothing.
    Nothing,
}

/// A layer as ops, over numbered slots: first its inputs, then what the ops make, in order.
#[derive(Debug)]
pub(super) struct LoweredLayer {
    pub(super) nodes: Vec<LoweredOp>,
    /// The slots of the layer's outputs.
    pub(super) outputs: Vec<usize>,
}

/// One op of a layer and what it is connected with.
#[derive(Debug)]
pub(super) struct LoweredOp {
    pub(super) op: Box<dyn Op>,
    /// Slots.
    pub(super) inputs: Vec<usize>,
    /// The number of slots that it makes.
    pub(super) outputs: usize,
    /// The op's names of its parameters and buffers, and the layer's.
    pub(super) params: Vec<(&'static str, &'static str)>,
}

impl LoweredLayer {
    /// The same with products in this type.
    pub(super) fn in_precision(self, precision: Precision) -> Self {
        let kind = match precision {
            Precision::F32 => return self,
            Precision::Bf16 => Kind::BFloat16,
            Precision::Fp16 => Kind::Half,
        };
        let autocast = |op: Box<dyn Op>| if op.runs_in_autocast() { Box::new(AutocastOp { op, kind }) } else { op };
        let nodes = self.nodes.into_iter().map(|lower| LoweredOp { op: autocast(lower.op), ..lower });
        LoweredLayer { nodes: nodes.collect(), outputs: self.outputs }
    }
}

/// The table: a new kind of layer is a file above and a line here.
pub(super) fn lower(
    kind: &LayerKind,
    inputs: usize,
    outputs: usize,
    custom_layers: &CustomLayers,
    device: Device,
) -> Result<LoweredLayer, TensorError> {
    let names: Vec<&'static str> = kind.params().iter().map(|param| param.name).collect();
    let op: Box<dyn Op> = match kind.clone() {
        LayerKind::MultiheadAttention(layer) => return Ok(multihead_attention::lower(&layer, inputs)),
        LayerKind::TransformerEncoderLayer(layer) => return Ok(transformer::lower_encoder(&layer, inputs)),
        LayerKind::TransformerDecoderLayer(layer) => return Ok(transformer::lower_decoder(&layer, inputs)),
        LayerKind::PositionalEncoding(layer) => return Ok(positions::lower(&layer)),
        LayerKind::LlamaAttention(layer) => return Ok(llama::lower_attention(&layer, inputs)),
        LayerKind::LlamaMLP(layer) => return Ok(llama::lower_mlp(&layer)),
        LayerKind::Conv1d(layer) => return Ok(layer.lower()),
        LayerKind::Conv2d(layer) => return Ok(layer.lower()),
        LayerKind::Conv3d(layer) => return Ok(layer.lower()),
        LayerKind::ConvTranspose1d(layer) => return Ok(layer.lower()),
        LayerKind::ConvTranspose2d(layer) => return Ok(layer.lower()),
        LayerKind::ConvTranspose3d(layer) => return Ok(layer.lower()),
        LayerKind::Linear(layer) => Box::new(layer),
        LayerKind::Bilinear(layer) => Box::new(AutogradOp(layer)),
        LayerKind::ReLU(layer) => Box::new(layer),
        LayerKind::LeakyReLU(layer) => Box::new(AutogradOp(layer)),
        LayerKind::PReLU(layer) => Box::new(AutogradOp(layer)),
        LayerKind::ReLU6(layer) => Box::new(AutogradOp(layer)),
        LayerKind::ELU(layer) => Box::new(AutogradOp(layer)),
        LayerKind::CELU(layer) => Box::new(AutogradOp(layer)),
        LayerKind::SELU(layer) => Box::new(AutogradOp(layer)),
        LayerKind::GELU(layer) => Box::new(layer),
        LayerKind::SiLU(layer) => Box::new(layer),
        LayerKind::Mish(layer) => Box::new(AutogradOp(layer)),
        LayerKind::Softplus(layer) => Box::new(AutogradOp(layer)),
        LayerKind::Sigmoid(layer) => Box::new(layer),
        LayerKind::LogSigmoid(layer) => Box::new(AutogradOp(layer)),
        LayerKind::Tanh(layer) => Box::new(layer),
        LayerKind::Softsign(layer) => Box::new(AutogradOp(layer)),
        LayerKind::Hardtanh(layer) => Box::new(AutogradOp(layer)),
        LayerKind::Hardsigmoid(layer) => Box::new(AutogradOp(layer)),
        LayerKind::Hardswish(layer) => Box::new(AutogradOp(layer)),
        LayerKind::Hardshrink(layer) => Box::new(AutogradOp(layer)),
        LayerKind::Softshrink(layer) => Box::new(AutogradOp(layer)),
        LayerKind::Tanhshrink(layer) => Box::new(AutogradOp(layer)),
        LayerKind::Threshold(layer) => Box::new(AutogradOp(layer)),
        LayerKind::GLU(layer) => Box::new(AutogradOp(layer)),
        LayerKind::Softmax(layer) => Box::new(layer),
        LayerKind::Softmin(layer) => Box::new(AutogradOp(layer)),
        LayerKind::LogSoftmax(layer) => Box::new(layer),
        LayerKind::Dropout(layer) => Box::new(dropout::DropoutOp::of(&layer)),
        LayerKind::Dropout2d(layer) => Box::new(dropout::DropoutOp::of_channels(&layer)),
        LayerKind::LayerNorm(layer) => Box::new(layer),
        LayerKind::RMSNorm(layer) => Box::new(AutogradOp(layer)),
        LayerKind::GroupNorm(layer) => Box::new(AutogradOp(layer)),
        LayerKind::BatchNorm1d(layer) => Box::new(AutogradOp(layer)),
        LayerKind::BatchNorm2d(layer) => Box::new(AutogradOp(layer)),
        LayerKind::InstanceNorm2d(layer) => Box::new(AutogradOp(layer)),
        LayerKind::Embedding(layer) => Box::new(layer),
        LayerKind::LearnedPositions(layer) => Box::new(AutogradOp(layer)),
        LayerKind::RotaryEmbedding(layer) => Box::new(AutogradOp(layer)),
        LayerKind::RNN(layer) => Box::new(AutogradOp(Recurrent::rnn(&layer, names.clone()))),
        LayerKind::GRU(layer) => Box::new(AutogradOp(Recurrent::gru(&layer, names.clone()))),
        LayerKind::LSTM(layer) => Box::new(AutogradOp(Recurrent::lstm(&layer, names.clone()))),
        LayerKind::MaxPool1d(layer) => Box::new(AutogradOp(layer)),
        LayerKind::MaxPool2d(layer) => Box::new(AutogradOp(layer)),
        LayerKind::AvgPool1d(layer) => Box::new(AutogradOp(layer)),
        LayerKind::AvgPool2d(layer) => Box::new(AutogradOp(layer)),
        LayerKind::AdaptiveAvgPool1d(layer) => Box::new(AutogradOp(layer)),
        LayerKind::AdaptiveAvgPool2d(layer) => Box::new(AutogradOp(layer)),
        LayerKind::AdaptiveMaxPool2d(layer) => Box::new(AutogradOp(layer)),
        LayerKind::Upsample(layer) => Box::new(AutogradOp(layer)),
        LayerKind::PixelShuffle(layer) => Box::new(AutogradOp(layer)),
        LayerKind::PixelUnshuffle(layer) => Box::new(AutogradOp(layer)),
        LayerKind::Pad(layer) => Box::new(AutogradOp(layer)),
        LayerKind::Flatten(layer) => Box::new(layer),
        LayerKind::Reshape(layer) => Box::new(layer),
        LayerKind::Transpose(layer) => Box::new(layer),
        LayerKind::Add(layer) => Box::new(layer),
        LayerKind::Mul(layer) => Box::new(AutogradOp(layer)),
        LayerKind::Concat(layer) => Box::new(layer),
        LayerKind::Identity(layer) => Box::new(layer),
        LayerKind::Unflatten(layer) => Box::new(layer),
        LayerKind::Permute(layer) => Box::new(layer),
        LayerKind::Squeeze(layer) => Box::new(layer),
        LayerKind::Unsqueeze(layer) => Box::new(layer),
        LayerKind::Slice(layer) => Box::new(AutogradOp(layer)),
        LayerKind::Select(layer) => Box::new(AutogradOp(layer)),
        LayerKind::Split(layer) => Box::new(AutogradOp(layer)),
        LayerKind::Chunk(layer) => Box::new(AutogradOp(layer)),
        LayerKind::Stack(layer) => Box::new(AutogradOp(layer)),
        LayerKind::Sub(layer) => Box::new(AutogradOp(layer)),
        LayerKind::MatMul(layer) => Box::new(AutogradOp(layer)),
        LayerKind::Scale(layer) => Box::new(layer),
        LayerKind::Mean(layer) => Box::new(AutogradOp(layer)),
        LayerKind::Sum(layer) => Box::new(AutogradOp(layer)),
        LayerKind::MaskedFill(layer) => Box::new(AutogradOp(layer)),
        LayerKind::Custom(layer) => {
            Box::new(AutogradOp(own::RustLayer { layer: custom_layers.make_custom(&layer)?, out: layer.out }))
        }
        LayerKind::TorchScript(layer) => {
            let script = Mutex::new(custom_layers.load_script(&layer, device)?);
            Box::new(AutogradOp(own::TorchScriptLayer { script, out: layer.out }))
        }
    };
    let params = names.iter().map(|name| (*name, *name)).collect();
    // A layer of one op.
    let nodes = vec![LoweredOp { op, inputs: (0..inputs).collect(), outputs, params }];
    Ok(LoweredLayer { nodes, outputs: (inputs..inputs + outputs).collect() })
}

impl ForwardOutput {
    /// Of an op with one output that keeps these tensors.
    fn with_tensors(output: Tensor, tensors: Vec<Tensor>) -> Self {
        ForwardOutput { outputs: vec![output], saved: SavedForBackward { tensors, sizes: Vec::new() } }
    }

    /// Of an op with one output whose backward pass needs these sizes.
    fn with_sizes(output: Tensor, sizes: Vec<Vec<i64>>) -> Self {
        ForwardOutput { outputs: vec![output], saved: SavedForBackward { tensors: Vec::new(), sizes } }
    }
}

impl BackwardOutput {
    /// Of an op with one input, where all is done.
    fn single_input_grad(input: Tensor) -> Self {
        BackwardOutput { inputs: vec![Some(input)], weight_inputs: Vec::new() }
    }
}

impl SavedForBackward {
    /// The tensors of an op that saves `N` of them.
    fn tensors<const N: usize>(self) -> Result<[Tensor; N], TensorError> {
        let count = self.tensors.len();
        self.tensors.try_into().map_err(|_| layer_error(format!("{N} tensors were to be kept, {count} are")))
    }
}

/// The input of an op that takes one.
fn single_input(inputs: Vec<Tensor>) -> Result<Tensor, TensorError> {
    let count = inputs.len();
    match <[Tensor; 1]>::try_from(inputs) {
        Ok([input]) => Ok(input),
        Err(_) => Err(layer_error(format!("expected one input, got {count}"))),
    }
}

/// The gradient of an op with one output.
fn single_grad(grads: Vec<Option<Tensor>>) -> Result<Tensor, TensorError> {
    grads.into_iter().next().flatten().ok_or_else(|| layer_error("no gradient arrived"))
}

fn layer_error(problem: impl Into<String>) -> TensorError {
    TensorError::invalid("the layer", problem)
}

/// `in_place` where nobody else refers to the tensor, else `fresh`.
fn in_place_or_fresh<T>(
    mut tensor: Tensor,
    in_place: impl FnOnce(&mut Tensor) -> Result<T, tch::TchError>,
    fresh: impl FnOnce(&Tensor) -> Result<Tensor, tch::TchError>,
) -> Result<Tensor, TensorError> {
    if memory::is_uniquely_owned(&tensor) {
        in_place(&mut tensor)?;
        return Ok(tensor);
    }
    Ok(fresh(&tensor)?)
}

/// Sizes as libtorch takes them.
pub(super) fn sizes(sizes: &[u64]) -> Result<Vec<i64>, TensorError> {
    sizes.iter().map(|&size| self::size(size)).collect()
}

/// Height and width as libtorch takes them.
fn pair([height, width]: [u64; 2]) -> Result<[i64; 2], TensorError> {
    Ok([size(height)?, size(width)?])
}

fn size(size: u64) -> Result<i64, TensorError> {
    i64::try_from(size).map_err(|_| layer_error(format!("a size of {size} is out of range")))
}
