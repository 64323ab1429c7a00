//! Activation functions with arguments, which tch leaves out.

use crate::{ffi, TensorError};
use tch::Tensor;

/// An element-wise function with its arguments, named as in PyTorch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Activation {
    /// `x`, and below zero `negative_slope * x`.
    LeakyRelu {
        /// The slope below zero.
        negative_slope: f64,
    },
    /// `x`, and below zero `alpha * (exp(x) - 1)`.
    Elu {
        /// The size of the limit below zero.
        alpha: f64,
    },
    /// `x`, and below zero `alpha * (exp(x / alpha) - 1)`.
    Celu {
        /// The size of the limit below zero.
        alpha: f64,
    },
    /// `log(1 + exp(beta * x)) / beta`, and `x` where `beta * x` is above the threshold.
    Softplus {
        /// The steepness.
        beta: f64,
        /// The value above which the function counts as linear.
        threshold: f64,
    },
    /// `x` within bounds.
    Hardtanh {
        /// The lower bound.
        min_val: f64,
        /// The upper bound.
        max_val: f64,
    },
    /// `x`, and zero between `-lambd` and `lambd`.
    Hardshrink {
        /// The bound.
        lambd: f64,
    },
    /// `x` moved towards zero by `lambd`, at most to zero.
    Softshrink {
        /// Its offset.
        lambd: f64,
    },
}

impl Activation {
    /// The function of each element. Autograd knows it.
    pub fn apply(self, input: &Tensor) -> Result<Tensor, TensorError> {
        let (which, a, b) = match self {
            Activation::LeakyRelu { negative_slope } => (0, negative_slope, 0.0),
            Activation::Elu { alpha } => (1, alpha, 0.0),
            Activation::Celu { alpha } => (2, alpha, 0.0),
            Activation::Softplus { beta, threshold } => (3, beta, threshold),
            Activation::Hardtanh { min_val, max_val } => (4, min_val, max_val),
            Activation::Hardshrink { lambd } => (5, lambd, 0.0),
            Activation::Softshrink { lambd } => (6, lambd, 0.0),
        };
        let mut out = std::ptr::null_mut();
        // SAFETY: the tensor is borrowed for the call; on success the pointer is set to a new
        // tensor that is ours.
        let status = unsafe { ffi::bm_activation(which, input.as_ptr(), a, b, &mut out) };
        ffi::check("an activation function", status)?;
        // SAFETY: as above.
        Ok(unsafe { Tensor::from_ptr(out) })
    }
}
