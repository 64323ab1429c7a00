//! The loss of one microbatch, and its gradient.

use super::error::EngineError;
use super::layout::plain;
use super::stage::{LossTask, Mode};
use super::Engine;
use pipeline::ids::MicrobatchKey;
use pipeline::loss::LossSpec;
use tch::{Kind, Reduction, Tensor};
use tensor::{Attempt, TensorError};

impl Engine {
    /// The microbatch's mean loss times its weight, as the f32 that adds to the step's loss.
    ///
    /// In [`Mode::Train`] the gradient of the prediction is kept for [`Engine::backward`]; forward
    /// must have been done under this key.
    pub fn loss(&mut self, key: MicrobatchKey, task: &LossTask<'_>, mode: Mode) -> Result<f32, EngineError> {
        let failed = |source| EngineError::Loss { loss: task.loss, source };
        if mode == Mode::Eval {
            let loss = tch::no_grad(|| weighted(task.prediction, task)).map_err(failed)?;
            return scalar(&loss).map_err(failed);
        }
        let saved = self.saved.get_mut(&key).ok_or(EngineError::UnknownMicrobatch { key })?;
        let (loss, grad) = with_grad(task).map_err(failed)?;
        saved.loss_grads.insert(task.output, grad);
        Ok(loss)
    }
}

fn with_grad(task: &LossTask<'_>) -> Result<(f32, Tensor), TensorError> {
    let leaf = task.prediction.f_detach()?.f_set_requires_grad(true).attempt("asking for the output's gradient")?;
    let loss = tch::with_grad(|| weighted(&leaf, task))?;
    let one = loss.f_ones_like()?;
    match tensor::grad::backward(&[&loss], &[&one], &[&leaf])?.as_slice() {
        [Some(grad)] => Ok((scalar(&loss)?, plain(grad.shallow_clone())?)),
        _ => Err(TensorError::invalid("the loss", "does not depend on the output")),
    }
}

fn weighted(prediction: &Tensor, task: &LossTask<'_>) -> Result<Tensor, TensorError> {
    let target = task.target.f_to_device(prediction.device()).attempt("moving the target to the device")?;
    let loss = match task.loss {
        LossSpec::MSELoss => mse(prediction, &target),
        LossSpec::CrossEntropyLoss { label_smoothing } => cross_entropy(prediction, &target, label_smoothing),
    }?;
    Ok(loss.f_mul_scalar(task.weight)?)
}

fn mse(prediction: &Tensor, target: &Tensor) -> Result<Tensor, TensorError> {
    // PyTorch would broadcast, and warn; the loss is then hardly what was meant.
    if prediction.size() != target.size() || prediction.f_kind()? != target.f_kind()? {
        return Err(mismatch("a target like the output", prediction, target));
    }
    Ok(prediction.f_mse_loss(target, Reduction::Mean)?)
}

fn cross_entropy(logits: &Tensor, target: &Tensor, label_smoothing: f64) -> Result<Tensor, TensorError> {
    let expected = "logits [N, C, ...] and a target [N, ...] of int64 class numbers";
    let size = logits.size();
    let [samples, _classes, rest @ ..] = &size[..] else {
        return Err(mismatch(expected, logits, target));
    };
    let fits = target.size().split_first() == Some((samples, rest));
    if !fits || target.f_kind()? != Kind::Int64 {
        return Err(mismatch(expected, logits, target));
    }
    let none: Option<Tensor> = None;
    Ok(logits.f_cross_entropy_loss(target, none, Reduction::Mean, NO_CLASS_IGNORED, label_smoothing)?)
}

/// PyTorch ignores -100 by default. Here every sample counts: microbatches are weighted by their
/// number of samples.
const NO_CLASS_IGNORED: i64 = i32::MIN as i64;

fn mismatch(expected: &str, output: &Tensor, target: &Tensor) -> TensorError {
    let describe = |tensor: &Tensor| match tensor::dtype_of(tensor) {
        Ok(dtype) => format!("{dtype} {:?}", tensor.size()),
        Err(error) => error.to_string(),
    };
    let problem = format!("the output is {}, the target {}", describe(output), describe(target));
    TensorError::invalid(format!("expected {expected}"), problem)
}

fn scalar(loss: &Tensor) -> Result<f32, TensorError> {
    Ok(loss.f_double_value(&[])? as f32)
}
