use super::{
    in_place_or_fresh, single_grad, single_input, BackwardOutput, ForwardOutput, Op, OpContext, SavedForBackward,
};
use layerspec::layers::{Dropout, Dropout2d};
use tch::{Kind, Tensor};
use tensor::TensorError;

/// A dropout; a layer with several has another word for each.
#[derive(Debug)]
pub(super) struct DropoutOp {
    p: f64,
    purpose: &'static str,
    /// Whether it drops elements, or whole channels.
    what: DropUnit,
}

/// What is dropped at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DropUnit {
    Element,
    Channel,
}

impl DropoutOp {
    pub(super) fn of(layer: &Dropout) -> Self {
        Self::new(layer.p, "dropout")
    }

    /// With what the random numbers are for, as their key has it.
    pub(super) fn new(p: f64, purpose: &'static str) -> Self {
        DropoutOp { p, purpose, what: DropUnit::Element }
    }

    pub(super) fn of_channels(layer: &Dropout2d) -> Self {
        DropoutOp { p: layer.p, purpose: "dropout", what: DropUnit::Channel }
    }

    /// The shape of what is drawn: sizes of 1 broadcast.
    fn drawn(&self, input: &Tensor) -> Vec<i64> {
        let sizes = input.size().into_iter().enumerate();
        sizes.map(|(dim, size)| if self.what == DropUnit::Channel && dim > 1 { 1 } else { size }).collect()
    }
}

impl Op for DropoutOp {
    fn forward(&self, ctx: &OpContext<'_>, inputs: Vec<Tensor>) -> Result<ForwardOutput, TensorError> {
        let input = single_input(inputs)?;
        if !ctx.training() || self.p == 0.0 {
            return Ok(ForwardOutput::with_tensors(input, Vec::new()));
        }
        let mask = dropout_mask(ctx, self.purpose, &self.drawn(&input), input.f_kind()?, self.p)?;
        let output = in_place_or_fresh(input, |x| x.f_mul_(&mask), |x| x.f_mul(&mask))?;
        Ok(ForwardOutput::with_tensors(output, if ctx.saves_for_backward() { vec![mask] } else { Vec::new() }))
    }

    fn backward(
        &self,
        _: &OpContext<'_>,
        saved: SavedForBackward,
        grads: Vec<Option<Tensor>>,
    ) -> Result<BackwardOutput, TensorError> {
        let grad = single_grad(grads)?;
        match saved.tensors.first() {
            Some(mask) => {
                Ok(BackwardOutput::single_input_grad(in_place_or_fresh(grad, |g| g.f_mul_(mask), |g| g.f_mul(mask))?))
            }
            None => Ok(BackwardOutput::single_input_grad(grad)),
        }
    }

    fn is_cheap(&self) -> bool {
        true
    }
}

/// Zeros with probability `p`, and otherwise what makes up for them.
pub(super) fn dropout_mask(
    ctx: &OpContext<'_>,
    purpose: &str,
    shape: &[i64],
    kind: Kind,
    p: f64,
) -> Result<Tensor, TensorError> {
    let keep = 1.0 - p;
    let mut mask = ctx.random(purpose)?.bernoulli_mask(shape, kind, keep)?;
    // With everything dropped the mask is zero, and there is nothing to scale.
    if keep > 0.0 {
        let _same = mask.f_div_scalar_(keep)?;
    }
    Ok(mask)
}
