use super::arguments::{expect_channels, expect_float32};
use super::{layer, Rules};
use crate::yaml::{Kind, Reader, FLAG, NON_NEGATIVE, PROBABILITY, SIZE};
use crate::{DType, Dim, Init, OutOfRange, ParamSpec, TensorType};

const MOMENTUM: Reader<Option<f64>> = Reader::new("a number between 0 and 1, or null", |node| match node.kind {
    Kind::Null => Some(None),
    _ => (PROBABILITY.read)(node).map(Some),
});

layer! {
    /// Normalises each channel of `[batch, channels, height, width]` over the (micro)batch, then
    /// scales and shifts; evaluation uses the running statistics.
    BatchNorm2d {
        /// Number of channels.
        num_features: u64 = SIZE;
        /// Added to the variance, against division by zero.
        eps: f64 = NON_NEGATIVE, or 1e-5;
        /// Share of the newest batch in the running statistics; `null` averages over all batches.
        momentum: Option<f64> = MOMENTUM, or Some(0.1) => "0.1";
        /// Whether to scale by a learned weight and shift by a learned bias.
        affine: bool = FLAG, or true;
        /// Whether to keep running statistics; without them evaluation normalises over its batch.
        track_running_stats: bool = FLAG, or true;
    }
}

impl Rules for BatchNorm2d {
    fn params(&self) -> Vec<ParamSpec> {
        let channels = || vec![self.num_features];
        let mut params = Vec::new();
        if self.affine {
            params.push(ParamSpec::parameter("weight", channels(), Init::Ones));
            params.push(ParamSpec::parameter("bias", channels(), Init::Zeros));
        }
        if self.track_running_stats {
            let float = DType::Float32;
            params.push(ParamSpec::buffer("running_mean", channels(), float, Init::Zeros));
            params.push(ParamSpec::buffer("running_var", channels(), float, Init::Ones));
            params.push(ParamSpec::buffer("num_batches_tracked", vec![], DType::Int64, Init::Zeros));
        }
        params
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        expect_float32(&inputs[0])?;
        expect_channels(&inputs[0], "num_features", self.num_features)?;
        Ok(inputs.to_vec())
    }

    fn flops(&self, inputs: &[TensorType], _: &[TensorType]) -> Result<Dim, OutOfRange> {
        Dim::product(inputs[0].dims())?.times_number(8)
    }
}
