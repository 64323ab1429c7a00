use super::arguments::{dimension, expect_floating};
use super::{layer, Rules};
use crate::yaml::INTEGER;
use crate::{Dim, OutOfRange, TensorType};

layer! {
    /// `exp(x) / sum(exp(x))` along one dimension.
    Softmax {
        /// The dimension along which the outputs sum to one; `-1` is the last.
        dim: i64 = INTEGER;
    }
}

layer! {
    /// The logarithm of `Softmax`, without its loss of precision.
    LogSoftmax {
        /// The dimension along which the outputs' exponentials sum to one; `-1` is the last.
        dim: i64 = INTEGER;
    }
}

layer! {
    /// The `Softmax` of `-x`: the smallest element gets the largest share.
    Softmin {
        /// The dimension along which the outputs sum to one; `-1` is the last.
        dim: i64 = INTEGER;
    }
}

/// Rules of a layer that normalises along its `dim`.
macro_rules! softmax {
    ($($Name:ident),*) => {$(
        impl Rules for $Name {
            fn mixes_along(&self) -> &[i64] {
                std::slice::from_ref(&self.dim)
            }

            fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
                expect_floating(&inputs[0])?;
                dimension(self.dim, inputs[0].shape.rank())?;
                Ok(inputs.to_vec())
            }

            fn flops(&self, inputs: &[TensorType], _: &[TensorType]) -> Result<Dim, OutOfRange> {
                Dim::product(inputs[0].dims())?.times_number(5)
            }
        }
    )*};
}

softmax! { Softmax, LogSoftmax, Softmin }
