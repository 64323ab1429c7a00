use super::arguments::{expect_float32, expect_normalized, SIZES};
use super::{layer, Rules};
use crate::yaml::{FLAG, NON_NEGATIVE};
use crate::{Dim, Init, OutOfRange, ParamSpec, TensorType};

layer! {
    /// Normalises over the last dimensions to mean 0 and variance 1, then scales and shifts.
    LayerNorm {
        /// The last dimension's size, or the last dimensions' sizes.
        normalized_shape: Vec<u64> = SIZES;
        /// Added to the variance, against division by zero.
        eps: f64 = NON_NEGATIVE, or 1e-5;
        /// Whether to scale by a learned weight (and shift by a bias).
        elementwise_affine: bool = FLAG, or true;
        /// Whether to shift by a learned bias; only with `elementwise_affine`.
        bias: bool = FLAG, or true;
    }
}

impl Rules for LayerNorm {
    fn params(&self) -> Vec<ParamSpec> {
        let mut params = Vec::new();
        if self.elementwise_affine {
            params.push(ParamSpec::parameter("weight", self.normalized_shape.clone(), Init::Ones));
        }
        if self.elementwise_affine && self.bias {
            params.push(ParamSpec::parameter("bias", self.normalized_shape.clone(), Init::Zeros));
        }
        params
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        expect_float32(&inputs[0])?;
        expect_normalized(&inputs[0], &self.normalized_shape)?;
        Ok(inputs.to_vec())
    }

    fn flops(&self, inputs: &[TensorType], _: &[TensorType]) -> Result<Dim, OutOfRange> {
        Dim::product(inputs[0].dims())?.times_number(8)
    }
}
