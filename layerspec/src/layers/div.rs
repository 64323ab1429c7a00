use super::arguments::expect_floating;
use super::join::joined_all;
use super::{layer, Arity, Rules};
use crate::{Dim, OutOfRange, TensorType};

layer! {
    /// Divides the first input by the second, element by element; sizes of 1 broadcast.
    Div {}
    unsupported { rounding_mode: "quotients are not rounded; leave it out"; }
}

impl Rules for Div {
    fn arity(&self) -> Arity {
        Arity::Two
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        inputs.iter().try_for_each(expect_floating)?;
        joined_all(inputs)
    }

    fn flops(&self, _: &[TensorType], outputs: &[TensorType]) -> Result<Dim, OutOfRange> {
        Dim::product(outputs[0].dims())
    }
}
