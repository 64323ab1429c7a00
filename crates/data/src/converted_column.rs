//! Converts a column to the dtype, shape and range that the model takes.

use super::column::Column;
use super::expected_tensor::ExpectedTensor;
use super::finite;
use super::normalize::Normalize;
use crate::DataError;
use layerspec::DType;
use pipeline::frame::MAX_BODY_BYTES;
use std::ops::Range;
use std::path::Path;
use tch::{Kind, Tensor};
use tensor::TensorError;

/// A column with the conversion of its batches.
#[derive(Clone, Debug)]
pub(super) struct ConvertedColumn {
    /// The model's name for it.
    name: String,
    column: Column,
    kind: Kind,
    /// The shape of a sample, if it differs from the column's.
    reshape: Option<Vec<i64>>,
    normalize: Option<Normalize>,
}

impl ConvertedColumn {
    /// As [`Column::path`].
    pub(super) fn path(&self) -> Option<&Path> {
        self.column.path()
    }

    /// As [`Column::picture`].
    pub(super) fn picture(&self, number: i64) -> Option<&Path> {
        self.column.picture(number)
    }

    /// As [`Column::length`].
    pub(super) fn length(&self, number: i64) -> Option<u64> {
        self.column.length(number)
    }

    /// Makes the conversion. Errors do not name the file.
    pub(super) fn new(
        column: Column,
        wanted: &ExpectedTensor,
        normalize: Option<&Normalize>,
    ) -> Result<Self, String> {
        let ExpectedTensor { name, dtype, .. } = wanted;
        let found = column.dtype();
        if !converts(found, *dtype) {
            return Err(format!("`{name}` is {found}, but {dtype} is wanted"));
        }
        let reshape = reshape(column.shape(), wanted)?;
        let kind = tensor::kind_of(*dtype);
        if let Some(normalize) = normalize {
            if !Normalize::suits(kind) {
                return Err(format!(
                    "`normalize` goes with numbers, but the model takes `{name}` as {dtype}"
                ));
            }
            let sizes = reshape
                .as_ref()
                .map(|sizes| sizes.iter().map(|size| size.unsigned_abs()).collect::<Vec<_>>());
            normalize.check(sizes.as_deref().or(column.shape()))?;
        }
        Ok(ConvertedColumn {
            name: name.clone(),
            column,
            kind,
            reshape,
            normalize: normalize.cloned(),
        })
    }

    /// Returns the shape of a sample within this batch, as the model takes it.
    pub(super) fn shape_in_batch(&self, batch: &[i64]) -> Result<Vec<u64>, DataError> {
        match &self.reshape {
            Some(shape) => Ok(shape.iter().map(|size| size.unsigned_abs()).collect()),
            None => self.column.shape_in_batch(batch),
        }
    }

    /// Refuses more samples of a batch than a message can carry. The request may come from
    /// elsewhere.
    pub(super) fn check_size(&self, batch: &[i64], samples: usize) -> Result<(), DataError> {
        let sizes = self.shape_in_batch(batch)?;
        let of_element = samples as u64 * self.kind.elt_size_in_bytes() as u64;
        let bytes = sizes.iter().try_fold(of_element, |bytes, size| bytes.checked_mul(*size));
        match bytes.filter(|bytes| *bytes <= MAX_BODY_BYTES) {
            Some(_) => Ok(()),
            None => Err(DataError::Usage(format!(
                "{samples} samples of `{}` of shape {sizes:?} are too many",
                self.name
            ))),
        }
    }

    pub(super) fn samples(&self) -> u64 {
        self.column.samples()
    }

    /// Returns a part of the samples of a batch, converted to what the model takes.
    ///
    /// # Errors
    /// The file cannot be read, or an element is NaN, infinite, or too large for the model's type.
    pub(super) fn rows(&self, batch: &[i64], part: Range<usize>) -> Result<Tensor, DataError> {
        let numbers = &batch[part.clone()];
        let refuse = |problem: Option<String>| match problem {
            Some(problem) => {
                let path = self.column.path().unwrap_or_else(|| Path::new("the data"));
                Err(DataError::file(path, problem))
            }
            None => Ok(()),
        };
        let mut batch = self.column.rows(batch, part)?;
        if let Some(shape) = &self.reshape {
            let shape: Vec<i64> = [numbers.len() as i64].iter().chain(shape).copied().collect();
            batch = batch.f_reshape(shape).map_err(TensorError::from)?;
        }
        if self.kind == Kind::Int && self.column.dtype() == DType::Int64 {
            refuse(finite::first_beyond_int32(&batch, numbers, &self.name)?)?;
        }
        batch = batch.f_to_kind(self.kind_to_compute_in()).map_err(TensorError::from)?;
        if let Some(normalize) = &self.normalize {
            batch = normalize.apply(&batch)?.f_to_kind(self.kind).map_err(TensorError::from)?;
        }
        // Any other whole number is finite in any type of floats.
        let floating = self.column.dtype().is_floating();
        if floating || self.kind == Kind::Half || self.normalize.is_some() {
            refuse(finite::first_non_finite(&batch, numbers, &self.name)?)?;
        }
        Ok(batch)
    }

    /// Returns the kind in which batches are normalized. It can hold the numbers of the column.
    /// Without `normalize` it is the model's.
    fn kind_to_compute_in(&self) -> Kind {
        let in_float = self.kind == Kind::Float && self.column.fits_float32();
        match self.normalize {
            Some(_) if !in_float => Kind::Double,
            _ => self.kind,
        }
    }
}

/// Returns whether elements keep their meaning. Fractions are never cut off. Floats accept every
/// type, and int64 and int32 every whole type. Each batch is checked for numbers beyond int32.
fn converts(found: DType, wanted: DType) -> bool {
    let whole = |dtype| matches!(dtype, DType::Int64 | DType::Int32 | DType::UInt8 | DType::Bool);
    found == wanted
        || !whole(wanted)
        || (matches!(wanted, DType::Int64 | DType::Int32) && whole(found))
}

/// Returns the new shape of samples, if it differs from theirs. Dimensions of size 1 may be added
/// or dropped. Dimensions may be flattened into one or split from one, because the elements keep
/// their order. Any other difference is probably a mistake.
fn reshape(found: Option<&[u64]>, wanted: &ExpectedTensor) -> Result<Option<Vec<i64>>, String> {
    let (Some(found), Some(shape)) = (found, &wanted.shape) else { return Ok(None) };
    let fits = |(found, wanted): (&u64, &Option<u64>)| wanted.is_none_or(|wanted| wanted == *found);
    if found.len() == shape.len() && found.iter().zip(shape).all(fits) {
        return Ok(None);
    }
    let no_ones =
        |sizes: &[u64]| sizes.iter().copied().filter(|size| *size != 1).collect::<Vec<_>>();
    let product =
        |sizes: &[u64]| sizes.iter().try_fold(1u64, |product, size| product.checked_mul(*size));
    match wanted.sizes() {
        Some(sizes)
            if product(&sizes) == product(found)
                && (no_ones(&sizes) == no_ones(found) || sizes.len() <= 1 || found.len() <= 1) =>
        {
            Ok(Some(sizes.iter().map(|size| size.cast_signed()).collect()))
        }
        _ => Err(format!(
            "a sample of `{}` has the shape {found:?}, but {} is wanted",
            wanted.name,
            wanted.shape_in_words()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_take_the_shape_that_the_model_wants_where_their_elements_keep_their_order() {
        let shape = |found: &[u64], wanted: &[Option<u64>]| {
            let wanted = ExpectedTensor {
                name: "x".into(),
                dtype: DType::Float32,
                shape: Some(wanted.to_vec()),
                num_embeddings: None,
            };
            reshape(Some(found), &wanted)
        };
        let all = |sizes: &[u64]| sizes.iter().copied().map(Some).collect::<Vec<_>>();
        assert_eq!(shape(&[28, 28], &all(&[28, 28])), Ok(None));
        assert_eq!(shape(&[28, 28], &all(&[1, 28, 28])), Ok(Some(vec![1, 28, 28])));
        assert_eq!(shape(&[28, 28], &all(&[784])), Ok(Some(vec![784])));
        assert_eq!(shape(&[12], &all(&[3, 4])), Ok(Some(vec![3, 4])));
        assert_eq!(shape(&[1], &all(&[])), Ok(Some(vec![])));
        assert_eq!(shape(&[9, 4], &[None, Some(4)]), Ok(None));
        assert!(shape(&[3, 4], &all(&[4, 3])).is_err());
        let error = shape(&[9, 4], &[None, Some(5)]).unwrap_err();
        assert_eq!(error, "a sample of `x` has the shape [9, 4], but [any, 5] is wanted");
    }

    #[test]
    fn no_fraction_is_cut_off() {
        assert!(converts(DType::UInt8, DType::Float32) && converts(DType::Float64, DType::Float32));
        assert!(converts(DType::UInt8, DType::Int64) && converts(DType::Int32, DType::Int64));
        assert!(converts(DType::Int64, DType::Int32) && !converts(DType::Float64, DType::Int32));
        assert!(!converts(DType::Float32, DType::Int64) && !converts(DType::Int64, DType::UInt8));
    }
}
