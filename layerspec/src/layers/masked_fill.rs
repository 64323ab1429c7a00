use super::arguments::expect_floating;
use super::join::broadcast;
use super::{layer, Arity, Rules};
use crate::yaml::{Kind, Reader, NUMBER};
use crate::{DType, Dim, OutOfRange, TensorType};

const VALUE: Reader<f64> = Reader::new("a number, `.inf` or `-.inf`", |node| match node.kind {
    Kind::Float(value) if value.is_infinite() => Some(value),
    _ => (NUMBER.read)(node),
});

layer! {
    /// Replaces elements by a number if the second input, a mask of `bool`, is true; sizes of 1
    /// broadcast.
    MaskedFill {
        /// The number.
        value: f64 = VALUE;
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
