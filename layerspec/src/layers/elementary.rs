//! Elementary functions of each element.

use super::arguments::{bad, OPTIONAL_NUMBER};
use super::elementwise::elementwise;
use super::layer;

layer! {
    /// `1 / sqrt(x)`, element by element.
    Rsqrt {}
}

layer! {
    /// The square root, element by element.
    Sqrt {}
}

layer! {
    /// `e` to the power of `x`, element by element.
    Exp {}
}

layer! {
    /// The size of each element, without its sign.
    Abs {}
}

layer! {
    /// `x` within bounds, element by element. Elements outside have no gradient.
    Clamp {
        /// The lower bound; `null` is none. At least one bound must be given.
        min: Option<f64> = OPTIONAL_NUMBER, or None => "null";
        /// The upper bound; `null` is none.
        max: Option<f64> = OPTIONAL_NUMBER, or None => "null";
    }
}

elementwise! {
    Rsqrt: 2;
    Sqrt: 1;
    Exp: 2;
    Abs: 1;
    Clamp: 2, |layer| match (layer.min, layer.max) {
        (None, None) => Err(bad("min", "a number here, or for `max`")),
        (Some(min), Some(max)) if min > max => {
            Err(bad("max", format!("a number not below min ({min})")))
        }
        _ => Ok(()),
    };
}
