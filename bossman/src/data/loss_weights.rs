//! The weight of each microbatch in the mean of its batch's loss: samples, or targets that are not
//! ignored.

use crate::data::batch_inputs::SampleRange;
use crate::BossManError;
use pipeline::loss::Classes;
use pipeline::LossSpec;
use tch::{Kind, Tensor};
use tensor::TensorError;

/// The weight of each microbatch.
pub(crate) fn loss_weights(
    loss: &LossSpec,
    target: Option<&Tensor>,
    ranges: &[SampleRange],
) -> Result<Vec<f64>, BossManError> {
    let Some(classes) = loss.classes() else {
        return Ok(ranges.iter().map(|range| range.len as f64).collect());
    };
    let target = target.ok_or_else(missing_classes)?;
    let target_weights =
        target_weights(classes, target).map_err(|e| target_error(e.to_string()))?;
    let sum = |part: &Tensor| -> Result<f64, TensorError> {
        Ok(part.f_sum(Kind::Double)?.f_double_value(&[])?)
    };
    match ranges {
        // The model may have no batch dimension.
        [_whole] => Ok(vec![sum(&target_weights)?]),
        parts => Ok(parts
            .iter()
            .map(|range| sum(&range.of(&target_weights)?))
            .collect::<Result<_, TensorError>>()?),
    }
}

/// Checks that these weights, of one batch or of several, have a mean.
pub(crate) fn expect_counted(counted: f64) -> Result<(), BossManError> {
    match counted > 0.0 {
        true => Ok(()),
        false => Err(target_error(
            "no target counts: each is of the ignored class, or its class weighs nothing".into(),
        )),
    }
}

/// Whether these targets have a mean: at least one is not ignored and has a class with a weight.
pub(crate) fn has_counted_targets(
    loss: Option<&LossSpec>,
    target: Option<&Tensor>,
) -> Result<bool, BossManError> {
    let Some(classes) = loss.and_then(LossSpec::classes) else { return Ok(true) };
    let target_weights = target_weights(classes, target.ok_or_else(missing_classes)?)
        .map_err(|e| target_error(e.to_string()))?;
    let sum = target_weights
        .f_sum(Kind::Double)
        .and_then(|sum| sum.f_double_value(&[]))
        .map_err(TensorError::from)?;
    Ok(sum > 0.0)
}

/// The number of targets that are not ignored, if a sample has several.
pub(crate) fn count_targets(
    loss: &LossSpec,
    target: Option<&Tensor>,
) -> Result<Option<u64>, BossManError> {
    let (Some(classes), Some(target)) = (loss.classes(), target.filter(|target| target.dim() > 1))
    else {
        return Ok(None);
    };
    let counted = target.f_ne(classes.ignore_index).and_then(|counted| counted.f_sum(Kind::Int64));
    let counted = counted.and_then(|sum| sum.f_int64_value(&[])).map_err(TensorError::from)?;
    Ok(Some(counted.unsigned_abs()))
}

/// The weight of each target.
fn target_weights(classes: &Classes, target: &Tensor) -> Result<Tensor, TensorError> {
    let counted = target.f_ne(classes.ignore_index)?;
    if classes.weight.is_empty() {
        return Ok(counted.f_to_kind(Kind::Double)?);
    }
    let number = i64::try_from(classes.weight.len()).unwrap_or(i64::MAX);
    let known = target.f_ge(0)?.f_logical_and(&target.f_lt(number)?)?;
    if counted.f_logical_and(&known.f_logical_not()?)?.f_any()?.f_int64_value(&[])? != 0 {
        return Err(TensorError::invalid(
            "the loss",
            format!("weighs {number} classes; a target has another"),
        ));
    }
    let weights = Tensor::f_from_slice(&classes.weight)?;
    let class = target.f_clamp(0, number - 1)?;
    let weight = weights.f_index_select(0, &class.f_flatten(0, -1)?)?.f_view_as(target)?;
    Ok(weight.f_mul(&counted.f_to_kind(Kind::Double)?)?)
}

/// The data was opened for another loss than the boss's.
fn missing_classes() -> BossManError {
    target_error(
        "its classes are not known here; open the data with the loss that the model is trained \
         with"
            .into(),
    )
}

fn target_error(problem: String) -> BossManError {
    BossManError::Input { name: "target".into(), problem }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANGES: [SampleRange; 2] =
        [SampleRange { start: 0, len: 2 }, SampleRange { start: 2, len: 1 }];

    fn cross_entropy(weight: &[f64]) -> LossSpec {
        let classes = Classes { weight: weight.to_vec(), ..Classes::default() };
        LossSpec::CrossEntropyLoss { classes, label_smoothing: 0.0 }
    }

    #[test]
    fn samples_count_or_the_targets_that_are_not_ignored() {
        let target = Tensor::from_slice(&[0i64, 2, -100, 1, -100, -100]).view([3, 2]);
        assert_eq!(loss_weights(&LossSpec::MSELoss, None, &RANGES).unwrap(), [2.0, 1.0]);
        assert_eq!(loss_weights(&cross_entropy(&[]), Some(&target), &RANGES).unwrap(), [3.0, 0.0]);
        assert_eq!(
            loss_weights(&cross_entropy(&[0.5, 2.0, 4.0]), Some(&target), &RANGES).unwrap(),
            [6.5, 0.0]
        );
    }

    #[test]
    fn a_batch_that_counts_nothing_and_a_class_without_weight_are_refused() {
        let refused = |loss: &LossSpec, target: &Tensor| {
            loss_weights(loss, Some(target), &RANGES).unwrap_err().to_string()
        };
        let ignored = Tensor::from_slice(&[-100i64; 3]);
        let weights = loss_weights(&cross_entropy(&[]), Some(&ignored), &RANGES).unwrap();
        assert_eq!(weights, [0.0, 0.0]);
        assert!(expect_counted(0.0).unwrap_err().to_string().contains("no target counts"));
        expect_counted(0.5).unwrap();
        let unknown = Tensor::from_slice(&[0i64, 3, 1]);
        let error = refused(&cross_entropy(&[1.0, 1.0, 1.0]), &unknown);
        assert!(error.contains("weighs 3 classes; a target has another"), "{error}");
    }
}
