use super::arguments::expect_floating;
use super::{layer, Rules};
use crate::yaml::Reader;
use crate::{Dim, OutOfRange, TensorType};
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
    Reader::word("`none` or `tanh`", &["none", "tanh"], |node| match node.as_text()? {
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

impl Rules for GELU {
    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        expect_floating(&inputs[0])?;
        Ok(inputs.to_vec())
    }

    fn flops(&self, inputs: &[TensorType], _: &[TensorType]) -> Result<Dim, OutOfRange> {
        Dim::product(inputs[0].dims())?.times_number(8)
    }
}
