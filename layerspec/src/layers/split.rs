use super::arguments::dimension;
use super::{layer, Rules};
use crate::yaml::{Kind, Reader, INTEGER, SIZE};
use crate::{Dim, OutOfRange, TensorType};
use serde::{Deserialize, Serialize};

/// More outputs are refused, so that no file can make a layer grow without end.
const MAX_PARTS: u64 = 256;

/// How [`Split`] cuts.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Sections {
    /// Into parts of this size; the last may be smaller.
    Each(u64),
    /// Into parts of these sizes.
    Sizes(Vec<u64>),
}

const SECTIONS: Reader<Sections> =
    Reader::new("a whole number, 1 or more, or a list of up to 256 of them", |node| {
        match &node.kind {
            Kind::List(items) if (1..=MAX_PARTS).contains(&(items.len() as u64)) => {
                items.iter().map(SIZE.read).collect::<Option<_>>().map(Sections::Sizes)
            }
            Kind::List(_) => None,
            _ => (SIZE.read)(node).map(Sections::Each),
        }
    });

layer! {
    /// Cuts its input along a dimension into several outputs, each of which `out_variables` can
    /// name.
    Split {
        /// The size of each part, of which the last may be smaller; or a list of the parts' sizes.
        split_size_or_sections: Sections = SECTIONS;
        /// The dimension; `-1` is the last.
        dim: i64 = INTEGER, or 0;
    }
}

layer! {
    /// Cuts its input along a dimension into several outputs. `out_variables` can name them.
    Chunk {
        /// The number of parts. If the size does not divide by it, the last part is smaller, or
        /// there are fewer.
        chunks: u64 = SIZE;
        /// The dimension; `-1` is the last.
        dim: i64 = INTEGER, or 0;
    }
}

/// Equal parts of a size, of which the last may be smaller.
fn parts_of(size: u64, each: u64) -> Result<Vec<Dim>, String> {
    let (whole, rest) =
        (size.checked_div(each).ok_or(OutOfRange)?, size.checked_rem(each).ok_or(OutOfRange)?);
    if whole >= MAX_PARTS {
        return Err(format!(
            "expected at most {MAX_PARTS} parts, found parts of {each} of a size of {size}"
        ));
    }
    let mut parts = vec![Dim::Fixed(each); usize::try_from(whole).map_err(|_| OutOfRange)?];
    parts.extend((rest > 0).then_some(Dim::Fixed(rest)));
    Ok(parts)
}

/// The input with these sizes, one after the other, in the place of dimension `along`.
fn outputs(input: &TensorType, along: usize, parts: Vec<Dim>) -> Vec<TensorType> {
    let part = |size: Dim| {
        let mut dims = input.dims().to_vec();
        dims[along] = size;
        TensorType::new(input.dtype, dims)
    };
    parts.into_iter().map(part).collect()
}

impl Rules for Split {
    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let input = &inputs[0];
        let along = dimension(self.dim, input.shape.rank())?;
        let Some(size) = input.dims()[along].as_fixed() else {
            return Err(format!(
                "expected a size that is a number in dimension {along}, found {input}; `Chunk` \
                 divides symbolic sizes"
            ));
        };
        let parts = match &self.split_size_or_sections {
            Sections::Each(each) => parts_of(size, *each)?,
            Sections::Sizes(sizes) => {
                let sum = sizes
                    .iter()
                    .try_fold(0u64, |sum, size| sum.checked_add(*size))
                    .ok_or(OutOfRange)?;
                if sum != size || sizes.len() as u64 > MAX_PARTS {
                    return Err(format!(
                        "expected parts that make up dimension {along} of {input}, found {sizes:?}"
                    ));
                }
                sizes.iter().copied().map(Dim::Fixed).collect()
            }
        };
        Ok(outputs(input, along, parts))
    }

    fn flops(&self, _: &[TensorType], _: &[TensorType]) -> Result<Dim, OutOfRange> {
        Ok(Dim::Fixed(0))
    }
}

impl Rules for Chunk {
    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let input = &inputs[0];
        let along = dimension(self.dim, input.shape.rank())?;
        if !(1..=MAX_PARTS).contains(&self.chunks) {
            return Err(format!("expected at most {MAX_PARTS} chunks, found {}", self.chunks));
        }
        let parts = match (&input.dims()[along], input.dims()[along].exact_div(self.chunks)) {
            (Dim::Fixed(size), _) => parts_of(*size, size.div_ceil(self.chunks).max(1))?,
            (Dim::Symbolic(_), Some(each)) => vec![each; self.chunks as usize],
            (symbol, None) => {
                return Err(format!(
                    "expected a size that divides by {} (chunks), found {symbol} in {input}",
                    self.chunks
                ))
            }
        };
        Ok(outputs(input, along, parts))
    }

    fn flops(&self, _: &[TensorType], _: &[TensorType]) -> Result<Dim, OutOfRange> {
        Ok(Dim::Fixed(0))
    }
}
