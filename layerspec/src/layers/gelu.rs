use super::elementwise::elementwise;
use super::layer;
use crate::yaml::Reader;
use serde::{Deserialize, Serialize};

/// How [`GELU`] computes the normal distribution.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Approximate {
    /// Exactly, by the error function.
    None,
    /// By the hyperbolic tangent.
    Tanh,
}

const APPROXIMATE: Reader<Approximate> =
    Reader::keyword("`none` or `tanh`", &["none", "tanh"], |node| match node.as_text()? {
        "none" => Some(Approximate::None),
        "tanh" => Some(Approximate::Tanh),
        _ => None,
    });

layer! {
    /// Gaussian error linear unit, element by element.
    GELU {
        /// How the normal distribution is computed.
        approximate: Approximate = APPROXIMATE, or Approximate::None => "none";
    }
}

elementwise! { GELU: 8 }
