use super::arguments::dimension;
use super::{layer, Arity, Rules};
use crate::yaml::INTEGER;
use crate::{DType, Dim, OutOfRange, TensorType};

layer! {
    /// Selects elements of a dimension of its first input by the whole numbers of its second, as
    /// `x[:, index]` for `dim: 1`. In place of the dimension, the output has those of the index.
    /// Unlike in Python, a number below zero is an error.
    Index {
        /// The dimension; `-1` is the last.
        dim: i64 = INTEGER, or 0;
    }
}

impl Rules for Index {
    fn mixes_along(&self) -> &[i64] {
        std::slice::from_ref(&self.dim)
    }

    fn arity(&self) -> Arity {
        Arity::Two
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let (input, index) = (&inputs[0], &inputs[1]);
        if index.dtype != DType::Int64 {
            return Err(format!("expected an int64 index as the second input, found {index}"));
        }
        let along = dimension(self.dim, input.shape.rank())?;
        let (before, rest) = input.dims().split_at(along);
        let after = rest.get(1..).unwrap_or_default();
        Ok(vec![TensorType::new(input.dtype, [before, index.dims(), after].concat())])
    }

    fn flops(&self, _: &[TensorType], _: &[TensorType]) -> Result<Dim, OutOfRange> {
        Ok(Dim::Fixed(0))
    }
}
