use super::arguments::SHAPE;
use super::{layer, Rules};
use crate::{Dim, OutOfRange, TensorType};

layer! {
    /// Gives the same elements, in the same order, another shape.
    Reshape {
        /// The new shape, batch included; `-1` stands for whatever is left, as the batch size.
        shape: Vec<i64> = SHAPE;
    }
}

impl Rules for Reshape {
    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let input = &inputs[0];
        let elements = Dim::product(input.dims())?;
        let fixed = self.shape.iter().filter_map(|size| u64::try_from(*size).ok());
        let known = fixed.clone().try_fold(1u64, u64::checked_mul).ok_or(OutOfRange)?;
        let rest = elements.exact_div(known).ok_or_else(|| {
            format!(
                "cannot make {:?} of {input}: {elements} elements do not divide by {known}",
                self.shape
            )
        })?;
        if fixed.count() == self.shape.len() && rest != Dim::Fixed(1) {
            return Err(format!(
                "cannot make {:?} of {input}: {elements} elements are not {known}",
                self.shape
            ));
        }
        let size = |size: &i64| u64::try_from(*size).map_or(rest.clone(), Dim::Fixed);
        Ok(vec![TensorType::new(input.dtype, self.shape.iter().map(size).collect())])
    }

    fn flops(&self, _: &[TensorType], _: &[TensorType]) -> Result<Dim, OutOfRange> {
        Ok(Dim::Fixed(0))
    }
}
