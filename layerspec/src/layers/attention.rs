//! Checks of the inputs of attention layers, and the cost of attention.

use crate::{DType, Dim, OutOfRange, TensorType};

/// A sequence of vectors for each sample.
#[derive(Copy, Clone)]
pub(super) struct Sequence<'a> {
    pub(super) samples: &'a Dim,
    pub(super) positions: &'a Dim,
}

impl<'a> Sequence<'a> {
    /// The sizes of a tensor whose last dimension has size `width`.
    pub(super) fn of(tensor: &'a TensorType, batch_first: bool, width: u64) -> Option<Self> {
        let [first, second, last] = tensor.dims() else { return None };
        let [samples, positions] = if batch_first { [first, second] } else { [second, first] };
        (*last == Dim::Fixed(width)).then_some(Sequence { samples, positions })
    }

    /// Like [`Sequence::of`], with an error that names the input (`called`) and the `argument` that
    /// sets the width.
    pub(super) fn expect(
        tensor: &'a TensorType,
        called: &str,
        batch_first: bool,
        argument: &str,
        width: u64,
    ) -> Result<Self, String> {
        if tensor.dtype != DType::Float32 {
            return Err(format!(
                "expected a float32 {called}, as its parameters are, found {}",
                tensor.dtype
            ));
        }
        let dims = if batch_first { "batch, seq" } else { "seq, batch" };
        Sequence::of(tensor, batch_first, width).ok_or_else(|| {
            let article = if called.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" };
            format!("expected {article} {called} [{dims}, {width}] ({argument}), found {tensor}")
        })
    }
}

/// The sizes of an attention: in every sample and head, each query attends to each key.
pub(super) struct AttentionDims<'a> {
    pub(super) queries: Sequence<'a>,
    pub(super) keys: &'a Dim,
    pub(super) heads: u64,
}

impl<'a> AttentionDims<'a> {
    /// Refuses keys of other samples than the queries'.
    pub(super) fn between(
        queries: Sequence<'a>,
        keys: Sequence<'a>,
        heads: u64,
    ) -> Result<Self, String> {
        if queries.samples == keys.samples {
            return Ok(AttentionDims { queries, keys: keys.positions, heads });
        }
        let (one, other) = (queries.samples, keys.samples);
        Err(format!(
            "expected inputs for the same samples, found {one} in the first and {other} in another"
        ))
    }

    /// Refuses a mask that is not `[queries, keys]`, or that for each sample, or for each head of
    /// each sample.
    pub(super) fn expect_mask(&self, mask: &TensorType, argument: &str) -> Result<(), String> {
        let (samples, queries) = (self.queries.samples, self.queries.positions);
        let all_heads = samples.times_number(self.heads)?;
        let fits = match mask.dims() {
            [outer @ .., rows, columns] if rows == queries && columns == self.keys => match outer {
                [] => true,
                [each] => each == samples || *each == all_heads,
                _ => false,
            },
            _ => false,
        };
        if fits && matches!(mask.dtype, DType::Bool | DType::Float32) {
            return Ok(());
        }
        let keys = self.keys;
        Err(format!(
            "`{argument}`: expected a mask [{queries}, {keys}], [{samples}, {queries}, {keys}] or \
             [{all_heads}, {queries}, {keys}] of bool or float32, found {mask}"
        ))
    }

    /// Refuses a mask of keys that is not `[samples, keys]`.
    pub(super) fn expect_padding_mask(
        &self,
        mask: &TensorType,
        argument: &str,
    ) -> Result<(), String> {
        let (samples, keys) = (self.queries.samples, self.keys);
        match mask.dims() {
            [each, columns] if each == samples && columns == keys && mask.dtype == DType::Bool => {
                Ok(())
            }
            _ => Err(format!(
                "`{argument}`: expected a mask [{samples}, {keys}] of bool, found {mask}"
            )),
        }
    }

    /// For each query and key: the products of scores and of values, over heads that together have
    /// this width, and in every head a softmax (5) and dropout (2).
    pub(super) fn flops(&self, width: u64) -> Result<Dim, OutOfRange> {
        let each = Dim::Fixed(width)
            .times_number(4)?
            .plus(&Dim::Fixed(self.heads).times_number(5 + 2)?)?;
        Dim::product([self.queries.samples, self.queries.positions, self.keys, &each])
    }
}
