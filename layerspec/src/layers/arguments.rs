//! Readers and checks that several kinds of layer share.

use super::rules::BadArgument;
use crate::spec::MAX_RANK;
use crate::yaml::{Kind, Reader, INTEGER, NON_NEGATIVE, NUMBER, POSITIVE, SIZE};
use crate::{DType, Dim, TensorType};

/// One size or several.
pub(super) const SIZES: Reader<Vec<u64>> =
    Reader::new("a whole number, 1 or more, or a list of them", |node| match &node.kind {
        Kind::List(items) if (1..=MAX_RANK).contains(&items.len()) => {
            items.iter().map(SIZE.read).collect()
        }
        _ => (SIZE.read)(node).map(|size| vec![size]),
    });

/// A size whose default comes from another argument.
pub(super) const OPTIONAL_SIZE: Reader<Option<u64>> =
    Reader::new("a whole number, 1 or more, or null", |node| match node.kind {
        Kind::Null => Some(None),
        _ => (SIZE.read)(node).map(Some),
    });

/// A number, which may be infinite.
pub(super) const NUMBER_OR_INFINITY: Reader<f64> =
    Reader::new("a number, `.inf` or `-.inf`", |node| match node.kind {
        Kind::Float(value) if value.is_infinite() => Some(value),
        _ => (NUMBER.read)(node),
    });

/// A number, or none.
pub(super) const OPTIONAL_NUMBER: Reader<Option<f64>> =
    Reader::new("a number, or null", |node| match node.kind {
        Kind::Null => Some(None),
        _ => (NUMBER.read)(node).map(Some),
    });

/// A number that is not below 0, or none.
pub(super) const OPTIONAL_NON_NEGATIVE: Reader<Option<f64>> =
    Reader::new("a number, 0 or more, or null", |node| match node.kind {
        Kind::Null => Some(None),
        _ => (NON_NEGATIVE.read)(node).map(Some),
    });

/// A number above 0, or none.
pub(super) const OPTIONAL_POSITIVE: Reader<Option<f64>> =
    Reader::new("a number above 0, or null", |node| match node.kind {
        Kind::Null => Some(None),
        _ => (POSITIVE.read)(node).map(Some),
    });

/// A whole number, or several.
pub(super) const WHOLE_NUMBERS: Reader<Vec<i64>> =
    Reader::new("a whole number, or a list of them", |node| match &node.kind {
        Kind::List(items) if (1..=MAX_RANK).contains(&items.len()) => {
            items.iter().map(INTEGER.read).collect()
        }
        Kind::List(_) => None,
        _ => (INTEGER.read)(node).map(|number| vec![number]),
    });

/// A shape, in which one size may be inferred.
pub(super) const SHAPE: Reader<Vec<i64>> = Reader::new(
    "a list of whole numbers, 1 or more, of which one may be -1 (whatever is left)",
    |node| {
        let Kind::List(items) = &node.kind else {
            return None;
        };
        let sizes: Vec<i64> =
            items.iter().take(MAX_RANK + 1).map(INTEGER.read).collect::<Option<_>>()?;
        let sensible = sizes.iter().all(|size| *size >= 1 || *size == -1);
        let unknown = sizes.iter().filter(|size| **size == -1).count();
        ((1..=MAX_RANK).contains(&sizes.len()) && sensible && unknown <= 1).then_some(sizes)
    },
);

/// The dimension of a PyTorch index: `-1` is the last.
pub(super) fn dimension(index: i64, rank: usize) -> Result<usize, String> {
    let from_start = if index < 0 { index.checked_add_unsigned(rank as u64) } else { Some(index) };
    from_start
        .and_then(|index| usize::try_from(index).ok())
        .filter(|index| *index < rank)
        .ok_or_else(|| format!("the input has {rank} dimensions, so there is no dimension {index}"))
}

/// The dimension that an index means in the output of a layer that adds one to `rank` dimensions.
pub(super) fn new_dimension(index: i64, rank: usize) -> Result<usize, String> {
    let rank = rank + 1;
    dimension(index, rank)
        .map_err(|_| format!("the output has {rank} dimensions, so there is no dimension {index}"))
}

/// For each dimension of `input`, whether `dims` names it. None is named twice.
pub(super) fn named_dimensions(
    dims: &[i64],
    argument: &str,
    input: &TensorType,
) -> Result<Vec<bool>, String> {
    let rank = input.shape.rank();
    let mut named = vec![false; rank];
    for dim in dims {
        if std::mem::replace(&mut named[dimension(*dim, rank)?], true) {
            return Err(format!(
                "expected each dimension once in `{argument}`, found {dims:?} for {input}"
            ));
        }
    }
    Ok(named)
}

/// Refuses inputs of another dtype than float32, which parameters have.
pub(super) fn expect_float32(input: &TensorType) -> Result<(), String> {
    match input.dtype {
        DType::Float32 => Ok(()),
        other => Err(format!("expected a float32 input, as its parameters are, found {other}")),
    }
}

/// Refuses inputs that are not floating-point numbers.
pub(super) fn expect_floating(input: &TensorType) -> Result<(), String> {
    if input.dtype.is_floating() {
        return Ok(());
    }
    Err(format!("expected a floating-point input, found {}", input.dtype))
}

/// Refuses an input `[batch, channels, ..]` whose number of channels is not `expected`, which
/// `argument` asks for.
pub(super) fn expect_channels(
    input: &TensorType,
    argument: &str,
    expected: u64,
) -> Result<(), String> {
    match input.dims() {
        [_, channels, ..] if *channels == Dim::Fixed(expected) => Ok(()),
        [_, channels, ..] => {
            Err(format!("expected {expected} channels ({argument}), found {channels} in {input}"))
        }
        _ => Err(format!("expected an input [batch, {expected}, ..] ({argument}), found {input}")),
    }
}

/// Refuses an input whose last dimensions are not `sizes`.
pub(super) fn expect_normalized(input: &TensorType, sizes: &[u64]) -> Result<(), String> {
    let normalized: Vec<Dim> = sizes.iter().copied().map(Dim::Fixed).collect();
    if input.dims().ends_with(&normalized) {
        return Ok(());
    }
    Err(format!("expected an input that ends in {sizes:?} (normalized_shape), found {input}"))
}

/// The sizes of a tensor that begins with 1, with the batch of the input in its place.
pub(super) fn for_each_sample(shape: &[u64], input: &TensorType) -> Result<Vec<Dim>, String> {
    let Some(batch) = input.dims().first() else {
        return Err(format!("expected an input with a batch dimension, found {input}"));
    };
    let sizes = shape.iter().skip(1).copied().map(Dim::Fixed);
    Ok(std::iter::once(batch.clone()).chain(sizes).collect())
}

/// An argument that does not fit the others.
pub(super) fn bad(name: &'static str, expected: impl Into<String>) -> BadArgument {
    BadArgument { name, expected: expected.into() }
}
