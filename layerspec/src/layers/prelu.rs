use super::arguments::expect_float32;
use super::{layer, Rules};
use crate::yaml::{NUMBER, SIZE};
use crate::{Dim, Init, OutOfRange, ParamSpec, TensorType};

layer! {
    /// `x`, and below zero `weight * x` with a learned weight.
    PReLU {
        /// The number of weights: one for all, or one for each channel (dimension 1).
        num_parameters: u64 = SIZE, or 1;
        /// The initial value of the weights.
        init: f64 = NUMBER, or 0.25;
    }
}

impl Rules for PReLU {
    fn params(&self) -> Vec<ParamSpec> {
        let init = Init::Constant { value: self.init };
        vec![ParamSpec::parameter("weight", vec![self.num_parameters], init)]
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let input = &inputs[0];
        expect_float32(input)?;
        match (self.num_parameters, input.dims()) {
            (1, _) => Ok(inputs.to_vec()),
            (channels, [_, found, ..]) if *found == Dim::Fixed(channels) => Ok(inputs.to_vec()),
            (channels, _) => Err(format!(
                "expected an input [batch, {channels}, ..] with a channel for each weight \
                 (num_parameters), found {input}"
            )),
        }
    }

    fn flops(&self, inputs: &[TensorType], _: &[TensorType]) -> Result<Dim, OutOfRange> {
        Dim::product(inputs[0].dims())?.times_number(2)
    }
}
