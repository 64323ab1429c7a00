//! Element types of tensors.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// An element type, named as in PyTorch.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum DType {
    /// 32-bit float; the default of inputs and parameters.
    Float32,
    /// 64-bit float.
    Float64,
    /// 16-bit IEEE float.
    Float16,
    /// 16-bit float with an 8-bit exponent.
    BFloat16,
    /// 64-bit signed integer; PyTorch's index type.
    Int64,
    /// 32-bit signed integer.
    Int32,
    /// 8-bit unsigned integer.
    UInt8,
    /// True or false, one byte each.
    Bool,
}

impl DType {
    /// Every element type there is.
    pub const ALL: [DType; 8] = [
        DType::Float32,
        DType::Float64,
        DType::Float16,
        DType::BFloat16,
        DType::Int64,
        DType::Int32,
        DType::UInt8,
        DType::Bool,
    ];

    /// Bytes of one element.
    pub const fn size_bytes(self) -> u64 {
        match self {
            DType::Float64 | DType::Int64 => 8,
            DType::Float32 | DType::Int32 => 4,
            DType::Float16 | DType::BFloat16 => 2,
            DType::UInt8 | DType::Bool => 1,
        }
    }

    /// Whether gradients can flow through values of this type.
    pub const fn is_floating(self) -> bool {
        matches!(self, DType::Float32 | DType::Float64 | DType::Float16 | DType::BFloat16)
    }

    /// PyTorch's name of the type: `float32`, `int64` and so on.
    pub const fn name(self) -> &'static str {
        match self {
            DType::Float32 => "float32",
            DType::Float64 => "float64",
            DType::Float16 => "float16",
            DType::BFloat16 => "bfloat16",
            DType::Int64 => "int64",
            DType::Int32 => "int32",
            DType::UInt8 => "uint8",
            DType::Bool => "bool",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A word that names no element type.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "`{0}` is no dtype: expected float32, float64, float16, bfloat16, int64, int32, uint8 or bool"
)]
pub struct UnknownDType(pub String);

impl FromStr for DType {
    type Err = UnknownDType;

    fn from_str(word: &str) -> Result<Self, UnknownDType> {
        DType::ALL
            .into_iter()
            .find(|dtype| dtype.name() == word)
            .ok_or_else(|| UnknownDType(word.to_owned()))
    }
}
