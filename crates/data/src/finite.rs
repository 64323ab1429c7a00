//! Finds numbers in files that a model cannot take. Nothing can be learned from NaN and infinity,
//! and a single one turns all weights into NaN. Whole numbers may be too large for int32.

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
    let Some((place, words)) = first(&batch.f_isfinite()?.f_logical_not()?, numbers, wanted)?
    else {
        return Ok(None);
    };
    let value = batch.f_double_value(&place)?;
    Ok(Some(format!(
        "{words} is {value}, no number to train with; mend it, or leave the sample out"
    )))
}

/// Describes the first whole number of a batch that int32 cannot hold. Returns `None` if all fit.
pub(super) fn first_beyond_int32(
    batch: &Tensor,
    numbers: &[i64],
    wanted: &str,
) -> Result<Option<String>, TensorError> {
    let beyond =
        batch.f_lt(i64::from(i32::MIN))?.f_logical_or(&batch.f_gt(i64::from(i32::MAX))?)?;
    let Some((place, words)) = first(&beyond, numbers, wanted)? else { return Ok(None) };
    let value = batch.f_int64_value(&place)?;
    Ok(Some(format!(
        "{words} is {value}, which the model's int32 cannot hold; mend it, or declare the input as \
         int64"
    )))
}

/// Returns the place of the first true element, also in words. Returns `None` if all are false.
fn first(
    wrong: &Tensor,
    numbers: &[i64],
    wanted: &str,
) -> Result<Option<(Vec<i64>, String)>, TensorError> {
    let places = wrong.f_nonzero()?;
    if places.size().first() == Some(&0) {
        return Ok(None);
    }
    let place = Vec::<i64>::try_from(places.f_select(0, 0)?)?;
    let Some((row, within)) = place.split_first() else { return Ok(None) };
    let sample =
        usize::try_from(*row).ok().and_then(|row| numbers.get(row)).copied().unwrap_or(*row);
    let element = if within.is_empty() { String::new() } else { format!(", element {within:?}") };
    let words = format!("sample {sample} of `{wanted}`{element} (counted from 0)");
    Ok(Some((place, words)))
}
