//! Every kind of layer: one file each (or one for a family), named in the two lists here, and one
//! line in the table below.

mod activation;
mod arguments;
mod attention;
mod axes;
mod batch_norm;
mod bilinear;
mod constant;
mod conv;
mod declare;
mod div;
mod dropout;
mod elementary;
mod elementwise;
mod embedding;
mod expand;
mod file;
mod flatten;
mod gelu;
mod glu;
mod group_norm;
mod index;
mod join;
mod layer_norm;
mod linear;
mod llama;
mod llama_mlp;
mod masked_fill;
mod matmul;
mod multihead_attention;
mod pad;
mod parameter;
mod piecewise;
mod pixel_shuffle;
mod pool;
mod positions;
mod prelu;
mod rectifier;
mod recurrent;
mod reduce;
mod reshape;
mod rms_norm;
mod roll;
mod rope_scaling;
mod rope_scaling_reader;
mod rotary;
mod rules;
mod scale;
mod scaled_dot_product;
mod slice;
mod softmax;
mod spatial;
mod split;
mod transformer;
mod transformer_decoder;
mod transformer_encoder;
mod transpose;
mod upsample;
mod user_defined;
mod window;
mod wire;

pub use activation::{Identity, LogSigmoid, ReLU, SiLU, Sigmoid, Softsign, Tanh, Tanhshrink};
pub use axes::{Permute, Squeeze, Unflatten, Unsqueeze};
pub use batch_norm::{BatchNorm1d, BatchNorm2d, BatchNorm3d, InstanceNorm2d};
pub use bilinear::Bilinear;
pub use constant::Constant;
pub use conv::{Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d};
pub use div::Div;
pub use dropout::{DropPath, DropPathMode, Dropout, Dropout2d};
pub use elementary::{Abs, Clamp, Exp, Rsqrt, Sqrt};
pub use embedding::Embedding;
pub use expand::Expand;
pub use file::{FileContent, LayerFile, MAX_FILE_BYTES};
pub use flatten::Flatten;
pub use gelu::{Approximate, GELU};
pub use glu::GLU;
pub use group_norm::GroupNorm;
pub use index::Index;
pub use join::{Add, Concat, Mul, Stack, Sub};
pub use layer_norm::LayerNorm;
pub use linear::Linear;
pub use llama::LlamaAttention;
pub use llama_mlp::{LlamaActivation, LlamaMLP};
pub use masked_fill::MaskedFill;
pub use matmul::MatMul;
pub use multihead_attention::MultiheadAttention;
pub use pad::{Pad, PadMode};
pub use parameter::Parameter;
pub use piecewise::{Hardshrink, Hardsigmoid, Hardswish, Hardtanh, ReLU6, Softshrink};
pub use pixel_shuffle::{PixelShuffle, PixelUnshuffle};
pub use pool::{
    AdaptiveAvgPool1d, AdaptiveAvgPool2d, AdaptiveAvgPool3d, AdaptiveMaxPool2d, AvgPool1d,
    AvgPool2d, AvgPool3d, MaxPool1d, MaxPool2d, MaxPool3d,
};
pub use positions::{LearnedPositions, PositionalEncoding};
pub use prelu::PReLU;
pub use rectifier::{LeakyReLU, Mish, Softplus, Threshold, CELU, ELU, SELU};
pub use recurrent::{Nonlinearity, GRU, LSTM, RNN};
pub use reduce::{Mean, Sum};
pub use reshape::Reshape;
pub use rms_norm::RMSNorm;
pub use roll::{Flip, Roll};
pub use rope_scaling::{Llama3, LongRope, RopeScaling, Yarn};
pub use rotary::RotaryEmbedding;
pub use rules::Arity;
pub use scale::Scale;
pub use scaled_dot_product::ScaledDotProductAttention;
pub use slice::{Select, Slice};
pub use softmax::{LogSoftmax, Softmax, Softmin};
pub use spatial::Padding;
pub use split::{Chunk, Sections, Split};
pub use transformer::Activation;
pub use transformer_decoder::TransformerDecoderLayer;
pub use transformer_encoder::TransformerEncoderLayer;
pub use transpose::Transpose;
pub use upsample::{Interpolation, Upsample};
pub use user_defined::{
    Arg, Args, Aten, Custom, DeclaredOutput, DeclaredParam, ParamName, Size, TorchScript,
};

use arguments::bad;
pub(crate) use declare::Manual;
use declare::{layer, read_layer, Argument, Declaration, UnsupportedArgument};
use rules::{BadArgument, Rules};
use wire::TravellingArguments;

use crate::yaml::Choice;
use crate::{Diagnostic, Dim, OutOfRange, ParamSpec, Role, TensorType};
use serde::de::{Error, SeqAccess};
use serde::Serializer;

/// Makes [`LayerKind`] and everything that goes through all kinds from one list of them.
macro_rules! layers {
    ($($Name:ident),* $(,)?) => {
        /// A kind of layer with its checked arguments, named as in PyTorch.
        #[derive(Clone, PartialEq, Debug)]
        pub enum LayerKind {
            $(#[doc = concat!("See [`", stringify!($Name), "`].")] $Name($Name),)*
        }

        impl LayerKind {
            /// The names of all kinds, in the order of the reference manual.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($Name)),*];

            /// The kind that a file names, with its arguments read and checked.
            pub(crate) fn read(choice: &Choice<'_>) -> Result<LayerKind, Diagnostic> {
                match choice.name {
                    $(stringify!($Name) => read_layer::<$Name>(choice).map(LayerKind::$Name),)*
                    _ => Err(choice.unknown("layer", LayerKind::NAMES)),
                }
            }

            /// The arguments that the kind of this name takes; none for an unknown name.
            pub(crate) fn argument_names(kind: &str) -> Vec<&'static str> {
                let arguments: &[Argument] = match kind {
                    $(stringify!($Name) => $Name::ARGUMENTS,)*
                    _ => &[],
                };
                arguments.iter().map(|argument| argument.name).collect()
            }

            /// Name, description and arguments of every kind, for the reference manual.
            pub(crate) fn manual() -> Vec<Manual> {
                vec![$(Manual::of::<$Name>()),*]
            }

            /// PyTorch's name of the kind: `Linear`.
            pub fn name(&self) -> &'static str {
                match self {
                    $(LayerKind::$Name(_) => stringify!($Name),)*
                }
            }

            fn rules(&self) -> &dyn Rules {
                match self {
                    $(LayerKind::$Name(layer) => layer,)*
                }
            }

            fn write<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                match self {
                    $(LayerKind::$Name(layer) => {
                        wire::write(self.name(), $Name::ARGUMENTS.len(), layer, serializer)
                    })*
                }
            }

            /// The kind of this name with the arguments that follow.
            fn take<'de, A: SeqAccess<'de>>(name: &str, from: &mut A) -> Result<Self, A::Error> {
                match name {
                    $(stringify!($Name) => $Name::take(from).map(LayerKind::$Name),)*
                    _ => Err(A::Error::custom("a layer of an unknown kind")),
                }
            }
        }
    };
}

layers! {
    Linear,
    Bilinear,
    ReLU,
    LeakyReLU,
    PReLU,
    ReLU6,
    ELU,
    CELU,
    SELU,
    GELU,
    SiLU,
    Mish,
    Softplus,
    Sigmoid,
    LogSigmoid,
    Tanh,
    Softsign,
    Hardtanh,
    Hardsigmoid,
    Hardswish,
    Hardshrink,
    Softshrink,
    Tanhshrink,
    Threshold,
    GLU,
    Softmax,
    Softmin,
    LogSoftmax,
    Dropout,
    Dropout2d,
    DropPath,
    LayerNorm,
    RMSNorm,
    GroupNorm,
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    InstanceNorm2d,
    Embedding,
    Parameter,
    Constant,
    MultiheadAttention,
    ScaledDotProductAttention,
    TransformerEncoderLayer,
    TransformerDecoderLayer,
    PositionalEncoding,
    LearnedPositions,
    RotaryEmbedding,
    LlamaAttention,
    LlamaMLP,
    RNN,
    GRU,
    LSTM,
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
    MaxPool1d,
    MaxPool2d,
    MaxPool3d,
    AvgPool1d,
    AvgPool2d,
    AvgPool3d,
    AdaptiveAvgPool1d,
    AdaptiveAvgPool2d,
    AdaptiveAvgPool3d,
    AdaptiveMaxPool2d,
    Upsample,
    PixelShuffle,
    PixelUnshuffle,
    Pad,
    Flatten,
    Unflatten,
    Reshape,
    Transpose,
    Permute,
    Squeeze,
    Unsqueeze,
    Expand,
    Roll,
    Flip,
    Slice,
    Select,
    Index,
    Split,
    Chunk,
    Concat,
    Stack,
    Add,
    Sub,
    Mul,
    Div,
    MatMul,
    Scale,
    Clamp,
    Abs,
    Exp,
    Sqrt,
    Rsqrt,
    Mean,
    Sum,
    MaskedFill,
    Identity,
    Custom,
    TorchScript,
    Aten,
}

impl LayerKind {
    /// The number of inputs that the layer takes.
    pub fn arity(&self) -> Arity {
        self.rules().arity()
    }

    /// Whether it takes the outermost dimension of its input for positions of a sequence that it
    /// mixes.
    pub(crate) fn mixes_outermost(&self) -> bool {
        self.rules().mixes_outermost()
    }

    /// Whether it mixes elements of its first input along this dimension, or selects some.
    pub(crate) fn mixes_along(&self, dim: usize, rank: usize) -> bool {
        let dims = self.rules().mixes_along();
        dims.iter().any(|named| arguments::dimension(*named, rank) == Ok(dim))
    }

    /// Whether gradients flow through the layer. If not, neither its outputs nor its uses of
    /// inputs have any.
    pub fn passes_gradients(&self) -> bool {
        self.rules().passes_gradients()
    }

    /// The layer's parameters and buffers, in PyTorch's order.
    pub fn params(&self) -> Vec<ParamSpec> {
        self.rules().params()
    }

    /// The names of the parameters that a layer ties to another's with `share`: those that both
    /// have under the same name, with the same shape and element type.
    pub fn tied_params(&self, other: &LayerKind) -> Vec<&'static str> {
        let others = other.params();
        let tied = |own: &ParamSpec| {
            own.role == Role::Parameter
                && others.iter().any(|other| {
                    (other.name, &other.shape, other.dtype, other.role)
                        == (own.name, &own.shape, own.dtype, own.role)
                })
        };
        self.params().iter().filter(|own| tied(own)).map(|own| own.name).collect()
    }

    /// The types of the layer's outputs for inputs of these types. The error says which
    /// input does not fit, what was expected and what was found.
    pub fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        self.arity().check(inputs.len())?;
        self.rules().infer(inputs)
    }

    /// Floating-point operations of one forward pass over the whole batch. A multiply-add counts
    /// as two; matrix products and convolutions are exact, element-wise work is a rough weight
    /// per element. `outputs` must be what [`LayerKind::infer`] gave for `inputs`.
    pub fn flops(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Result<Dim, OutOfRange> {
        self.rules().flops(inputs, outputs)
    }
}
