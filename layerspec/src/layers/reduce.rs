use super::arguments::{expect_floating, named_dimensions, WHOLE_NUMBERS};
use super::{layer, Rules};
use crate::yaml::FLAG;
use crate::{Dim, OutOfRange, TensorType};

layer! {
    /// The mean over a dimension or several.
    Mean {
        /// The dimensions; `-1` is the last.
        dim: Vec<i64> = WHOLE_NUMBERS;
        /// Whether they stay, with size 1.
        keepdim: bool = FLAG, or false;
    }
}

layer! {
    /// The sum over a dimension or several.
    Sum {
        /// The dimensions; `-1` is the last.
        dim: Vec<i64> = WHOLE_NUMBERS;
        /// Whether they stay, with size 1.
        keepdim: bool = FLAG, or false;
    }
}

/// Rules of a layer that makes one element of many.
macro_rules! reducing {
    ($($Name:ident),*) => {$(
        impl Rules for $Name {
            fn mixes_along(&self) -> &[i64] {
                &self.dim
            }

            fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
                expect_floating(&inputs[0])?;
                Ok(vec![reduced(&inputs[0], &self.dim, self.keepdim)?])
            }

            fn flops(&self, inputs: &[TensorType], _: &[TensorType]) -> Result<Dim, OutOfRange> {
                Dim::product(inputs[0].dims())
            }
        }
    )*};
}

reducing! { Mean, Sum }

fn reduced(input: &TensorType, dims: &[i64], keep: bool) -> Result<TensorType, String> {
    let gone = named_dimensions(dims, "dim", input)?;
    let sizes = input.dims().iter().zip(gone);
    let kept = sizes.filter_map(|(size, gone)| match (gone, keep) {
        (false, _) => Some(size.clone()),
        (true, true) => Some(Dim::Fixed(1)),
        (true, false) => None,
    });
    Ok(TensorType::new(input.dtype, kept.collect()))
}
