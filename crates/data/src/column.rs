//! What a batch is taken from: something that gives the samples of any numbers as one tensor.

use super::images::Images;
use super::ragged::Padded;
use super::stored::Stored;
use crate::DataError;
use layerspec::DType;
use std::ops::Range;
use std::path::Path;
use tch::Tensor;

/// One input or the target of a data set.
#[derive(Clone, Debug)]
pub(super) enum Column {
    Stored(Stored),
    Images(Images),
    Padded(Padded),
}

impl Column {
    pub(super) fn samples(&self) -> u64 {
        match self {
            Column::Stored(stored) => stored.samples(),
            Column::Images(images) => images.samples(),
            Column::Padded(padded) => padded.samples(),
        }
    }

    /// The file it is read from, where that is one of its own.
    pub(super) fn path(&self) -> Option<&Path> {
        match self {
            Column::Stored(stored) => Some(stored.path()),
            Column::Images(_) | Column::Padded(_) => None,
        }
    }

    /// What its tensors are of.
    pub(super) fn dtype(&self) -> DType {
        match self {
            Column::Stored(stored) => stored.layout().element.dtype(),
            Column::Images(_) => DType::UInt8,
            Column::Padded(padded) => padded.dtype(),
        }
    }

    /// The shape of a sample; nothing where it depends on the batch.
    pub(super) fn shape(&self) -> Option<&[u64]> {
        match self {
            Column::Stored(stored) => Some(&stored.layout().shape),
            Column::Images(images) => Some(images.shape()),
            Column::Padded(_) => None,
        }
    }

    /// Tokens of a sample, where samples differ in that.
    pub(super) fn length(&self, number: i64) -> Option<u64> {
        match self {
            Column::Stored(_) | Column::Images(_) => None,
            Column::Padded(padded) => padded.length(number),
        }
    }

    /// The shape of a sample in a batch of these.
    pub(super) fn shape_among(&self, batch: &[i64]) -> Result<Vec<u64>, DataError> {
        match self {
            Column::Stored(stored) => Ok(stored.layout().shape.clone()),
            Column::Images(images) => Ok(images.shape().to_vec()),
            Column::Padded(padded) => Ok(vec![padded.width(batch)? as u64]),
        }
    }

    /// The samples of a part of a batch with these numbers, the sample dimension first.
    pub(super) fn rows(&self, batch: &[i64], part: Range<usize>) -> Result<Tensor, DataError> {
        match self {
            Column::Stored(stored) => stored.rows(&batch[part]),
            Column::Images(images) => images.rows(&batch[part]),
            Column::Padded(padded) => padded.rows(&batch[part], padded.width(batch)?),
        }
    }
}
