//! The loss of one microbatch, and its gradient.

use crate::engine::config::LossInputs;
use crate::engine::error::EngineError;
use crate::engine::layout::canonical_layout;
use crate::engine::passes::index_range::check_classes;
use pipeline::loss::{ClassDim, Classes, LossSpec};
use tch::{Device, Kind, Reduction, Tensor};
use tensor::transfer::{to_device, HostCopy};
use tensor::{Attempt, TensorError};

/// The microbatch's mean loss times its weight. Nothing is saved.
pub(crate) fn evaluate(inputs: &LossInputs<'_>) -> Result<HostCopy, EngineError> {
    let loss = tch::no_grad(|| HostCopy::begin(&weighted(inputs.prediction, inputs)?));
    loss.map_err(failed(inputs))
}

/// The same loss, and the gradient of the prediction.
pub(crate) fn differentiate(inputs: &LossInputs<'_>) -> Result<LossAndGrad, EngineError> {
    with_grad(inputs).map_err(failed(inputs))
}

/// A loss, and the gradient of the output that it is about.
pub(crate) struct LossAndGrad {
    pub(crate) loss: HostCopy,
    pub(crate) grad: Tensor,
}

fn failed(inputs: &LossInputs<'_>) -> impl FnOnce(TensorError) -> EngineError {
    let loss = inputs.loss.name();
    move |source| EngineError::Loss { loss, source }
}

fn with_grad(task: &LossInputs<'_>) -> Result<LossAndGrad, TensorError> {
    let leaf = task
        .prediction
        .f_detach()?
        .f_set_requires_grad(true)
        .attempt("asking for the output's gradient")?;
    let loss = tch::with_grad(|| weighted(&leaf, task))?;
    let one = loss.f_ones_like()?;
    match tensor::grad::backward(&[&loss], &[&one], &[&leaf])?.as_slice() {
        [Some(grad)] => {
            let grad = canonical_layout(grad.shallow_clone())?;
            Ok(LossAndGrad { loss: HostCopy::begin(&loss)?, grad })
        }
        _ => Err(TensorError::invalid("the loss", "does not depend on the output")),
    }
}

fn weighted(prediction: &Tensor, task: &LossInputs<'_>) -> Result<Tensor, TensorError> {
    if let Some(classes) = task.loss.classes() {
        let outputs = are_classes(prediction, task.target, task.loss, classes)?;
        check_classes(task.target, classes, outputs)?;
    }
    let target = to_device(task.target, prediction.device())?;
    // The mean over nothing is NaN. The sum is 0, and so are its gradients.
    let reduction = if task.weight == 0.0 { Reduction::Sum } else { Reduction::Mean };
    Ok(reduced(prediction, &target, task.loss, reduction)?.f_mul_scalar(task.weight)?)
}

fn reduced(
    output: &Tensor,
    target: &Tensor,
    loss: &LossSpec,
    reduction: Reduction,
) -> Result<Tensor, TensorError> {
    let rows = match loss.classes() {
        Some(classes) => rows_of_classes(output, target, classes.class_dim)?,
        None => {
            are_alike(output, target)?;
            None
        }
    };
    let (output, target) =
        rows.as_ref().map_or((output, target), |(output, target)| (output, target));
    let none: Option<Tensor> = None;
    Ok(match loss {
        LossSpec::MSELoss => output.f_mse_loss(target, reduction)?,
        LossSpec::L1Loss => output.f_l1_loss(target, reduction)?,
        LossSpec::SmoothL1Loss { beta } => output.f_smooth_l1_loss(target, reduction, *beta)?,
        LossSpec::HuberLoss { delta } => output.f_huber_loss(target, reduction, *delta)?,
        LossSpec::CrossEntropyLoss { classes, label_smoothing } => {
            let weight = row(&classes.weight, output)?;
            output.f_cross_entropy_loss(
                target,
                weight,
                reduction,
                classes.ignore_index,
                *label_smoothing,
            )?
        }
        LossSpec::NLLLoss { classes } => output.f_nll_loss_nd(
            target,
            row(&classes.weight, output)?,
            reduction,
            classes.ignore_index,
        )?,
        LossSpec::BCELoss if matches!(output.device(), Device::Cuda(_)) => {
            bce_without_assertion(output, target, reduction)?
        }
        LossSpec::BCELoss => output.f_binary_cross_entropy(target, none, reduction)?,
        LossSpec::BCEWithLogitsLoss { pos_weight } => output.f_binary_cross_entropy_with_logits(
            target,
            none,
            row(pos_weight, output)?,
            reduction,
        )?,
        LossSpec::KLDivLoss { log_target, batchmean: false } => {
            output.f_kl_div(target, reduction, *log_target)?
        }
        LossSpec::KLDivLoss { log_target, batchmean: true } => {
            let samples = output.size().first().copied().unwrap_or(1).max(1);
            output.f_kl_div(target, Reduction::Sum, *log_target)?.f_div_scalar(samples)?
        }
    })
}

/// `BCELoss` on a GPU, whose kernel asserts that all numbers are between 0 and 1. After a failed
/// assertion the process could not use the GPU any more, so the loss is NaN instead.
fn bce_without_assertion(
    output: &Tensor,
    target: &Tensor,
    reduction: Reduction,
) -> Result<Tensor, TensorError> {
    let within = |tensor: &Tensor| tensor.f_ge(0.0)?.f_logical_and(&tensor.f_le(1.0)?);
    let (of_output, of_target) = (within(output)?, within(target)?);
    let is_wrong = of_output.f_logical_and(&of_target)?.f_all()?.f_logical_not()?;
    let zero = Tensor::f_zeros([0i64; 0], (output.f_kind()?, output.device()))?;
    let none: Option<Tensor> = None;
    let loss = output.f_where_scalarother(&of_output, 0.5)?.f_binary_cross_entropy(
        &target.f_where_scalarother(&of_target, 0.5)?,
        none,
        reduction,
    )?;
    Ok(loss.f_add(&zero.f_masked_fill(&is_wrong, f64::NAN)?)?)
}

/// Weights as a tensor of the output's kind; `None` for an empty list.
fn row(weights: &[f64], output: &Tensor) -> Result<Option<Tensor>, TensorError> {
    let tensor = |weights| {
        to_device(&Tensor::f_from_slice(weights)?, output.device())?
            .f_to_kind(output.f_kind()?)
            .map_err(TensorError::from)
    };
    Ok(if weights.is_empty() { None } else { Some(tensor(weights)?) })
}

fn are_alike(output: &Tensor, target: &Tensor) -> Result<(), TensorError> {
    // PyTorch would broadcast and warn. The loss would then probably be wrong.
    if output.size() != target.size() || output.f_kind()? != target.f_kind()? {
        return Err(mismatch("a target like the output", output, target));
    }
    Ok(())
}

/// Checks that the output has the dimensions of the target and one for the classes. Returns the
/// number of classes.
fn are_classes(
    output: &Tensor,
    target: &Tensor,
    loss: &LossSpec,
    classes: &Classes,
) -> Result<i64, TensorError> {
    let mut size = output.size();
    let outputs = classes.class_dim.position(size.len()).map(|position| size.remove(position));
    let outputs = outputs.filter(|_| size == target.size());
    let is_int64 = target.f_kind()? == Kind::Int64;
    outputs.filter(|_| is_int64).ok_or_else(|| {
        let what = match loss {
            LossSpec::NLLLoss { .. } => "logarithms of probabilities",
            _ => "logits",
        };
        let shape = match classes.class_dim {
            ClassDim::Second => "[N, C, ...]",
            ClassDim::Last => "[N, ..., C]",
        };
        let expected = format!("{what} {shape} and a target [N, ...] of int64 class numbers");
        mismatch(&expected, output, target)
    })
}

/// Output and target `[N, ...]` as `[rows, C]` and `[rows]`, if the output is `[N, ..., C]`.
/// libtorch then computes along contiguous memory. On GPUs also if it is `[N, C, ...]`: libtorch
/// has no deterministic kernel for that.
fn rows_of_classes(
    output: &Tensor,
    target: &Tensor,
    class_dim: ClassDim,
) -> Result<Option<(Tensor, Tensor)>, TensorError> {
    let is_plain = output.device() == Device::Cpu || output.dim() <= 2;
    let output = match class_dim {
        ClassDim::Last => output.shallow_clone(),
        ClassDim::Second if is_plain => return Ok(None),
        ClassDim::Second => output.f_movedim_int(1, -1)?,
    };
    let classes = output.size().last().copied().unwrap_or(1);
    let rows = output.f_contiguous()?.f_view([target.numel() as i64, classes])?;
    Ok(Some((rows, target.f_reshape([-1])?)))
}

fn mismatch(expected: &str, output: &Tensor, target: &Tensor) -> TensorError {
    let describe = |tensor: &Tensor| match tensor::dtype_of(tensor) {
        Ok(dtype) => format!("{dtype} {:?}", tensor.size()),
        Err(error) => error.to_string(),
    };
    let problem = format!("the output is {}, the target {}", describe(output), describe(target));
    TensorError::invalid(format!("expected {expected}"), problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worst(left: &Tensor, right: &Tensor) -> f64 {
        (left - right).abs().max().double_value(&[])
    }

    /// The loss and the gradient of an output `[N, ..., C]` equal those of the transposed output.
    #[test]
    fn classes_in_the_last_dimension_give_the_loss_of_the_transposed_output() {
        let classes = |class_dim, weight: &[f64]| Classes {
            weight: weight.to_vec(),
            ignore_index: 2,
            class_dim,
        };
        let output = (Tensor::arange(4 * 3 * 5, (Kind::Float, Device::Cpu)) * 0.7).sin() * 3.0;
        let target = Tensor::from_slice(&[0i64, 1, 2, 3, 4, 0, 2, 1, 2, 3, 3, 4]).view([4, 3]);
        for weight in [&[][..], &[0.5, 1.0, 3.0, 2.0, 0.25]] {
            let losses: [&dyn Fn(ClassDim) -> LossSpec; 3] = [
                &|dim| LossSpec::CrossEntropyLoss {
                    classes: classes(dim, weight),
                    label_smoothing: 0.0,
                },
                &|dim| LossSpec::CrossEntropyLoss {
                    classes: classes(dim, weight),
                    label_smoothing: 0.1,
                },
                &|dim| LossSpec::NLLLoss { classes: classes(dim, weight) },
            ];
            for loss in losses {
                let compute = |prediction: &Tensor, dim| {
                    let loss = &loss(dim);
                    let (output, weight) = (0, 0.5);
                    let task = LossInputs { output, prediction, target: &target, loss, weight };
                    let found = differentiate(&task).unwrap();
                    assert_eq!(evaluate(&task).unwrap().numbers(), found.loss.numbers());
                    found
                };
                let last = compute(&output.view([4, 3, 5]), ClassDim::Last);
                let second = compute(&output.view([4, 3, 5]).transpose(1, 2), ClassDim::Second);
                let [of_last, of_second] = [&last, &second].map(|it| it.loss.numbers().unwrap()[0]);
                assert!((of_last - of_second).abs() < 1e-6, "{}", loss(ClassDim::Last));
                assert_eq!(last.grad.size(), [4, 3, 5]);
                assert!(worst(&last.grad, &second.grad.transpose(1, 2)) < 1e-6);
            }
        }
    }

    #[test]
    fn an_output_of_the_other_layout_is_refused() {
        let classes = Classes { class_dim: ClassDim::Last, ..Classes::default() };
        let loss = &LossSpec::CrossEntropyLoss { classes, label_smoothing: 0.0 };
        let prediction = &Tensor::zeros([4, 5, 3], (Kind::Float, Device::Cpu));
        let target = &Tensor::zeros([4, 3], (Kind::Int64, Device::Cpu));
        let task = LossInputs { output: 0, prediction, target, loss, weight: 1.0 };
        assert_eq!(
            evaluate(&task).unwrap_err().to_string(),
            "CrossEntropyLoss: expected logits [N, ..., C] and a target [N, ...] of int64 class \
             numbers: the output is float32 [4, 5, 3], the target int64 [4, 3]"
        );
    }
}
