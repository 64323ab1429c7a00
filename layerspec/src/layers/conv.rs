use super::arguments::{bad, expect_channels, expect_float32, image, pair_of, PAIR};
use super::window::Window;
use super::{layer, BadArgument, Rules};
use crate::yaml::{Reader, COUNT, FLAG, SIZE};
use crate::{Dim, Init, OutOfRange, ParamSpec, TensorType};
use serde::{Deserialize, Serialize};

/// Zeros around the image of a [`Conv2d`].
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Padding {
    /// So many rows at top and bottom, and columns at left and right.
    Explicit([u64; 2]),
    /// As many as keep the image's size; the odd one goes to the bottom and the right.
    Same,
}

const PADDING: Reader<Padding> = Reader::word(
    "a whole number, 0 or more, two of them: [height, width], `same` or `valid`",
    &["same", "valid"],
    |node| match node.as_text() {
        Some("same") => Some(Padding::Same),
        Some("valid") => Some(Padding::Explicit([0, 0])),
        _ => pair_of(node, &COUNT).map(Padding::Explicit),
    },
);

layer! {
    /// Two-dimensional convolution of `[batch, channels, height, width]`.
    Conv2d {
        /// Channels of the input.
        in_channels: u64 = SIZE;
        /// Channels of the output.
        out_channels: u64 = SIZE;
        /// Height and width of the kernel.
        kernel_size: [u64; 2] = PAIR;
        /// Step from one window to the next.
        stride: [u64; 2] = PAIR, or [1, 1] => "1";
        /// Zeros added at every side; `same` keeps the size (with stride 1), `valid` adds none.
        padding: Padding = PADDING, or Padding::Explicit([0, 0]) => "0";
        /// Distance between the kernel's own places.
        dilation: [u64; 2] = PAIR, or [1, 1] => "1";
        /// Number of groups of channels that are convolved apart.
        groups: u64 = SIZE, or 1;
        /// Whether to add a learned bias.
        bias: bool = FLAG, or true;
    }
    refuses {
        padding_mode: "padding is always zeros; leave it out";
    }
}

impl Conv2d {
    fn channels_per_group(&self) -> u64 {
        self.in_channels.checked_div(self.groups).unwrap_or(0)
    }

    fn weight_shape(&self) -> Vec<u64> {
        let [height, width] = self.kernel_size;
        vec![self.out_channels, self.channels_per_group(), height, width]
    }

    fn places(&self, axis: usize, size: &Dim) -> Result<Dim, String> {
        let Padding::Explicit(padding) = self.padding else {
            return Ok(size.clone());
        };
        let window = Window {
            kernel: self.kernel_size[axis],
            stride: self.stride[axis],
            padding: padding[axis],
            dilation: self.dilation[axis],
            ceil_mode: false,
        };
        window.places(size)
    }
}

impl Rules for Conv2d {
    fn check(&self) -> Result<(), BadArgument> {
        if self.in_channels.checked_rem(self.groups) != Some(0) {
            return Err(bad("groups", format!("a divisor of in_channels ({})", self.in_channels)));
        }
        if self.out_channels.checked_rem(self.groups) != Some(0) {
            return Err(bad("groups", format!("a divisor of out_channels ({})", self.out_channels)));
        }
        if self.padding == Padding::Same && self.stride != [1, 1] {
            return Err(bad("padding", "a number, as the stride is not 1; `same` needs stride 1"));
        }
        Ok(())
    }

    fn params(&self) -> Vec<ParamSpec> {
        let shape = self.weight_shape();
        let init = Init::fan_in(shape[1..].iter().map(|size| *size as f64).product());
        let mut params = vec![ParamSpec::parameter("weight", shape, init)];
        if self.bias {
            params.push(ParamSpec::parameter("bias", vec![self.out_channels], init));
        }
        params
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        expect_float32(&inputs[0])?;
        expect_channels(&inputs[0], "in_channels", self.in_channels)?;
        let [batch, _, height, width] = image(&inputs[0])?;
        let (height, width) = (self.places(0, height)?, self.places(1, width)?);
        let dims = vec![batch.clone(), Dim::Fixed(self.out_channels), height, width];
        Ok(vec![TensorType::new(inputs[0].dtype, dims)])
    }

    fn flops(&self, _: &[TensorType], outputs: &[TensorType]) -> Result<Dim, OutOfRange> {
        let per_output = self.weight_shape()[1..].iter().try_fold(2u64, |n, size| n.checked_mul(*size));
        Dim::product(outputs[0].dims())?.times_number(per_output.ok_or(OutOfRange)?)
    }
}
