use super::arguments::expect_float32;
use super::{layer, Rules};
use crate::yaml::{FLAG, SIZE};
use crate::{Dim, Init, OutOfRange, ParamSpec, TensorType};

layer! {
    /// Fully connected: `x @ weight.T + bias` over the last dimension.
    Linear {
        /// Size of the last dimension of the input.
        in_features: u64 = SIZE;
        /// Size of the last dimension of the output.
        out_features: u64 = SIZE;
        /// Whether to add a learned bias.
        bias: bool = FLAG, or true;
        /// Whether the weight is `[in_features, out_features]`, as in Hugging Face's `Conv1D`. The
        /// output is then `x @ weight + bias`.
        transposed: bool = FLAG, or false;
    }
}

impl Rules for Linear {
    fn params(&self) -> Vec<ParamSpec> {
        let init = Init::fan_in(self.in_features as f64);
        let shape = match self.transposed {
            true => vec![self.in_features, self.out_features],
            false => vec![self.out_features, self.in_features],
        };
        let mut params = vec![ParamSpec::parameter("weight", shape, init)];
        if self.bias {
            params.push(ParamSpec::parameter("bias", vec![self.out_features], init));
        }
        params
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let input = &inputs[0];
        expect_float32(input)?;
        match input.dims() {
            [outer @ .., last] if *last == Dim::Fixed(self.in_features) => {
                let dims = [outer, &[Dim::Fixed(self.out_features)]].concat();
                Ok(vec![TensorType::new(input.dtype, dims)])
            }
            _ => Err(format!(
                "expected an input whose last dimension is {} (in_features), found {input}",
                self.in_features
            )),
        }
    }

    fn flops(&self, _: &[TensorType], outputs: &[TensorType]) -> Result<Dim, OutOfRange> {
        Dim::product(outputs[0].dims())?.times_number(2)?.times_number(self.in_features)
    }
}
