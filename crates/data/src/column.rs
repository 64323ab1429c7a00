//! The source of a batch: a column returns the samples of any numbers as one tensor.

use super::array_column::ArrayColumn;
use super::images::Images;
use super::token_pairs::PairColumn;
use crate::DataError;
use layerspec::DType;
use std::ops::Range;
use std::path::Path;
use tch::Tensor;

/// One input or the target of a data set.
#[derive(Clone, Debug)]
pub(super) enum Column {
    Array(ArrayColumn),
    Images(Images),
    Pair(PairColumn),
}

/// The columns for the model's inputs, in the model's order, and for the target.
pub(super) struct Columns {
    pub(super) inputs: Vec<Column>,
    /// `None` if no target is requested.
    pub(super) target: Option<Column>,
}

impl Column {
    pub(super) fn samples(&self) -> u64 {
        match self {
            Column::Array(stored) => stored.samples(),
            Column::Images(images) => images.samples(),
            Column::Pair(padded) => padded.samples(),
        }
    }

    /// Returns the column's file, if it has one of its own.
    pub(super) fn path(&self) -> Option<&Path> {
        match self {
            Column::Array(stored) => Some(stored.path()),
            Column::Images(_) | Column::Pair(_) => None,
        }
    }

    /// Returns the file of a sample, if each sample is a picture.
    pub(super) fn picture(&self, number: i64) -> Option<&Path> {
        match self {
            Column::Images(images) => images.file(number),
            Column::Array(_) | Column::Pair(_) => None,
        }
    }

    /// Returns the dtype of its tensors.
    pub(super) fn dtype(&self) -> DType {
        match self {
            Column::Array(stored) => stored.layout().element.dtype(),
            Column::Images(_) => DType::UInt8,
            Column::Pair(padded) => padded.dtype(),
        }
    }

    /// Returns whether float32 holds each of its numbers exactly, by the type of its elements.
    pub(super) fn fits_float32(&self) -> bool {
        match self {
            Column::Array(stored) => stored.layout().element.fits_float32(),
            Column::Images(_) => true,
            Column::Pair(_) => false,
        }
    }

    /// Returns the shape of a sample, or `None` if it depends on the batch.
    pub(super) fn shape(&self) -> Option<&[u64]> {
        match self {
            Column::Array(stored) => Some(&stored.layout().shape),
            Column::Images(images) => Some(images.shape()),
            Column::Pair(_) => None,
        }
    }

    /// Returns the number of tokens of a sample, if samples differ in length.
    pub(super) fn length(&self, number: i64) -> Option<u64> {
        match self {
            Column::Array(_) | Column::Images(_) => None,
            Column::Pair(padded) => padded.length(number),
        }
    }

    /// Returns the shape of a sample within this batch.
    pub(super) fn shape_in_batch(&self, batch: &[i64]) -> Result<Vec<u64>, DataError> {
        match self {
            Column::Array(stored) => Ok(stored.layout().shape.clone()),
            Column::Images(images) => Ok(images.shape().to_vec()),
            Column::Pair(padded) => Ok(vec![padded.width(batch)? as u64]),
        }
    }

    /// Returns a part of the samples of a batch as a tensor. The sample dimension comes first.
    pub(super) fn rows(&self, batch: &[i64], part: Range<usize>) -> Result<Tensor, DataError> {
        match self {
            Column::Array(stored) => stored.rows(&batch[part]),
            Column::Images(images) => images.rows(&batch[part]),
            Column::Pair(padded) => padded.rows(&batch[part], padded.width(batch)?),
        }
    }
}
