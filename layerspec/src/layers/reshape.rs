use super::{layer, Rules};
use crate::spec::MAX_RANK;
use crate::yaml::{Kind, Reader, INTEGER};
use crate::{Dim, OutOfRange, TensorType};

const SHAPE: Reader<Vec<i64>> =
    Reader::new("a list of whole numbers, 1 or more, of which one may be -1 (whatever is left)", |node| {
        let Kind::List(items) = &node.kind else {
            return None;
        };
        let sizes: Vec<i64> = items.iter().take(MAX_RANK + 1).map(INTEGER.read).collect::<Option<_>>()?;
        let sensible = sizes.iter().all(|size| *size >= 1 || *size == -1);
        let unknown = sizes.iter().filter(|size| **size == -1).count();
        ((1..=MAX_RANK).contains(&sizes.len()) && sensible && unknown <= 1).then_some(sizes)
    });

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
        let rest = elements.divided_exactly(known).ok_or_else(|| {
            format!("cannot make {:?} of {input}: {elements} elements do not divide by {known}", self.shape)
        })?;
        if fixed.count() == self.shape.len() && rest != Dim::Fixed(1) {
            return Err(format!("cannot make {:?} of {input}: {elements} elements are not {known}", self.shape));
        }
        let size = |size: &i64| u64::try_from(*size).map_or(rest.clone(), Dim::Fixed);
        Ok(vec![TensorType::new(input.dtype, self.shape.iter().map(size).collect())])
    }

    fn flops(&self, _: &[TensorType], _: &[TensorType]) -> Result<Dim, OutOfRange> {
        Ok(Dim::Fixed(0))
    }
}
