//! Every kind of layer: one file each (or one for a family), named in the two lists here, and one
//! line in the table below.

mod activation;
mod arguments;
mod batch_norm;
mod conv;
mod declare;
mod dropout;
mod embedding;
mod flatten;
mod gelu;
mod join;
mod layer_norm;
mod linear;
mod pool;
mod reshape;
mod rules;
mod softmax;
mod transformer_encoder;
mod transpose;
mod window;

pub use activation::{Identity, ReLU, SiLU, Sigmoid, Tanh};
pub use batch_norm::BatchNorm2d;
pub use conv::{Conv2d, Padding};
pub use dropout::Dropout;
pub use embedding::Embedding;
pub use flatten::Flatten;
pub use gelu::{Approximate, GELU};
pub use join::{Add, Concat, Mul};
pub use layer_norm::LayerNorm;
pub use linear::Linear;
pub use pool::{AdaptiveAvgPool2d, AvgPool2d, MaxPool2d};
pub use reshape::Reshape;
pub use rules::Arity;
pub use softmax::{LogSoftmax, Softmax};
pub use transformer_encoder::{Activation, TransformerEncoderLayer};
pub use transpose::Transpose;

pub(crate) use declare::Manual;
use declare::{layer, read_layer, Argument, Described, Refused};
use rules::{BadArgument, Rules};

use crate::yaml::Choice;
use crate::{Dim, Fault, OutOfRange, ParamSpec, Role, TensorType};
use serde::{Deserialize, Serialize};

/// Makes [`LayerKind`] and everything that goes through all kinds from one list of them.
macro_rules! layers {
    ($($Name:ident),* $(,)?) => {
        /// What a layer computes, with its checked arguments, named as in PyTorch.
        #[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
        pub enum LayerKind {
            $(#[doc = concat!("See [`", stringify!($Name), "`].")] $Name($Name),)*
        }

        impl LayerKind {
            /// The names of all kinds, in the order of the reference manual.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($Name)),*];

            /// The kind that a file names, with its arguments read and checked.
            pub(crate) fn read(choice: &Choice<'_>) -> Result<LayerKind, Fault> {
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
        }
    };
}

layers! {
    Linear,
    ReLU,
    GELU,
    SiLU,
    Sigmoid,
    Tanh,
    Softmax,
    LogSoftmax,
    Dropout,
    LayerNorm,
    Embedding,
    TransformerEncoderLayer,
    Conv2d,
    BatchNorm2d,
    MaxPool2d,
    AvgPool2d,
    AdaptiveAvgPool2d,
    Flatten,
    Reshape,
    Transpose,
    Add,
    Mul,
    Concat,
    Identity,
}

impl LayerKind {
    /// How many inputs the layer takes.
    pub fn arity(&self) -> Arity {
        self.rules().arity()
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
                    (other.name, &other.shape, other.dtype, other.role) == (own.name, &own.shape, own.dtype, own.role)
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
