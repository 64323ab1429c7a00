//! Activation functions of straight pieces.

use super::arguments::bad;
use super::elementwise::elementwise;
use super::layer;
use crate::yaml::{NON_NEGATIVE, NUMBER};

layer! {
    /// `min(max(x, 0), 6)`, element by element.
    ReLU6 {}
    unsupported { inplace: "the result is the same without it"; }
}

layer! {
    /// `x` within bounds, element by element.
    Hardtanh {
        /// The lower bound.
        min_val: f64 = NUMBER, or -1.0;
        /// The upper bound.
        max_val: f64 = NUMBER, or 1.0;
    }
    unsupported {
        inplace: "the result is the same without it";
        min_value: "it is called `min_val`";
        max_value: "it is called `max_val`";
    }
}

layer! {
    /// `x / 6 + 1/2` within 0 and 1, element by element.
    Hardsigmoid {}
    unsupported { inplace: "the result is the same without it"; }
}

layer! {
    /// `x` times the `Hardsigmoid` of `x`, element by element.
    Hardswish {}
    unsupported { inplace: "the result is the same without it"; }
}

layer! {
    /// `x`, and zero between `-lambd` and `lambd`, element by element.
    Hardshrink {
        /// The bound.
        lambd: f64 = NUMBER, or 0.5;
    }
}

layer! {
    /// `x` moved towards zero by `lambd`, but not beyond zero, element by element.
    Softshrink {
        /// The distance.
        lambd: f64 = NON_NEGATIVE, or 0.5;
    }
}

elementwise! {
    ReLU6: 2;
    Hardtanh: 2, |layer| match layer.max_val > layer.min_val {
        true => Ok(()),
        false => Err(bad("max_val", format!("a number above min_val ({})", layer.min_val))),
    };
    Hardsigmoid: 4;
    Hardswish: 5;
    Hardshrink: 2;
    Softshrink: 3;
}
