//! Samples that workers read from files of their own: they are sent numbers, and the boss carries no data.

use layerspec::ValueId;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Names a data set by a SHA-256 of what is read, how, and of the files' contents.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct DataId(pub [u8; 32]);

impl fmt::Display for DataId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "data ")?;
        self.0.iter().take(4).try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A data set that workers are to open.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DataSpec {
    /// What it must be.
    pub id: DataId,
    /// What is read and how, in a form that sessions do not look into.
    pub description: Vec<u8>,
    /// The model's inputs, in the order in which the data has them.
    pub inputs: Vec<ValueId>,
}

/// The samples of a round.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Samples {
    /// Of which data set.
    pub data: DataId,
    /// The numbers of one batch, which is cut into the round's microbatches, or of one batch for each microbatch.
    pub batches: Vec<Vec<i64>>,
    /// The numbers of the batch that is likely to come next, so that it can be read meanwhile; none where that is not known.
    pub next: Vec<i64>,
}

impl Samples {
    /// The place of the batch that a microbatch is of, and its part of it; nothing where there is no such part.
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

/// The samples of one of so many microbatches of a batch, as `torch.tensor_split` cuts it: the first ones have one more where
/// it does not go up evenly. Nothing where there are more microbatches than samples.
pub fn part(samples: usize, microbatch: u32, microbatches: u32) -> Option<Range<usize>> {
    let (index, count) = (microbatch as usize, microbatches as usize);
    if index >= count || count > samples {
        return None;
    }
    let (each, larger) = (samples / count, samples % count);
    let start = index * each + index.min(larger);
    Some(start..start + each + usize::from(index < larger))
}

/// One of the tensors that a sample has.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Column {
    /// An input of the model.
    Input(ValueId),
    /// What the model's output should be.
    Target,
}

/// A microbatch to be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reading {
    /// Of which data set.
    pub data: DataId,
    /// The numbers of its batch, by which sequences are padded.
    pub batch: Arc<[i64]>,
    /// Its part of the batch.
    pub part: Range<usize>,
    /// What of it is wanted.
    pub columns: Vec<Column>,
}

/// What the driver has done beside the compute thread.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DataTask {
    /// Open a data set; there is no tensor in the result.
    Open(DataSpec),
    /// Read a microbatch: a tensor for each of its columns.
    Read(Reading),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_cut_as_by_tensor_split() {
        let parts = |samples, count| (0..count).map(|index| part(samples, index, count)).collect::<Vec<_>>();
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
