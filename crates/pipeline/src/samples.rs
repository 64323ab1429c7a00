//! Samples that workers read from their own files. The boss sends only their numbers.

use layerspec::ValueId;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Identifies a data set by a SHA-256 over its description and the files' contents.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct DataId(pub [u8; 32]);

impl fmt::Display for DataId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "data ")?;
        self.0.iter().take(4).try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A data set that workers open.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DataSpec {
    /// The identity that the worker's files must have.
    pub id: DataId,
    /// The description of the data, in a form that sessions do not read.
    pub description: Vec<u8>,
    /// The model's inputs, in the order in which the data has them.
    pub inputs: Vec<ValueId>,
}

/// The samples of a round.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Samples {
    /// The data set.
    pub data: DataId,
    /// The sample numbers of one batch, which is cut into the round's microbatches, or of one batch
    /// for each microbatch.
    pub batches: Vec<Vec<i64>>,
    /// The sample numbers of the probable next batch, to read ahead. Empty if unknown.
    pub next: Vec<i64>,
}

impl Samples {
    /// The index of a microbatch's batch, and its part of that batch. `None` if there is no such
    /// part.
    pub fn part(&self, microbatch: u32, microbatches: u32) -> Option<(usize, Range<usize>)> {
        match self.batches.as_slice() {
            [batch] => Some((0, part(batch.len(), microbatch, microbatches)?)),
            batches if batches.len() == microbatches as usize => {
                let place = microbatch as usize;
                let batch = batches.get(place).filter(|batch| !batch.is_empty())?;
                Some((place, 0..batch.len()))
            }
            _ => None,
        }
    }
}

/// The samples of one microbatch of a batch, cut as by `torch.tensor_split`: if the sizes are
/// uneven, the first ones have one more. `None` if there are more microbatches than samples.
pub fn part(samples: usize, microbatch: u32, microbatches: u32) -> Option<Range<usize>> {
    let (index, count) = (microbatch as usize, microbatches as usize);
    if index >= count || count > samples {
        return None;
    }
    let (each, larger) = (samples / count, samples % count);
    let start = index * each + index.min(larger);
    Some(start..start + each + usize::from(index < larger))
}

/// One of the tensors of a sample.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Column {
    /// An input of the model.
    Input(ValueId),
    /// The target.
    Target,
}

/// A microbatch to read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reading {
    /// The data set.
    pub data: DataId,
    /// The sample numbers of its batch, whose longest sequence sets the padding.
    pub batch: Arc<[i64]>,
    /// Its part of the batch.
    pub part: Range<usize>,
    /// The columns to read.
    pub columns: Vec<Column>,
}

/// A task beside the compute thread.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DataTask {
    /// Open a data set. The result has no tensor.
    Open(DataSpec),
    /// Read a microbatch. The result has a tensor for each of its columns.
    Read(Reading),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_cut_as_by_tensor_split() {
        let parts = |samples, count| {
            (0..count).map(|index| part(samples, index, count)).collect::<Vec<_>>()
        };
        assert_eq!(parts(7, 3), [Some(0..3), Some(3..5), Some(5..7)]);
        assert_eq!(parts(4, 4), [Some(0..1), Some(1..2), Some(2..3), Some(3..4)]);
        assert_eq!((part(2, 0, 3), part(4, 2, 2), part(0, 0, 1)), (None, None, None));
    }

    #[test]
    fn a_round_has_one_batch_cut_or_a_batch_for_each_microbatch() {
        let samples = |batches: &[&[i64]]| {
            let batches = batches.iter().map(|batch| batch.to_vec()).collect();
            Samples { data: DataId([0; 32]), batches, next: Vec::new() }
        };
        assert_eq!(samples(&[&[5, 6, 7]]).part(1, 2), Some((0, 2..3)));
        assert_eq!(samples(&[&[5, 6], &[7]]).part(1, 2), Some((1, 0..1)));
        assert_eq!(samples(&[&[5, 6], &[7]]).part(1, 3), None);
        assert_eq!(samples(&[&[5, 6], &[]]).part(1, 2), None);
        assert_eq!(samples(&[]).part(0, 1), None);
    }
}
