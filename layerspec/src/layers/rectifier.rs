//! Activation functions that are the identity, or nearly so, for large elements, and something else
//! for small ones.

use super::arguments::bad;
use super::elementwise::elementwise;
use super::{layer, BadArgument};
use crate::yaml::NUMBER;

layer! {
    /// `x`, and below zero `negative_slope * x`, element by element.
    LeakyReLU {
        /// The slope below zero.
        negative_slope: f64 = NUMBER, or 0.01;
    }
    unsupported { inplace: "the result is the same without it"; }
}

layer! {
    /// `x`, and below zero `alpha * (exp(x) - 1)`, element by element.
    ELU {
        /// The size of the limit below zero.
        alpha: f64 = NUMBER, or 1.0;
    }
    unsupported { inplace: "the result is the same without it"; }
}

layer! {
    /// `x`, and below zero `alpha * (exp(x / alpha) - 1)`, element by element.
    CELU {
        /// The size of the limit below zero.
        alpha: f64 = NUMBER, or 1.0;
    }
    unsupported { inplace: "the result is the same without it"; }
}

layer! {
    /// `ELU` scaled so that means and variances go towards 0 and 1 (Klambauer et al. 2017,
    /// arXiv:1706.02515).
    SELU {}
    unsupported { inplace: "the result is the same without it"; }
}

layer! {
    /// `log(1 + exp(beta * x)) / beta`, element by element: a smooth `ReLU`.
    Softplus {
        /// How steeply it bends.
        beta: f64 = NUMBER, or 1.0;
        /// If `beta * x` is above it, the result is `x` itself.
        threshold: f64 = NUMBER, or 20.0;
    }
}

layer! {
    /// `x * tanh(log(1 + exp(x)))`, element by element.
    Mish {}
    unsupported { inplace: "the result is the same without it"; }
}

layer! {
    /// `x` if it is above `threshold`, else `value`, element by element.
    Threshold {
        /// The bound that an element has to exceed.
        threshold: f64 = NUMBER;
        /// The value of the other elements.
        value: f64 = NUMBER;
    }
    unsupported { inplace: "the result is the same without it"; }
}

fn not_zero(name: &'static str, value: f64) -> Result<(), BadArgument> {
    if value == 0.0 {
        return Err(bad(name, "a number other than 0"));
    }
    Ok(())
}

elementwise! {
    LeakyReLU: 2;
    ELU: 4;
    CELU: 5, |layer| not_zero("alpha", layer.alpha);
    SELU: 5;
    Softplus: 5, |layer| not_zero("beta", layer.beta);
    Mish: 8;
    Threshold: 1;
}
