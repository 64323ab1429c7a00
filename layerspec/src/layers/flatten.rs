use super::arguments::dimension;
use super::{layer, Rules};
use crate::yaml::INTEGER;
use crate::{Dim, OutOfRange, TensorType};

layer! {
    /// Makes one dimension of several neighbouring ones.
    Flatten {
        /// First of the dimensions.
        start_dim: i64 = INTEGER, or 1;
        /// Last of the dimensions; `-1` is the input's last.
        end_dim: i64 = INTEGER, or -1;
    }
}

impl Rules for Flatten {
    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let input = &inputs[0];
        let start = dimension(self.start_dim, input.shape.rank())?;
        let end = dimension(self.end_dim, input.shape.rank())?;
        if start > end {
            return Err(format!(
                "expected start_dim ({}) not to come after end_dim ({}) in {input}",
                self.start_dim, self.end_dim
            ));
        }
        let dims = input.dims();
        let layer = Dim::product(&dims[start..=end])?;
        let dims = [&dims[..start], &[layer], &dims[end + 1..]].concat();
        Ok(vec![TensorType::new(input.dtype, dims)])
    }

    fn flops(&self, _: &[TensorType], _: &[TensorType]) -> Result<Dim, OutOfRange> {
        Ok(Dim::Fixed(0))
    }
}
