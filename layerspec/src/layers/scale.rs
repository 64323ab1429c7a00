use super::elementwise::elementwise;
use super::layer;
use crate::yaml::NUMBER;

layer! {
    /// Multiplies by a number, element by element.
    Scale {
        /// The number.
        factor: f64 = NUMBER;
    }
}

elementwise! { Scale: 1 }
