//! A parameter for each sample, or by itself.

use crate::engine::layers::op_context::OpContext;
use crate::engine::modules::by_autograd::Differentiable;
use crate::engine::modules::helpers::{batch_of, repeated, single_input_ref};
use layerspec::layers::Parameter;
use tch::{Kind, Tensor};
use tensor::TensorError;

impl Differentiable for Parameter {
    fn compute(&self, ctx: &OpContext<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let input = single_input_ref(inputs)?;
        // Without `expand` this is a copy, because an output must not change with the parameter.
        let times = if self.expand { batch_of(input) } else { 1 };
        let rows = repeated(ctx.param("value")?, times)?;
        if !input.requires_grad() {
            return Ok(vec![rows]);
        }
        // The layer before expects a gradient, which is zero: the sum of no element is taken away.
        // That leaves every bit as it is.
        let nothing = input.f_flatten(0, -1)?.f_narrow(0, 0, 0)?.f_sum(Kind::Float)?;
        Ok(vec![rows.f_sub(&nothing)?])
    }

    fn is_cheap(&self) -> bool {
        true
    }
}
