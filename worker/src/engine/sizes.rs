//! Sizes of the model file as libtorch takes them: `u64` becomes `i64`.

use crate::engine::error::layer_error;
use tensor::TensorError;

/// Sizes as libtorch takes them.
pub(crate) fn sizes(sizes: &[u64]) -> Result<Vec<i64>, TensorError> {
    sizes.iter().map(|&size| self::size(size)).collect()
}

/// Height and width as libtorch takes them.
pub(crate) fn pair([height, width]: [u64; 2]) -> Result<[i64; 2], TensorError> {
    Ok([size(height)?, size(width)?])
}

pub(crate) fn size(size: u64) -> Result<i64, TensorError> {
    i64::try_from(size).map_err(|_| layer_error(format!("a size of {size} is out of range")))
}
