use super::arguments::{expect_floating, NUMBER_OR_INFINITY};
use super::join::broadcast;
use super::{layer, Arity, Rules};
use crate::{DType, Dim, OutOfRange, TensorType};

layer! {
    /// Replaces elements by a number if the second input, a mask of `bool`, is true; sizes of 1
    /// broadcast.
    MaskedFill {
        /// The number.
        value: f64 = NUMBER_OR_INFINITY;
    }
}

impl Rules for MaskedFill {
    fn arity(&self) -> Arity {
        Arity::Two
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let (input, mask) = (&inputs[0], &inputs[1]);
        expect_floating(input)?;
        if mask.dtype != DType::Bool {
            return Err(format!("expected a mask of dtype bool as the second input, found {mask}"));
        }
        let dims = broadcast(input.dims(), mask.dims()).map_err(|sizes| {
            format!("expected a mask whose shape broadcasts with {input}, found {mask}: {sizes}")
        })?;
        Ok(vec![TensorType::new(input.dtype, dims)])
    }

    fn flops(&self, _: &[TensorType], outputs: &[TensorType]) -> Result<Dim, OutOfRange> {
        Dim::product(outputs[0].dims())
    }
}
