//! A layer's parameters and buffers, as data: name, shape, initialisation.

use crate::DType;
use serde::{Deserialize, Serialize};

/// Whether a tensor of a layer is trained or only kept.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Role {
    /// Trained by the optimizer.
    Parameter,
    /// Kept with the layer and saved with it, but not trained (running statistics).
    Buffer,
}

/// How a tensor of a layer is filled before training: PyTorch's default, as data.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Init {
    /// All zero.
    Zeros,
    /// All one.
    Ones,
    /// All the same.
    Constant {
        /// The number.
        value: f64,
    },
    /// Uniform between `low` and `high`.
    Uniform {
        /// Lower bound.
        low: f64,
        /// Upper bound.
        high: f64,
    },
    /// Normal distribution.
    Normal {
        /// Mean.
        mean: f64,
        /// Standard deviation.
        std: f64,
    },
    /// Normal distribution, and afterwards row `zero_row` of dimension 0 set to zero
    /// (an embedding's padding row).
    NormalZeroRow {
        /// Mean.
        mean: f64,
        /// Standard deviation.
        std: f64,
        /// The row that is zero.
        zero_row: u64,
    },
    /// The value in the layer's own file.
    File,
}

impl Init {
    /// PyTorch's `kaiming_uniform_(a=sqrt(5))`, which is uniform within 1/sqrt(fan_in) of zero;
    /// Linear and Conv use it for weight and bias.
    pub(crate) fn fan_in(fan_in: f64) -> Init {
        let bound = if fan_in > 0.0 { 1.0 / fan_in.sqrt() } else { 0.0 };
        Init::Uniform { low: -bound, high: bound }
    }

    /// PyTorch's `xavier_uniform_` of a matrix.
    pub(crate) fn xavier(rows: u64, columns: u64) -> Init {
        let bound = (6.0 / (rows as f64 + columns as f64)).sqrt();
        Init::Uniform { low: -bound, high: bound }
    }
}

/// One tensor that belongs to a layer.
#[derive(Clone, PartialEq, Debug)]
pub struct ParamSpec {
    /// PyTorch's name within the layer: `weight`, `running_mean`, `self_attn.out_proj.bias`.
    pub name: &'static str,
    /// Sizes; empty for a scalar.
    pub shape: Vec<u64>,
    /// Element type.
    pub dtype: DType,
    /// Trained, or only kept.
    pub role: Role,
    /// How it is filled before training.
    pub init: Init,
}

impl ParamSpec {
    /// A float32 parameter.
    pub(crate) fn parameter(name: &'static str, shape: Vec<u64>, init: Init) -> Self {
        ParamSpec { name, shape, dtype: DType::Float32, role: Role::Parameter, init }
    }

    /// A buffer.
    pub(crate) fn buffer(name: &'static str, shape: Vec<u64>, dtype: DType, init: Init) -> Self {
        ParamSpec { name, shape, dtype, role: Role::Buffer, init }
    }

    /// The number of elements of the tensor; None when the number does not fit 64 bits.
    pub fn elements(&self) -> Option<u64> {
        self.shape.iter().try_fold(1u64, |product, size| product.checked_mul(*size))
    }

    /// Bytes the tensor takes; None when the number does not fit 64 bits.
    pub fn bytes(&self) -> Option<u64> {
        self.elements()?.checked_mul(self.dtype.size_bytes())
    }
}
