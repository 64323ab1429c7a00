use super::arguments::{dimension, expect_floating};
use super::{layer, Rules};
use crate::yaml::INTEGER;
use crate::{Dim, OutOfRange, TensorType};

layer! {
    /// Gated linear unit: the first half along a dimension times the sigmoid of the second.
    GLU {
        /// The dimension that is halved; `-1` is the last.
        dim: i64 = INTEGER, or -1;
    }
}

impl Rules for GLU {
    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let input = &inputs[0];
        expect_floating(input)?;
        let mut dims = input.dims().to_vec();
        let along = dimension(self.dim, dims.len())?;
        dims[along] = dims[along].exact_div(2).ok_or_else(|| {
            format!(
                "expected a size that has a half in dimension {along}, found {} in {input}",
                dims[along]
            )
        })?;
        Ok(vec![TensorType::new(input.dtype, dims)])
    }

    fn flops(&self, _: &[TensorType], outputs: &[TensorType]) -> Result<Dim, OutOfRange> {
        Dim::product(outputs[0].dims())?.times_number(5)
    }
}
