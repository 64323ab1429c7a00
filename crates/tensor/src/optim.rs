//! libtorch's fused optimizers, over parameters, gradients and state that the caller owns.
//!
//! Each call is one step, in place. All tensors of a call are contiguous and on one device, and
//! the lists belong together element by element.

use crate::{ffi, TensorError};
use tch::Tensor;

/// The arguments of `torch.optim.SGD`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sgd {
    /// Learning rate.
    pub lr: f64,
    /// Momentum factor; at 0 there are no momentum buffers.
    pub momentum: f64,
    /// Dampening of the momentum.
    pub dampening: f64,
    /// L2 penalty.
    pub weight_decay: f64,
    /// Nesterov momentum.
    pub nesterov: bool,
}

/// The arguments of `torch.optim.Adam` and `torch.optim.AdamW`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Adam {
    /// Learning rate.
    pub lr: f64,
    /// Decay rate of the running average of the gradient.
    pub beta1: f64,
    /// Decay rate of the running average of its square.
    pub beta2: f64,
    /// Added to the denominator.
    pub eps: f64,
    /// L2 penalty, or the decay itself if `decoupled`.
    pub weight_decay: f64,
    /// Whether the weight decay is decoupled from the gradient: AdamW.
    pub decoupled: bool,
}

/// Adam's state, one of each tensor per parameter.
#[derive(Debug, Clone, Copy)]
pub struct AdamState<'a> {
    /// Running averages of the gradients, shaped like the parameters; 0 at first.
    pub exp_avg: &'a [&'a Tensor],
    /// Running averages of their squares, shaped like the parameters; 0 at first.
    pub exp_avg_sq: &'a [&'a Tensor],
    /// Steps done, as float32 scalars on the parameters' device. The caller adds 1 before each
    /// call, so it is 1 in the first.
    pub step: &'a [&'a Tensor],
}

/// One step of SGD. `momentum_buffers` is empty without momentum. With `first_step` the buffers are
/// set to the gradient without dampening, as PyTorch does.
pub fn sgd(
    params: &[&Tensor],
    grads: &[&Tensor],
    momentum_buffers: &[&Tensor],
    first_step: bool,
    args: &Sgd,
) -> Result<(), TensorError> {
    let buffers = if args.momentum == 0.0 { 0 } else { params.len() };
    same_length("SGD", params.len(), &[("gradients", grads.len())])?;
    same_length("SGD", buffers, &[("momentum buffers", momentum_buffers.len())])?;
    if params.is_empty() {
        return Ok(());
    }
    // SAFETY: each list is as long as said and its tensors are borrowed for the call.
    let status = unsafe {
        ffi::bm_fused_sgd(
            ffi::pointers(params).as_ptr(),
            ffi::pointers(grads).as_ptr(),
            ffi::pointers(momentum_buffers).as_ptr(),
            params.len(),
            buffers,
            args.lr,
            args.momentum,
            args.dampening,
            args.weight_decay,
            args.nesterov,
            first_step,
        )
    };
    ffi::check("an SGD step", status)
}

/// One step of Adam or AdamW.
pub fn adam(
    params: &[&Tensor],
    grads: &[&Tensor],
    state: AdamState<'_>,
    args: &Adam,
) -> Result<(), TensorError> {
    let lists = [
        ("gradients", grads.len()),
        ("running averages", state.exp_avg.len()),
        ("running averages of squares", state.exp_avg_sq.len()),
        ("step counts", state.step.len()),
    ];
    same_length("Adam", params.len(), &lists)?;
    if params.is_empty() {
        return Ok(());
    }
    // SAFETY: each list is as long as said and its tensors are borrowed for the call.
    let status = unsafe {
        ffi::bm_fused_adam(
            ffi::pointers(params).as_ptr(),
            ffi::pointers(grads).as_ptr(),
            ffi::pointers(state.exp_avg).as_ptr(),
            ffi::pointers(state.exp_avg_sq).as_ptr(),
            ffi::pointers(state.step).as_ptr(),
            params.len(),
            args.lr,
            args.beta1,
            args.beta2,
            args.eps,
            args.weight_decay,
            args.decoupled,
        )
    };
    ffi::check("an Adam step", status)
}

fn same_length(who: &str, expected: usize, lists: &[(&str, usize)]) -> Result<(), TensorError> {
    match lists.iter().find(|(_, length)| *length != expected) {
        None => Ok(()),
        Some((what, got)) => Err(TensorError::invalid(
            format!("a step of {who}"),
            format!("expected {expected} {what}, got {got}"),
        )),
    }
}

#[cfg(test)]
#[path = "optim_tests.rs"]
mod tests;
