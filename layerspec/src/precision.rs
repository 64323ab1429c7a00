//! The type in which products are computed.

use serde::{Deserialize, Serialize};

/// The type in which linear layers, convolutions, attention and matrix products compute. Everything
/// else computes in float32, and all values between layers, parameters and gradients are float32.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Precision {
    /// float32.
    #[default]
    F32,
    /// bfloat16: 8 bits of mantissa, and the range of float32.
    Bf16,
    /// float16: 11 bits of mantissa, and numbers up to 65,504; the loss is scaled. On CUDA only.
    Fp16,
}
