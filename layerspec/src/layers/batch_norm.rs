use super::arguments::{expect_channels, expect_float32};
use super::spatial::spatial_dims;
use super::{layer, Rules};
use crate::yaml::{Kind, Reader, FLAG, NON_NEGATIVE, PROBABILITY, SIZE};
use crate::{DType, Dim, Init, OutOfRange, ParamSpec, TensorType};

const MOMENTUM: Reader<Option<f64>> =
    Reader::new("a number between 0 and 1, or null", |node| match node.kind {
        Kind::Null => Some(None),
        _ => (PROBABILITY.read)(node).map(Some),
    });

layer! {
    /// Normalises each feature of `[batch, features]`, or `[batch, features, length]`, over the
    /// (micro)batch, then scales and shifts; evaluation uses the running statistics.
    BatchNorm1d {
        /// Number of features.
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

layer! {
    /// Normalises each channel of `[batch, channels, depth, height, width]` over the (micro)batch,
    /// then scales and shifts; evaluation uses the running statistics.
    BatchNorm3d {
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

layer! {
    /// Normalises each channel of each sample of `[batch, channels, height, width]` by itself.
    InstanceNorm2d {
        /// Number of channels.
        num_features: u64 = SIZE;
        /// Added to the variance, against division by zero.
        eps: f64 = NON_NEGATIVE, or 1e-5;
        /// Share of the newest batch in the running statistics; `null` leaves them as they are.
        momentum: Option<f64> = MOMENTUM, or Some(0.1) => "0.1";
        /// Whether to scale by a learned weight and shift by a learned bias.
        affine: bool = FLAG, or false;
        /// Whether to keep running statistics over the batches, and to normalise by them in
        /// evaluation.
        track_running_stats: bool = FLAG, or false;
    }
}

/// Rules of a layer that normalises each channel, and of which inputs it takes.
macro_rules! norm {
    ($($Name:ident: $input:expr);* $(;)?) => {$(
        impl Rules for $Name {
            fn params(&self) -> Vec<ParamSpec> {
                params(self.num_features, self.affine, self.track_running_stats)
            }

            fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
                expect_float32(&inputs[0])?;
                let expect_input: fn(&TensorType) -> Result<(), String> = $input;
                expect_input(&inputs[0])?;
                expect_channels(&inputs[0], "num_features", self.num_features)?;
                Ok(inputs.to_vec())
            }

            fn flops(&self, inputs: &[TensorType], _: &[TensorType]) -> Result<Dim, OutOfRange> {
                Dim::product(inputs[0].dims())?.times_number(8)
            }
        }
    )*};
}

norm! {
    BatchNorm1d: |input| match input.shape.rank() {
        2 | 3 => Ok(()),
        _ => Err(format!(
            "expected an input [batch, features] or [batch, features, length], found {input}"
        )),
    };
    BatchNorm2d: |input| spatial_dims::<2>(input).map(drop);
    BatchNorm3d: |input| spatial_dims::<3>(input).map(drop);
    InstanceNorm2d: |input| spatial_dims::<2>(input).map(drop);
}

fn params(channels: u64, affine: bool, track_running_stats: bool) -> Vec<ParamSpec> {
    let channels = || vec![channels];
    let mut params = Vec::new();
    if affine {
        params.push(ParamSpec::parameter("weight", channels(), Init::Ones));
        params.push(ParamSpec::parameter("bias", channels(), Init::Zeros));
    }
    if track_running_stats {
        let float = DType::Float32;
        params.push(ParamSpec::buffer("running_mean", channels(), float, Init::Zeros));
        params.push(ParamSpec::buffer("running_var", channels(), float, Init::Ones));
        params.push(ParamSpec::buffer("num_batches_tracked", vec![], DType::Int64, Init::Zeros));
    }
    params
}
