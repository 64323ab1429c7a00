//! Elements in another order along dimensions.

use super::arguments::{bad, dimension, named_dimensions, WHOLE_NUMBERS};
use super::{layer, BadArgument, Rules};
use crate::{Dim, OutOfRange, TensorType};

layer! {
    /// Moves elements along dimensions. Elements that leave at one end enter at the other.
    Roll {
        /// How far elements move along each of `dims`; below zero they move to the beginning.
        shifts: Vec<i64> = WHOLE_NUMBERS;
        /// The dimensions; `-1` is the last.
        dims: Vec<i64> = WHOLE_NUMBERS;
    }
}

layer! {
    /// Reverses the order of elements along dimensions.
    Flip {
        /// The dimensions; `-1` is the last.
        dims: Vec<i64> = WHOLE_NUMBERS;
    }
}

impl Rules for Roll {
    fn check(&self) -> Result<(), BadArgument> {
        match self.shifts.len() == self.dims.len() {
            true => Ok(()),
            false => Err(bad("shifts", format!("one number for each of {:?}", self.dims))),
        }
    }

    fn mixes_along(&self) -> &[i64] {
        &self.dims
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        for dim in &self.dims {
            dimension(*dim, inputs[0].shape.rank())?;
        }
        Ok(inputs.to_vec())
    }

    fn flops(&self, _: &[TensorType], _: &[TensorType]) -> Result<Dim, OutOfRange> {
        Ok(Dim::Fixed(0))
    }
}

impl Rules for Flip {
    fn mixes_along(&self) -> &[i64] {
        &self.dims
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        named_dimensions(&self.dims, "dims", &inputs[0])?;
        Ok(inputs.to_vec())
    }

    fn flops(&self, _: &[TensorType], _: &[TensorType]) -> Result<Dim, OutOfRange> {
        Ok(Dim::Fixed(0))
    }
}
