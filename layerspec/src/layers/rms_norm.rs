use super::arguments::{bad, expect_float32, expect_normalized, OPTIONAL_NON_NEGATIVE, SIZES};
use super::{layer, BadArgument, Rules};
use crate::yaml::{FLAG, NUMBER};
use crate::{Dim, Init, OutOfRange, ParamSpec, TensorType};

layer! {
    /// Divides by the root of the mean square over the last dimensions, then scales (Zhang and
    /// Sennrich 2019, arXiv:1910.07467).
    RMSNorm {
        /// The last dimension's size, or the last dimensions' sizes.
        normalized_shape: Vec<u64> = SIZES;
        /// Added to the mean square, against division by zero; `null` is the smallest step from 1
        /// that float32 has.
        eps: Option<f64> = OPTIONAL_NON_NEGATIVE, or None => "null";
        /// Whether to scale by a learned weight.
        elementwise_affine: bool = FLAG, or true;
        /// Added to the weight before it scales: 1.0 as in Hugging Face's Gemma. A new weight and
        /// it make 1.
        offset: f64 = NUMBER, or 0.0;
    }
}

/// How a weight begins to which this is added before it scales.
pub(super) fn weight_init(offset: f64) -> Init {
    match 1.0 - offset {
        1.0 => Init::Ones,
        0.0 => Init::Zeros,
        value => Init::Constant { value },
    }
}

impl Rules for RMSNorm {
    fn check(&self) -> Result<(), BadArgument> {
        if self.offset != 0.0 && !self.elementwise_affine {
            return Err(bad("offset", "0.0, as `elementwise_affine: false` has no weight"));
        }
        Ok(())
    }

    fn params(&self) -> Vec<ParamSpec> {
        let init = weight_init(self.offset);
        let weight = || ParamSpec::parameter("weight", self.normalized_shape.clone(), init);
        self.elementwise_affine.then(weight).into_iter().collect()
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        expect_float32(&inputs[0])?;
        expect_normalized(&inputs[0], &self.normalized_shape)?;
        Ok(inputs.to_vec())
    }

    fn flops(&self, inputs: &[TensorType], _: &[TensorType]) -> Result<Dim, OutOfRange> {
        Dim::product(inputs[0].dims())?.times_number(5)
    }
}
