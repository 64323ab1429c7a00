//! What each kind of layer computes: one file each (or one for a family), and one line in the table below.
//!
//! A layer is made of ops, most of one. An op goes forward, and back in two halves: the gradients of its inputs, and later
//! those of its parameters. What it keeps in between is listed ([`Kept`]), so that nothing is kept without need.

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

use super::call::Call;
use super::gradient::Gradients;
use super::own::OwnLayers;
use by_autograd::ByAutograd;
use conv::Convolution;
use layerspec::{LayerKind, Precision};
use parking_lot::Mutex;
use recurrent::Recurrent;
use reduced::Reduced;
use std::fmt;
use tch::{Device, Kind, Tensor};
use tensor::{memory, TensorError};

/// A piece of a layer that goes forward and back by itself. Its arguments are the spec's; its parameters come with the call.
pub(super) trait Op: fmt::Debug + Send {
    /// The outputs, and what backward needs, which is nothing where [`Call::keeps`] says so.
    ///
    /// An input may be written to where nobody else refers to it ([`memory::is_alone`]). Outputs may share memory with
    /// inputs.
    fn forward(&self, call: &Call<'_>, inputs: Vec<Tensor>) -> Result<Run, TensorError>;

    /// The first half of backward: the gradients of the inputs that want one, from those of the outputs (at least one of
    /// them). The same goes for writing to `grads` as for inputs of the forward pass.
    fn backward(&self, call: &Call<'_>, kept: Kept, grads: Vec<Option<Tensor>>) -> Result<Back, TensorError>;

    /// The second half: the gradients of the parameters, from what the first one left, added to those of earlier
    /// microbatches.
    fn backward_weight(&self, _: &Call<'_>, _: Vec<Tensor>, _: &mut Gradients<'_>) -> Result<(), TensorError> {
        Ok(())
    }

    /// Where what it keeps comes from.
    fn keeps(&self) -> Keeps {
        Keeps::OfItsRun
    }

    /// What it keeps, for an op with [`Keeps::Inputs`].
    fn keep(&self, _: &Call<'_>, _: &[Tensor]) -> Result<Kept, TensorError> {
        Ok(Kept::default())
    }

    /// Whether computing it a second time takes little beside the memory of its output.
    fn is_cheap(&self) -> bool {
        false
    }

    /// Whether it is a product that mixed precision computes in a 16-bit type.
    fn reduces(&self) -> bool {
        false
    }
}

/// What an op leaves in its forward pass.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) outputs: Vec<Tensor>,
    pub(super) kept: Kept,
}

/// What an op keeps for its backward pass.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pub(super) tensors: Vec<Tensor>,
    pub(super) sizes: Vec<Vec<i64>>,
}

/// What the first half of a backward pass leaves.
#[derive(Debug, Default)]
pub(super) struct Back {
    /// By port; none where no gradient is wanted, or none arrives.
    pub(super) inputs: Vec<Option<Tensor>>,
    /// What the second half needs; nothing where there is nothing left to do.
    pub(super) rest: Vec<Tensor>,
}

/// Where what an op keeps comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keeps {
    /// From running it.
    OfItsRun,
    /// From its inputs alone, by [`Op::keep`].
    Inputs,
    /// It keeps nothing.
    Nothing,
}

/// A layer as ops, over numbered slots: first its inputs, then what the ops make, in order.
#[derive(Debug)]
pub(super) struct Lowered {
    pub(super) nodes: Vec<Lower>,
    /// The slots of the layer's outputs.
    pub(super) outputs: Vec<usize>,
}

/// One op of a layer and what it is connected with.
#[derive(Debug)]
pub(super) struct Lower {
    pub(super) op: Box<dyn Op>,
    /// Slots.
    pub(super) inputs: Vec<usize>,
    /// How many slots it makes.
    pub(super) outputs: usize,
    /// The op's names of its parameters and buffers, and the layer's.
    pub(super) params: Vec<(&'static str, &'static str)>,
}

impl Lowered {
    /// The same with products in this type.
    pub(super) fn in_precision(self, precision: Precision) -> Self {
        let kind = match precision {
            Precision::F32 => return self,
            Precision::Bf16 => Kind::BFloat16,
            Precision::Fp16 => Kind::Half,
        };
        let reduced = |op: Box<dyn Op>| if op.reduces() { Box::new(Reduced { op, kind }) } else { op };
        let nodes = self.nodes.into_iter().map(|lower| Lower { op: reduced(lower.op), ..lower });
        Lowered { nodes: nodes.collect(), outputs: self.outputs }
    }
}

/// The table: a new kind of layer is a file above and a line here.
pub(super) fn lower(
    kind: &LayerKind,
    inputs: usize,
    outputs: usize,
    own: &OwnLayers,
    device: Device,
) -> Result<Lowered, TensorError> {
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
        LayerKind::Bilinear(layer) => Box::new(ByAutograd(layer)),
        LayerKind::ReLU(layer) => Box::new(layer),
        LayerKind::LeakyReLU(layer) => Box::new(ByAutograd(layer)),
        LayerKind::PReLU(layer) => Box::new(ByAutograd(layer)),
        LayerKind::ReLU6(layer) => Box::new(ByAutograd(layer)),
        LayerKind::ELU(layer) => Box::new(ByAutograd(layer)),
        LayerKind::CELU(layer) => Box::new(ByAutograd(layer)),
        LayerKind::SELU(layer) => Box::new(ByAutograd(layer)),
        LayerKind::GELU(layer) => Box::new(layer),
        LayerKind::SiLU(layer) => Box::new(layer),
        LayerKind::Mish(layer) => Box::new(ByAutograd(layer)),
        LayerKind::Softplus(layer) => Box::new(ByAutograd(layer)),
        LayerKind::Sigmoid(layer) => Box::new(layer),
        LayerKind::LogSigmoid(layer) => Box::new(ByAutograd(layer)),
        LayerKind::Tanh(layer) => Box::new(layer),
        LayerKind::Softsign(layer) => Box::new(ByAutograd(layer)),
        LayerKind::Hardtanh(layer) => Box::new(ByAutograd(layer)),
        LayerKind::Hardsigmoid(layer) => Box::new(ByAutograd(layer)),
        LayerKind::Hardswish(layer) => Box::new(ByAutograd(layer)),
        LayerKind::Hardshrink(layer) => Box::new(ByAutograd(layer)),
        LayerKind::Softshrink(layer) => Box::new(ByAutograd(layer)),
        LayerKind::Tanhshrink(layer) => Box::new(ByAutograd(layer)),
        LayerKind::Threshold(layer) => Box::new(ByAutograd(layer)),
        LayerKind::GLU(layer) => Box::new(ByAutograd(layer)),
        LayerKind::Softmax(layer) => Box::new(layer),
        LayerKind::Softmin(layer) => Box::new(ByAutograd(layer)),
        LayerKind::LogSoftmax(layer) => Box::new(layer),
        LayerKind::Dropout(layer) => Box::new(dropout::Drop::of(&layer)),
        LayerKind::Dropout2d(layer) => Box::new(dropout::Drop::of_channels(&layer)),
        LayerKind::LayerNorm(layer) => Box::new(layer),
        LayerKind::RMSNorm(layer) => Box::new(ByAutograd(layer)),
        LayerKind::GroupNorm(layer) => Box::new(ByAutograd(layer)),
        LayerKind::BatchNorm1d(layer) => Box::new(ByAutograd(layer)),
        LayerKind::BatchNorm2d(layer) => Box::new(ByAutograd(layer)),
        LayerKind::InstanceNorm2d(layer) => Box::new(ByAutograd(layer)),
        LayerKind::Embedding(layer) => Box::new(layer),
        LayerKind::LearnedPositions(layer) => Box::new(ByAutograd(layer)),
        LayerKind::RotaryEmbedding(layer) => Box::new(ByAutograd(layer)),
        LayerKind::RNN(layer) => Box::new(ByAutograd(Recurrent::rnn(&layer, names.clone()))),
        LayerKind::GRU(layer) => Box::new(ByAutograd(Recurrent::gru(&layer, names.clone()))),
        LayerKind::LSTM(layer) => Box::new(ByAutograd(Recurrent::lstm(&layer, names.clone()))),
        LayerKind::MaxPool1d(layer) => Box::new(ByAutograd(layer)),
        LayerKind::MaxPool2d(layer) => Box::new(ByAutograd(layer)),
        LayerKind::AvgPool1d(layer) => Box::new(ByAutograd(layer)),
        LayerKind::AvgPool2d(layer) => Box::new(ByAutograd(layer)),
        LayerKind::AdaptiveAvgPool1d(layer) => Box::new(ByAutograd(layer)),
        LayerKind::AdaptiveAvgPool2d(layer) => Box::new(ByAutograd(layer)),
        LayerKind::AdaptiveMaxPool2d(layer) => Box::new(ByAutograd(layer)),
        LayerKind::Upsample(layer) => Box::new(ByAutograd(layer)),
        LayerKind::PixelShuffle(layer) => Box::new(ByAutograd(layer)),
        LayerKind::PixelUnshuffle(layer) => Box::new(ByAutograd(layer)),
        LayerKind::Pad(layer) => Box::new(ByAutograd(layer)),
        LayerKind::Flatten(layer) => Box::new(layer),
        LayerKind::Reshape(layer) => Box::new(layer),
        LayerKind::Transpose(layer) => Box::new(layer),
        LayerKind::Add(layer) => Box::new(layer),
        LayerKind::Mul(layer) => Box::new(ByAutograd(layer)),
        LayerKind::Concat(layer) => Box::new(layer),
        LayerKind::Identity(layer) => Box::new(layer),
        LayerKind::Unflatten(layer) => Box::new(layer),
        LayerKind::Permute(layer) => Box::new(layer),
        LayerKind::Squeeze(layer) => Box::new(layer),
        LayerKind::Unsqueeze(layer) => Box::new(layer),
        LayerKind::Slice(layer) => Box::new(ByAutograd(layer)),
        LayerKind::Select(layer) => Box::new(ByAutograd(layer)),
        LayerKind::Split(layer) => Box::new(ByAutograd(layer)),
        LayerKind::Chunk(layer) => Box::new(ByAutograd(layer)),
        LayerKind::Stack(layer) => Box::new(ByAutograd(layer)),
        LayerKind::Sub(layer) => Box::new(ByAutograd(layer)),
        LayerKind::MatMul(layer) => Box::new(ByAutograd(layer)),
        LayerKind::Scale(layer) => Box::new(layer),
        LayerKind::Mean(layer) => Box::new(ByAutograd(layer)),
        LayerKind::Sum(layer) => Box::new(ByAutograd(layer)),
        LayerKind::MaskedFill(layer) => Box::new(ByAutograd(layer)),
        LayerKind::Custom(layer) => Box::new(ByAutograd(own::InRust { layer: own.custom(&layer)?, out: layer.out })),
        LayerKind::TorchScript(layer) => {
            let script = Mutex::new(own.script(&layer, device)?);
            Box::new(ByAutograd(own::InTorchScript { script, out: layer.out }))
        }
    };
    let params = names.iter().map(|name| (*name, *name)).collect();
    // A layer of one op.
    let nodes = vec![Lower { op, inputs: (0..inputs).collect(), outputs, params }];
    Ok(Lowered { nodes, outputs: (inputs..inputs + outputs).collect() })
}

impl Run {
    /// Of an op with one output that keeps these tensors.
    fn keeping(output: Tensor, tensors: Vec<Tensor>) -> Self {
        Run { outputs: vec![output], kept: Kept { tensors, sizes: Vec::new() } }
    }

    /// Of an op with one output whose backward pass needs these sizes.
    fn knowing(output: Tensor, sizes: Vec<Vec<i64>>) -> Self {
        Run { outputs: vec![output], kept: Kept { tensors: Vec::new(), sizes } }
    }
}

impl Back {
    /// Of an op with one input, where all is done.
    fn to(input: Tensor) -> Self {
        Back { inputs: vec![Some(input)], rest: Vec::new() }
    }
}

impl Kept {
    /// The tensors of an op that keeps so many.
    fn tensors<const N: usize>(self) -> Result<[Tensor; N], TensorError> {
        let count = self.tensors.len();
        self.tensors.try_into().map_err(|_| missing(format!("{N} tensors were to be kept, {count} are")))
    }
}

/// The input of an op that takes one.
fn one(inputs: Vec<Tensor>) -> Result<Tensor, TensorError> {
    let count = inputs.len();
    match <[Tensor; 1]>::try_from(inputs) {
        Ok([input]) => Ok(input),
        Err(_) => Err(missing(format!("expected one input, got {count}"))),
    }
}

/// The gradient of an op with one output.
fn of_one(grads: Vec<Option<Tensor>>) -> Result<Tensor, TensorError> {
    grads.into_iter().next().flatten().ok_or_else(|| missing("no gradient arrived"))
}

fn missing(problem: impl Into<String>) -> TensorError {
    TensorError::invalid("the layer", problem)
}

/// `in_place` where nobody else refers to the tensor, else `fresh`.
fn update<T>(
    mut tensor: Tensor,
    in_place: impl FnOnce(&mut Tensor) -> Result<T, tch::TchError>,
    fresh: impl FnOnce(&Tensor) -> Result<Tensor, tch::TchError>,
) -> Result<Tensor, TensorError> {
    if memory::is_alone(&tensor) {
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
    i64::try_from(size).map_err(|_| missing(format!("a size of {size} is out of range")))
}
