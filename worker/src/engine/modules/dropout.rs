use super::{of_one, one, update, Back, Call, Kept, Op, Run};
use layerspec::layers::{Dropout, Dropout2d};
use tch::{Kind, Tensor};
use tensor::TensorError;

/// A dropout; a layer with several has another word for each.
#[derive(Debug)]
pub(super) struct Drop {
    p: f64,
    purpose: &'static str,
    /// Whether it drops elements, or whole channels.
    what: Unit,
}

/// What is dropped at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    Element,
    Channel,
}

impl Drop {
    pub(super) fn of(layer: &Dropout) -> Self {
        Self::new(layer.p, "dropout")
    }

    /// With what the random numbers are for, as their key has it.
    pub(super) fn new(p: f64, purpose: &'static str) -> Self {
        Drop { p, purpose, what: Unit::Element }
    }

    pub(super) fn of_channels(layer: &Dropout2d) -> Self {
        Drop { p: layer.p, purpose: "dropout", what: Unit::Channel }
    }

    /// The shape of what is drawn: sizes of 1 broadcast.
    fn drawn(&self, input: &Tensor) -> Vec<i64> {
        let sizes = input.size().into_iter().enumerate();
        sizes.map(|(dim, size)| if self.what == Unit::Channel && dim > 1 { 1 } else { size }).collect()
    }
}

impl Op for Drop {
    fn forward(&self, call: &Call<'_>, inputs: Vec<Tensor>) -> Result<Run, TensorError> {
        let input = one(inputs)?;
        if !call.training() || self.p == 0.0 {
            return Ok(Run::keeping(input, Vec::new()));
        }
        let mask = mask(call, self.purpose, &self.drawn(&input), input.f_kind()?, self.p)?;
        let output = update(input, |x| x.f_mul_(&mask), |x| x.f_mul(&mask))?;
        Ok(Run::keeping(output, if call.keeps() { vec![mask] } else { Vec::new() }))
    }

    fn backward(&self, _: &Call<'_>, kept: Kept, grads: Vec<Option<Tensor>>) -> Result<Back, TensorError> {
        let grad = of_one(grads)?;
        match kept.tensors.first() {
            Some(mask) => Ok(Back::to(update(grad, |g| g.f_mul_(mask), |g| g.f_mul(mask))?)),
            None => Ok(Back::to(grad)),
        }
    }

    fn is_cheap(&self) -> bool {
        true
    }
}

/// Zeros with probability `p`, and otherwise what makes up for them.
pub(super) fn mask(call: &Call<'_>, purpose: &str, shape: &[i64], kind: Kind, p: f64) -> Result<Tensor, TensorError> {
    let keep = 1.0 - p;
    let mut mask = call.random(purpose)?.bernoulli_mask(shape, kind, keep)?;
    // With everything dropped the mask is zero, and there is nothing to scale.
    if keep > 0.0 {
        let _same = mask.f_div_scalar_(keep)?;
    }
    Ok(mask)
}
