use super::{layer, Rules};
use crate::spec::MAX_RANK;
use crate::yaml::{Kind, Reader, INTEGER};
use crate::{Dim, OutOfRange, TensorType};

const EXPANDED: Reader<Vec<i64>> =
    Reader::new("a list of whole numbers, 1 or more, or -1 (as it is)", |node| {
        let Kind::List(items) = &node.kind else { return None };
        let sizes: Vec<i64> =
            items.iter().take(MAX_RANK + 1).map(INTEGER.read).collect::<Option<_>>()?;
        let sensible = sizes.iter().all(|size| *size >= 1 || *size == -1);
        ((1..=MAX_RANK).contains(&sizes.len()) && sensible).then_some(sizes)
    });

layer! {
    /// Repeats its input along dimensions of size 1.
    Expand {
        /// The sizes of the output, as many as the input has dimensions. `-1` leaves a size as it
        /// is; another number takes the place of a size of 1.
        size: Vec<i64> = EXPANDED;
    }
}

impl Rules for Expand {
    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let input = &inputs[0];
        if input.shape.rank() != self.size.len() {
            return Err(format!(
                "expected a size for each dimension of {input}, found {:?}",
                self.size
            ));
        }
        let grown = |(size, wanted): (&Dim, &i64)| match u64::try_from(*wanted) {
            Err(_) if *wanted == -1 => Ok(size.clone()),
            Ok(wanted) if *size == Dim::Fixed(1) || *size == Dim::Fixed(wanted) => {
                Ok(Dim::Fixed(wanted))
            }
            _ => Err(format!("cannot expand {size} to {wanted} in {input}: it is not of size 1")),
        };
        let dims = input.dims().iter().zip(&self.size).map(grown);
        Ok(vec![TensorType::new(input.dtype, dims.collect::<Result<_, _>>()?)])
    }

    fn flops(&self, _: &[TensorType], _: &[TensorType]) -> Result<Dim, OutOfRange> {
        Ok(Dim::Fixed(0))
    }
}
