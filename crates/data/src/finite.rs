//! Finds NaN and infinity in files. Nothing can be learned from them, and a single one turns all
//! weights into NaN.

use tch::{Kind, Tensor};
use tensor::TensorError;

/// Describes the first element of a batch that is not a finite number. Returns `None` if all are
/// finite. `numbers` are the sample numbers of the batch.
pub(super) fn first_non_finite(
    batch: &Tensor,
    numbers: &[i64],
    wanted: &str,
) -> Result<Option<String>, TensorError> {
    // A sum is finite only if each of its terms is. The sum is several times as fast as a test of
    // each.
    if batch.f_sum(Kind::Double)?.f_double_value(&[])?.is_finite() {
        return Ok(None);
    }
    let places = batch.f_isfinite()?.f_logical_not()?.f_nonzero()?;
    if places.size().first() == Some(&0) {
        return Ok(None);
    }
    let place = Vec::<i64>::try_from(places.f_select(0, 0)?)?;
    let value = batch.f_double_value(&place)?;
    let Some((row, within)) = place.split_first() else { return Ok(None) };
    let sample =
        usize::try_from(*row).ok().and_then(|row| numbers.get(row)).copied().unwrap_or(*row);
    let element = if within.is_empty() { String::new() } else { format!(", element {within:?}") };
    Ok(Some(format!(
        "sample {sample} of `{wanted}`{element} (counted from 0) is {value}, no number to train \
         with; mend it, or leave the sample out"
    )))
}
