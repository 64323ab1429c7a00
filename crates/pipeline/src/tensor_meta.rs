//! The dtype and the shape of a tensor.

use layerspec::DType;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The most dimensions of a tensor. A frame with more is refused.
pub const MAX_RANK: usize = 16;

/// Element type and sizes of a dense, row-major tensor.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TensorMeta {
    /// Element type.
    pub dtype: DType,
    /// Sizes, outermost first; empty for a scalar.
    pub shape: Vec<u64>,
}

impl TensorMeta {
    /// The size in bytes. `None` if the sizes are too large to be real.
    pub fn byte_len(&self) -> Option<u64> {
        if self.shape.len() > MAX_RANK {
            return None;
        }
        // An empty tensor's other sizes must be real too: strides are computed from them.
        let elements = self.shape.iter().try_fold(1u64, |n, &d| n.checked_mul(d.max(1)))?;
        let bytes =
            elements.checked_mul(self.dtype.size_bytes()).filter(|&n| n <= i64::MAX as u64)?;
        Some(if self.shape.contains(&0) { 0 } else { bytes })
    }
}

impl fmt::Display for TensorMeta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.dtype, self.shape)
    }
}
