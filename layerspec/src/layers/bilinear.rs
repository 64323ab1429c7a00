use super::arguments::expect_float32;
use super::{layer, Arity, Rules};
use crate::yaml::{FLAG, SIZE};
use crate::{Dim, Init, OutOfRange, ParamSpec, TensorType};

layer! {
    /// `x1 @ weight[i] @ x2 + bias[i]` for each element `i` of the output, over the last dimension
    /// of two inputs.
    Bilinear {
        /// Size of the last dimension of the first input.
        in1_features: u64 = SIZE;
        /// Size of the last dimension of the second input.
        in2_features: u64 = SIZE;
        /// Size of the last dimension of the output.
        out_features: u64 = SIZE;
        /// Whether to add a learned bias.
        bias: bool = FLAG, or true;
    }
}

impl Rules for Bilinear {
    fn arity(&self) -> Arity {
        Arity::Two
    }

    fn params(&self) -> Vec<ParamSpec> {
        let init = Init::fan_in(self.in1_features as f64);
        let shape = vec![self.out_features, self.in1_features, self.in2_features];
        let mut params = vec![ParamSpec::parameter("weight", shape, init)];
        if self.bias {
            params.push(ParamSpec::parameter("bias", vec![self.out_features], init));
        }
        params
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let (first, second) = (&inputs[0], &inputs[1]);
        expect_float32(first)?;
        expect_float32(second)?;
        let sizes = [Dim::Fixed(self.in1_features), Dim::Fixed(self.in2_features)];
        match (first.dims(), second.dims()) {
            ([outer @ .., one], [other @ .., two])
                if outer == other && [one, two] == [&sizes[0], &sizes[1]] =>
            {
                let dims = [outer, &[Dim::Fixed(self.out_features)]].concat();
                Ok(vec![TensorType::new(first.dtype, dims)])
            }
            _ => Err(format!(
                "expected inputs [.., {}] (in1_features) and [.., {}] (in2_features) that are \
                 otherwise alike, found {first} and {second}",
                self.in1_features, self.in2_features
            )),
        }
    }

    fn flops(&self, _: &[TensorType], outputs: &[TensorType]) -> Result<Dim, OutOfRange> {
        // For each element of the output: x1 times a matrix, and the result times x2.
        let second = self.in2_features.checked_mul(2).ok_or(OutOfRange)?;
        let both = self
            .in1_features
            .checked_add(1)
            .and_then(|rows| rows.checked_mul(second))
            .ok_or(OutOfRange)?;
        Dim::product(outputs[0].dims())?.times_number(both)
    }
}
