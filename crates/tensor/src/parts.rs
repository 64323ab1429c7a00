//! Makes a tensor out of the flat shards of several replicas.

use crate::TensorError;
use std::collections::BTreeMap;
use tch::Tensor;
use thiserror::Error;

/// The parts do not make a whole tensor.
#[derive(Debug, Error)]
pub enum ShardError {
    /// Elements between two parts, or before the first, are missing.
    #[error("elements {from} to {to} are with no replica")]
    Gap {
        /// The first element that is missing or duplicated.
        from: u64,
        /// The first element of the next part.
        to: u64,
    },
    /// The end is missing, or there are too many elements.
    #[error("{came} of {expected} elements came")]
    Length {
        /// The number of elements of the parts.
        came: u64,
        /// The number of elements of the whole.
        expected: u64,
    },
    /// libtorch failed.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

/// Joins parts to a tensor of these sizes. Each part has the element at which it begins. A scalar,
/// such as the optimizer's step count, is in each part and is itself the whole.
///
/// # Errors
/// The parts do not follow each other, or do not fit these sizes.
pub fn concat_shards(parts: BTreeMap<u64, Tensor>, sizes: &[i64]) -> Result<Tensor, ShardError> {
    let mut flat: Vec<Tensor> = Vec::new();
    let mut next = 0;
    for (start, part) in parts {
        if part.dim() == 0 {
            return Ok(part);
        }
        if start != next {
            return Err(ShardError::Gap { from: next, to: start });
        }
        next = start + part.numel() as u64;
        flat.push(part);
    }
    let expected = sizes.iter().product::<i64>().unsigned_abs();
    if next != expected {
        return Err(ShardError::Length { came: next, expected });
    }
    let whole = Tensor::f_cat(&flat, 0).and_then(|flat| flat.f_reshape(sizes));
    Ok(whole.map_err(TensorError::from)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts<const N: usize>(of: [(u64, &[f32]); N]) -> BTreeMap<u64, Tensor> {
        of.into_iter().map(|(start, numbers)| (start, Tensor::from_slice(numbers))).collect()
    }

    #[test]
    fn parts_make_a_whole() {
        let whole = concat_shards(parts([(0, &[1.0, 2.0, 3.0]), (3, &[4.0])]), &[2, 2]).unwrap();
        assert_eq!((whole.size(), whole.double_value(&[1, 1])), (vec![2, 2], 4.0));
        let step = BTreeMap::from([(0, Tensor::from(7.0f32)), (3, Tensor::from(7.0f32))]);
        assert_eq!(concat_shards(step, &[2, 2]).unwrap().double_value(&[]), 7.0);
    }

    #[test]
    fn what_makes_none_says_why() {
        let of = |parts, sizes: &[i64]| concat_shards(parts, sizes).unwrap_err().to_string();
        assert_eq!(of(parts([(1, &[1.0])]), &[2]), "elements 0 to 1 are with no replica");
        assert_eq!(
            of(parts([(0, &[1.0, 2.0]), (1, &[3.0])]), &[3]),
            "elements 2 to 1 are with no replica"
        );
        assert_eq!(of(parts([(0, &[1.0])]), &[2]), "1 of 2 elements came");
        assert_eq!(of(BTreeMap::new(), &[2]), "0 of 2 elements came");
    }
}
