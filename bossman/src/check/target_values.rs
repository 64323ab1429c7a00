//! The values of targets against the range that the loss takes.

use super::output_shape::class_count;
use super::{Samples, FIRST_SAMPLES};
use crate::data::Dataset;
use crate::BossManError;
use layerspec::LayerGraph;
use pipeline::LossSpec;
use std::fmt::Write as _;
use tch::{Kind, Tensor};
use tensor::TensorError;

/// The most samples that are read at once, and the most numbers that are read, unless every sample
/// is.
const SAMPLES_AT_ONCE: u64 = 50;
const MAX_NUMBERS: u64 = 4 * 1024 * 1024;

/// The targets that a loss takes.
enum Range {
    /// int64 classes below `count`, or `ignored`.
    Classes { count: i64, ignored: i64 },
    /// Numbers from 0 to 1.
    Probabilities,
}

/// Checks the targets of these samples. `names` are those of classes, if the data has some.
///
/// # Errors
/// A target is outside the range, or cannot be read.
pub(super) fn check(
    loss: &LossSpec,
    graph: &LayerGraph,
    data: &Dataset,
    names: Option<&[String]>,
    which: Samples,
) -> Result<(), BossManError> {
    let Some(range) = Range::of(loss, graph) else { return Ok(()) };
    let (mut numbers_read, mut smallest) = (0, i64::MAX);
    let mut check = |samples: &[i64]| -> Result<u64, BossManError> {
        let whole: Vec<i64> = samples.iter().filter_map(|number| data.number(*number)).collect();
        let target = data.target(&whole, 0..whole.len())?;
        let outside = range.outside(&target)?;
        if let Range::Classes { ignored, .. } = range {
            smallest = smallest.min(smallest_class(&target, ignored)?);
        }
        let Some(position) = first_true(&outside)? else { return Ok(target.numel() as u64) };
        let of_sample = (target.numel() / samples.len().max(1)).max(1);
        let value = value_at(&target, position)?;
        let mut problem = range.problem(loss, value, smallest);
        if let Some(names) = names {
            write!(problem, "; the classes are {}", first_of(names)).ok();
        }
        let sample = samples.get(position as usize / of_sample).copied().unwrap_or_default();
        Err(data.target_error(sample, &problem).into())
    };
    let samples = data.samples();
    let (first_samples, most) = match which {
        Samples::FirstAndLast => (samples.min(FIRST_SAMPLES), MAX_NUMBERS),
        Samples::All => (samples, u64::MAX),
    };
    let (mut next, mut at_once) = (0, 1);
    while next < first_samples && numbers_read < most {
        let end = (next + at_once).min(first_samples);
        let numbers: Vec<i64> = (next..end).map(|number| number as i64).collect();
        let read = check(&numbers)?;
        numbers_read += read;
        at_once = (MAX_NUMBERS * (end - next) / read.max(1)).clamp(1, SAMPLES_AT_ONCE);
        next = end;
    }
    if next < samples {
        check(&[samples as i64 - 1])?;
    }
    match range {
        Range::Classes { ignored, .. } if smallest == i64::MAX && next == samples => {
            let problem = format!("class {ignored}, as every target here, is ignored");
            Err(data.target_error(0, &problem).into())
        }
        _ => Ok(()),
    }
}

impl Range {
    /// The range of a loss. `None` if every target is valid, or if the number of classes is not
    /// known.
    fn of(loss: &LossSpec, graph: &LayerGraph) -> Option<Self> {
        if let Some(classes) = loss.classes() {
            let count = i64::try_from(class_count(classes, graph)?).ok()?;
            return Some(Range::Classes { count, ignored: classes.ignore_index });
        }
        match loss {
            LossSpec::BCELoss
            | LossSpec::BCEWithLogitsLoss { .. }
            | LossSpec::KLDivLoss { log_target: false, .. } => Some(Range::Probabilities),
            _ => None,
        }
    }

    /// Marks the targets outside the range.
    fn outside(&self, target: &Tensor) -> Result<Tensor, TensorError> {
        Ok(match self {
            Range::Classes { count, ignored } => target
                .f_lt(0)?
                .f_logical_or(&target.f_ge(*count)?)?
                .f_logical_and(&target.f_ne(*ignored)?)?,
            Range::Probabilities => target.f_lt(0)?.f_logical_or(&target.f_gt(1)?)?,
        })
    }

    /// The problem of a value outside the range. `smallest` is the smallest class that was read.
    fn problem(&self, loss: &LossSpec, value: f64, smallest: i64) -> String {
        match self {
            Range::Classes { count, .. } => {
                let remedy = match value as i64 {
                    class if class == *count && smallest >= 1 => "; do labels start at 1?".into(),
                    class if class < 0 => {
                        format!("; to leave such targets out, set `ignore_index: {class}`")
                    }
                    class => format!("; give the last layer {} outputs, or correct the label", {
                        class.saturating_add(1)
                    }),
                };
                let outputs = if *count == 1 { "output" } else { "outputs" };
                let last = count - 1;
                format!("class {value}, but the model has {count} {outputs} (0 to {last}){remedy}")
            }
            Range::Probabilities => {
                let remedy = match loss {
                    LossSpec::KLDivLoss { .. } => {
                        "; for logarithms of probabilities set `log_target: true`"
                    }
                    _ => "; scale the targets",
                };
                // Most targets are float32, whose digits are those of the file.
                let value = value as f32;
                format!("target {value}, but `{loss}` takes probabilities from 0 to 1{remedy}")
            }
        }
    }
}

/// The first names.
fn first_of(names: &[String]) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<_> = names.iter().take(SHOWN).map(String::as_str).collect();
    let more = if names.len() > SHOWN { ", .." } else { "" };
    format!("{}{more}", shown.join(", "))
}

fn value_at(target: &Tensor, position: i64) -> Result<f64, TensorError> {
    Ok(target.f_reshape([-1])?.f_double_value(&[position])?)
}

/// The position of the first `true` among all elements.
fn first_true(mask: &Tensor) -> Result<Option<i64>, TensorError> {
    let mask = mask.f_reshape([-1])?;
    if mask.numel() == 0 || mask.f_any()?.f_int64_value(&[])? == 0 {
        return Ok(None);
    }
    Ok(Some(mask.f_to_kind(Kind::Int)?.f_argmax(0, false)?.f_int64_value(&[])?))
}

/// The smallest class that is not ignored.
fn smallest_class(target: &Tensor, ignored: i64) -> Result<i64, TensorError> {
    if target.numel() == 0 {
        return Ok(i64::MAX);
    }
    let classes = target.f_masked_fill(&target.f_eq(ignored)?, i64::MAX)?;
    Ok(classes.f_min()?.f_int64_value(&[])?)
}
