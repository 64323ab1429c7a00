use super::arguments::dimension;
use super::{layer, Rules};
use crate::yaml::INTEGER;
use crate::{Dim, OutOfRange, TensorType};

layer! {
    /// Swaps two dimensions.
    Transpose {
        /// One dimension; `-1` is the last.
        dim0: i64 = INTEGER;
        /// The other dimension.
        dim1: i64 = INTEGER;
    }
}

impl Rules for Transpose {
    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let input = &inputs[0];
        let mut dims = input.dims().to_vec();
        let (one, other) = (dimension(self.dim0, dims.len())?, dimension(self.dim1, dims.len())?);
        dims.swap(one, other);
        Ok(vec![TensorType::new(input.dtype, dims)])
    }

    fn flops(&self, _: &[TensorType], _: &[TensorType]) -> Result<Dim, OutOfRange> {
        Ok(Dim::Fixed(0))
    }
}
