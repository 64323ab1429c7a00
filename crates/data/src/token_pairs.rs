//! Pairs of sequences of any length. A batch of them is padded, with masks that mark the padding.

use super::spool::{Spool, Store};
use crate::DataError;
use layerspec::DType;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tch::Tensor;

/// The class of positions that the loss leaves out, like PyTorch's `ignore_index`.
pub(super) const IGNORED: i64 = -100;

/// The tokens of all pairs, one pair after the other.
#[derive(Debug)]
pub(super) struct TokenPairs {
    path: PathBuf,
    store: Store,
    /// The starts of the sequences, first and second of each pair in turn, and the end of the last
    /// one.
    starts: Vec<u64>,
    special_tokens: SpecialTokens,
    /// The number of positions in each batch. `None` if it follows from the longest sequence.
    length: Option<usize>,
}

/// The tokens that stand for no text.
#[derive(Clone, Copy, Debug)]
pub(super) struct SpecialTokens {
    pub(super) bos: i64,
    pub(super) source_eos: i64,
    pub(super) target_eos: i64,
    pub(super) source_pad: i64,
    pub(super) target_pad: i64,
}

/// The part of a pair that an input of the model, or its target, holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The first sequence and its end token.
    Source,
    /// The begin token and the second sequence.
    Target,
    /// The padding mask of the first sequence.
    SourcePadding,
    /// The padding mask of the second sequence.
    TargetPadding,
    /// The second sequence and its end token. Each position holds the token that follows the token
    /// of [`Role::Target`] there.
    Labels,
}

/// Writes pairs into a [`TokenPairs`].
pub(super) struct PairsWriter {
    spool: Spool,
    starts: Vec<u64>,
    /// The most tokens that a sequence keeps.
    most: usize,
}

impl PairsWriter {
    pub(super) fn new(most: usize) -> Self {
        PairsWriter { spool: Spool::new(), starts: vec![0], most }
    }

    /// Appends the first sequence of a pair or, after it, the second.
    pub(super) fn push(&mut self, tokens: &[u32]) -> Result<(), DataError> {
        tokens
            .iter()
            .take(self.most)
            .try_for_each(|token| self.spool.write(&token.to_le_bytes()))?;
        self.starts.push(self.spool.length() / 4);
        Ok(())
    }

    pub(super) fn finish(
        self,
        path: &Path,
        marks: SpecialTokens,
        length: Option<usize>,
    ) -> Result<TokenPairs, DataError> {
        let PairsWriter { spool, starts, .. } = self;
        Ok(TokenPairs {
            path: path.to_path_buf(),
            store: spool.finish()?,
            starts,
            special_tokens: marks,
            length,
        })
    }
}

/// One input of the model.
#[derive(Clone, Debug)]
pub(super) struct PairColumn {
    pub(super) pairs: Arc<TokenPairs>,
    pub(super) role: Role,
}

impl PairColumn {
    pub(super) fn samples(&self) -> u64 {
        (self.pairs.starts.len() / 2) as u64
    }

    /// Returns the number of tokens in both sequences of a pair.
    pub(super) fn length(&self, number: i64) -> Option<u64> {
        let first = usize::try_from(number).ok()?.checked_mul(2)?;
        let starts = &self.pairs.starts;
        Some(starts.get(first.checked_add(2)?)? - starts.get(first)?)
    }

    pub(super) fn dtype(&self) -> DType {
        match self.role {
            Role::SourcePadding | Role::TargetPadding => DType::Bool,
            Role::Source | Role::Target | Role::Labels => DType::Int64,
        }
    }

    fn is_second(&self) -> bool {
        !matches!(self.role, Role::Source | Role::SourcePadding)
    }

    /// Returns the number of positions in this batch.
    pub(super) fn width(&self, batch: &[i64]) -> Result<usize, DataError> {
        if let Some(length) = self.pairs.length {
            return Ok(length);
        }
        let mut longest = 0;
        for number in batch {
            let (start, end) = self.pairs.ends(*number, self.is_second())?;
            longest = longest.max((end - start) as usize);
        }
        // Add one for the mark at the end or at the beginning.
        Ok(longest + 1)
    }

    /// Returns these samples, padded to `width` positions.
    pub(super) fn rows(&self, numbers: &[i64], width: usize) -> Result<Tensor, DataError> {
        let sequences = numbers.iter().map(|number| self.pairs.sequence(*number, self.is_second()));
        let sequences: Vec<Vec<i64>> = sequences.collect::<Result<_, _>>()?;
        let marks = &self.pairs.special_tokens;
        let (first, last, pad) = match self.role {
            Role::Source => (None, Some(marks.source_eos), marks.source_pad),
            Role::Target => (Some(marks.bos), None, marks.target_pad),
            Role::Labels => (None, Some(marks.target_eos), IGNORED),
            // A mask is 0 at all positions except padding.
            Role::SourcePadding | Role::TargetPadding => (None, Some(0), 1),
        };
        let mask = self.dtype() == DType::Bool;
        let mut padded = Vec::new();
        let room = numbers
            .len()
            .checked_mul(width)
            .filter(|numbers| padded.try_reserve_exact(*numbers).is_ok());
        if room.is_none() {
            return Err(DataError::file(
                &self.pairs.path,
                format!("no memory for pairs of {width} positions"),
            ));
        }
        for mut sequence in sequences {
            if mask {
                sequence.fill(0);
            }
            let row = first.into_iter().chain(sequence).chain(last).chain(std::iter::repeat(pad));
            padded.extend(row.take(width));
        }
        let shape = [numbers.len() as i64, width as i64];
        let bytes: Vec<u8> = match mask {
            true => padded.iter().map(|number| u8::from(*number != 0)).collect(),
            false => padded.iter().flat_map(|number| number.to_le_bytes()).collect(),
        };
        Ok(tensor::payload::from_bytes(self.dtype(), &shape, bytes.into())?)
    }
}

impl TokenPairs {
    /// Returns the start and the end of a sequence.
    fn ends(&self, number: i64, second: bool) -> Result<(u64, u64), DataError> {
        let place = usize::try_from(number)
            .ok()
            .and_then(|number| number.checked_mul(2)?.checked_add(second.into()));
        let ends =
            place.and_then(|place| Some((*self.starts.get(place)?, *self.starts.get(place + 1)?)));
        ends.ok_or_else(|| DataError::file(&self.path, format!("no pair {number}")))
    }

    fn sequence(&self, number: i64, second: bool) -> Result<Vec<i64>, DataError> {
        let error = |problem: String| DataError::file(&self.path, problem);
        let (start, end) = self.ends(number, second)?;
        let mut bytes = vec![0; (end - start) as usize * 4];
        self.store.read(start * 4, &mut bytes).map_err(|e| error(format!("pair {number}: {e}")))?;
        Ok(bytes
            .chunks_exact(4)
            .map(|b| i64::from(u32::from_le_bytes([b[0], b[1], b[2], b[3]])))
            .collect())
    }
}
