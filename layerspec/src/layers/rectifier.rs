//! Activation functions that are the identity, or nearly so, for large elements, and something else for small ones.

use super::arguments::bad;
use super::elementwise::elementwise;
use super::layer;
use crate::yaml::NUMBER;

layer! {
    /// `x`, and below zero `negative_slope * x`, element by element.
    LeakyReLU {
        /// The slope below zero.
        negative_slope: f64 = NUMBER, or 0.01;
    }
    refuses { inplace: "the result is the same without it"; }
}

layer! {
    /// `x`, and below zero `alpha * (exp(x) - 1)`, element by element.
    ELU {
        /// The size of the limit below zero.
        alpha: f64 = NUMBER, or 1.0;
    }
    refuses { inplace: "the result is the same without it"; }
}

layer! {
    /// `x`, and below zero `alpha * (exp(x / alpha) - 1)`, element by element.
    CELU {
        /// The size of the limit below zero.
        alpha: f64 = NUMBER, or 1.0;
    }
    refuses { inplace: "the result is the same without it"; }
}

layer! {
    /// `ELU` scaled so that means and variances go towards 0 and 1 (Klambauer et al. 2017, arXiv:1706.02515).
    SELU {}
    refuses { inplace: "the result is the same without it"; }
}

layer! {
    /// `log(1 + exp(beta * x)) / beta`, element by element: a smooth `ReLU`.
    Softplus {
        /// How steeply it bends.
        beta: f64 = NUMBER, or 1.0;
        /// Where `beta * x` is above it, the result is `x` itself.
        threshold: f64 = NUMBER, or 20.0;
    }
}

layer! {
    /// `x * tanh(log(1 + exp(x)))`, element by element.
    Mish {}
    refuses { inplace: "the result is the same without it"; }
}

layer! {
    /// `x` where it is above `threshold`, else `value`, element by element.
    Threshold {
        /// What an element has to exceed.
        threshold: f64 = NUMBER;
        /// What stands in for the others.
        value: f64 = NUMBER;
    }
    refuses { inplace: "the result is the same without it"; }
}

elementwise! {
    LeakyReLU: 2;
    ELU: 4;
    CELU: 5, |layer| if layer.alpha == 0.0 { Err(bad("alpha", "a number other than 0")) } else { Ok(()) };
    SELU: 5;
    Softplus: 5, |layer| if layer.beta == 0.0 { Err(bad("beta", "a number other than 0")) } else { Ok(()) };
    Mish: 8;
    Threshold: 1;
}
