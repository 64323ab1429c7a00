//! Dimensions put in another order, added, removed and divided.

use super::arguments::{dimension, new_dimension, SHAPE};
use super::{layer, Rules};
use crate::spec::MAX_RANK;
use crate::yaml::{Kind, Reader, INTEGER};
use crate::{Dim, OutOfRange, TensorType};

const ORDER: Reader<Vec<i64>> = Reader::new("a list of whole numbers", |node| {
    let Kind::List(items) = &node.kind else { return None };
    items.iter().take(MAX_RANK + 1).map(INTEGER.read).collect()
});

layer! {
    /// Puts the dimensions in another order.
    Permute {
        /// The input's dimensions in the output's order; `-1` is the last.
        dims: Vec<i64> = ORDER;
    }
}

layer! {
    /// Removes a dimension of size 1.
    Squeeze {
        /// The dimension; `-1` is the last.
        dim: i64 = INTEGER;
    }
}

layer! {
    /// Adds a dimension of size 1.
    Unsqueeze {
        /// Its place in the output; `-1` is the last.
        dim: i64 = INTEGER;
    }
}

layer! {
    /// Makes several dimensions of one.
    Unflatten {
        /// The dimension; `-1` is the last.
        dim: i64 = INTEGER;
        /// Its new sizes; `-1` is inferred.
        unflattened_size: Vec<i64> = SHAPE;
    }
}

impl Permute {
    fn infer_one(&self, input: &TensorType) -> Result<TensorType, String> {
        let rank = input.shape.rank();
        let order: Vec<usize> =
            self.dims.iter().map(|dim| dimension(*dim, rank)).collect::<Result<_, _>>()?;
        let all = (0..rank).all(|dim| order.contains(&dim));
        if !all || order.len() != rank {
            return Err(format!(
                "expected each dimension of {input} once in `dims`, found {:?}",
                self.dims
            ));
        }
        Ok(TensorType::new(
            input.dtype,
            order.into_iter().map(|dim| input.dims()[dim].clone()).collect(),
        ))
    }
}

impl Squeeze {
    fn infer_one(&self, input: &TensorType) -> Result<TensorType, String> {
        let mut dims = input.dims().to_vec();
        let along = dimension(self.dim, dims.len())?;
        match dims.remove(along) {
            Dim::Fixed(1) => Ok(TensorType::new(input.dtype, dims)),
            other => {
                Err(format!("expected a size of 1 in dimension {along}, found {other} in {input}"))
            }
        }
    }
}

impl Unsqueeze {
    fn infer_one(&self, input: &TensorType) -> Result<TensorType, String> {
        let mut dims = input.dims().to_vec();
        let along = new_dimension(self.dim, dims.len())?;
        dims.insert(along, Dim::Fixed(1));
        Ok(TensorType::new(input.dtype, dims))
    }
}

impl Unflatten {
    fn infer_one(&self, input: &TensorType) -> Result<TensorType, String> {
        let along = dimension(self.dim, input.shape.rank())?;
        let (dims, size) = (input.dims(), &input.dims()[along]);
        let (wanted, misfit) = (&self.unflattened_size, || {
            format!(
                "cannot make {:?} of {size}, dimension {along} of {input}",
                self.unflattened_size
            )
        });
        let mut known = wanted.iter().filter_map(|size| u64::try_from(*size).ok());
        let known = known.try_fold(1, u64::checked_mul).ok_or(OutOfRange)?;
        let rest = size.exact_div(known).ok_or_else(misfit)?;
        if !wanted.contains(&-1) && rest != Dim::Fixed(1) {
            return Err(misfit());
        }
        let part = |size: &i64| u64::try_from(*size).map_or(rest.clone(), Dim::Fixed);
        let parts: Vec<Dim> = wanted.iter().map(part).collect();
        Ok(TensorType::new(input.dtype, [&dims[..along], &parts, &dims[along + 1..]].concat()))
    }
}

/// Rules of a layer that computes nothing.
macro_rules! arranging {
    ($($Name:ident),*) => {$(
        impl Rules for $Name {
            fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
                Ok(vec![self.infer_one(&inputs[0])?])
            }

            fn flops(&self, _: &[TensorType], _: &[TensorType]) -> Result<Dim, OutOfRange> {
                Ok(Dim::Fixed(0))
            }
        }
    )*};
}

arranging! { Permute, Squeeze, Unsqueeze, Unflatten }
