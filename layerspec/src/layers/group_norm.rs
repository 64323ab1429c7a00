use super::arguments::{bad, expect_channels, expect_float32};
use super::{layer, BadArgument, Rules};
use crate::yaml::{FLAG, NON_NEGATIVE, SIZE};
use crate::{Dim, Init, OutOfRange, ParamSpec, TensorType};

layer! {
    /// Normalises groups of channels of each sample of `[batch, channels, ..]`, then scales and
    /// shifts each channel.
    GroupNorm {
        /// Number of groups, which share the channels equally.
        num_groups: u64 = SIZE;
        /// Number of channels.
        num_channels: u64 = SIZE;
        /// Added to the variance, against division by zero.
        eps: f64 = NON_NEGATIVE, or 1e-5;
        /// Whether to scale by a learned weight and shift by a learned bias.
        affine: bool = FLAG, or true;
    }
}

impl Rules for GroupNorm {
    fn check(&self) -> Result<(), BadArgument> {
        if self.num_channels.checked_rem(self.num_groups) == Some(0) {
            return Ok(());
        }
        Err(bad("num_groups", format!("a divisor of num_channels ({})", self.num_channels)))
    }

    fn params(&self) -> Vec<ParamSpec> {
        let param = |name, init| ParamSpec::parameter(name, vec![self.num_channels], init);
        match self.affine {
            true => vec![param("weight", Init::Ones), param("bias", Init::Zeros)],
            false => Vec::new(),
        }
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        expect_float32(&inputs[0])?;
        expect_channels(&inputs[0], "num_channels", self.num_channels)?;
        Ok(inputs.to_vec())
    }

    fn flops(&self, inputs: &[TensorType], _: &[TensorType]) -> Result<Dim, OutOfRange> {
        Dim::product(inputs[0].dims())?.times_number(8)
    }
}
