use crate::engine::layers::op::{BackwardOutput, ForwardOutput, Op, SavedForBackward};
use crate::engine::layers::op_context::OpContext;
use crate::engine::modules::helpers::{in_place_or_fresh, single_grad, single_input};
use layerspec::layers::{DropPath, DropPathMode, Dropout, Dropout2d};
use tch::{Kind, Tensor};
use tensor::TensorError;

/// A dropout. A layer with several has another purpose for each.
#[derive(Debug)]
pub(crate) struct DropoutOp {
    p: f64,
    purpose: &'static str,
    /// What it drops as a whole.
    what: DropUnit,
}

/// The unit that dropout drops.
#[derive(Debug, Clone, Copy)]
enum DropUnit {
    Element,
    Channel,
    Sample,
    Microbatch,
}

impl DropoutOp {
    pub(crate) fn of(layer: &Dropout) -> Self {
        Self::new(layer.p, "dropout")
    }

    /// A dropout whose random numbers have this purpose in their key.
    pub(crate) fn new(p: f64, purpose: &'static str) -> Self {
        DropoutOp { p, purpose, what: DropUnit::Element }
    }

    pub(crate) fn of_channels(layer: &Dropout2d) -> Self {
        DropoutOp { p: layer.p, purpose: "dropout", what: DropUnit::Channel }
    }

    pub(crate) fn of_paths(layer: &DropPath) -> Self {
        let what = match layer.mode {
            DropPathMode::Row => DropUnit::Sample,
            DropPathMode::Batch => DropUnit::Microbatch,
        };
        DropoutOp { p: layer.p, purpose: "dropout", what }
    }

    /// The shape of the mask. Sizes of 1 broadcast.
    fn drawn(&self, input: &Tensor) -> Vec<i64> {
        // The number of outer dimensions that have draws of their own.
        let apart = match self.what {
            DropUnit::Element => input.dim(),
            DropUnit::Channel => 2,
            DropUnit::Sample => 1,
            DropUnit::Microbatch => 0,
        };
        let sizes = input.size().into_iter().enumerate();
        sizes.map(|(dim, size)| if dim < apart { size } else { 1 }).collect()
    }
}

impl Op for DropoutOp {
    fn forward(
        &self,
        ctx: &OpContext<'_>,
        inputs: Vec<Tensor>,
    ) -> Result<ForwardOutput, TensorError> {
        let input = single_input(inputs)?;
        if !ctx.training() || self.p == 0.0 {
            return Ok(ForwardOutput::with_tensors(input, Vec::new()));
        }
        let mask = dropout_mask(ctx, self.purpose, &self.drawn(&input), input.f_kind()?, self.p)?;
        let output = in_place_or_fresh(input, |x| x.f_mul_(&mask), |x| x.f_mul(&mask))?;
        Ok(ForwardOutput::with_tensors(
            output,
            if ctx.saves_for_backward() { vec![mask] } else { Vec::new() },
        ))
    }

    fn backward(
        &self,
        _: &OpContext<'_>,
        saved: SavedForBackward,
        grads: Vec<Option<Tensor>>,
    ) -> Result<BackwardOutput, TensorError> {
        let grad = single_grad(grads)?;
        match saved.tensors.first() {
            Some(mask) => Ok(BackwardOutput::single_input_grad(in_place_or_fresh(
                grad,
                |g| g.f_mul_(mask),
                |g| g.f_mul(mask),
            )?)),
            None => Ok(BackwardOutput::single_input_grad(grad)),
        }
    }

    fn is_cheap(&self) -> bool {
        true
    }
}

/// Zeros with probability `p`, and otherwise the factor that compensates for them.
pub(crate) fn dropout_mask(
    ctx: &OpContext<'_>,
    purpose: &str,
    shape: &[i64],
    kind: Kind,
    p: f64,
) -> Result<Tensor, TensorError> {
    let keep = 1.0 - p;
    let mut mask = ctx.random.stream(purpose, ctx.device())?.bernoulli_mask(shape, kind, keep)?;
    // With everything dropped the mask is zero, and there is nothing to scale.
    if keep > 0.0 {
        let _same = mask.f_div_scalar_(keep)?;
    }
    Ok(mask)
}
