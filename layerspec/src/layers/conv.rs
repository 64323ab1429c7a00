//! Convolutions of signals, images and volumes.

use super::arguments::{bad, expect_channels, expect_float32};
use super::pad::{expect_room, PadMode};
use super::spatial::{spatial_dims, with_spatial_dims, Padding, Spatial};
use super::window::Window;
use super::{layer, BadArgument, Rules};
use crate::yaml::{Reader, FLAG, SIZE};
use crate::{Dim, Init, OutOfRange, ParamSpec, TensorType};

const PADDING_MODE: Reader<PadMode> = Reader::keyword(
    "`zeros`, `reflect`, `replicate` or `circular`",
    &["zeros", "reflect", "replicate", "circular"],
    |node| match node.as_text()? {
        "zeros" => Some(PadMode::Constant),
        other => PadMode::named(other).filter(|mode| *mode != PadMode::Constant),
    },
);

/// The arguments that determine the parameters of a convolution.
struct Kernel<'a> {
    /// The weight's two outer dimensions: those of the output and of a group's input, or the other
    /// way round.
    outer: u64,
    inner: u64,
    size: &'a [u64],
    out_channels: u64,
    bias: bool,
}

impl Kernel<'_> {
    fn params(&self) -> Vec<ParamSpec> {
        let shape = [&[self.outer, self.inner], self.size].concat();
        // PyTorch computes the fan-in from all dimensions but the first, also for transposed
        // convolutions.
        let init = Init::fan_in(shape[1..].iter().map(|size| *size as f64).product());
        let mut params = vec![ParamSpec::parameter("weight", shape, init)];
        if self.bias {
            params.push(ParamSpec::parameter("bias", vec![self.out_channels], init));
        }
        params
    }

    /// For each of the elements that the weight's first dimension counts: a product and a sum with
    /// each of the others.
    fn flops_each(&self) -> Result<u64, OutOfRange> {
        let factors = self.size.iter().chain([&self.inner]);
        factors.copied().try_fold(2, u64::checked_mul).ok_or(OutOfRange)
    }
}

fn check_groups(groups: u64, in_channels: u64, out_channels: u64) -> Result<(), BadArgument> {
    for (name, channels) in [("in_channels", in_channels), ("out_channels", out_channels)] {
        if channels.checked_rem(groups) != Some(0) {
            return Err(bad("groups", format!("a divisor of {name} ({channels})")));
        }
    }
    Ok(())
}

/// The output of a convolution over `N` dimensions. `output_size` gives its size along an axis.
fn infer<const N: usize>(
    input: &TensorType,
    [in_channels, out_channels]: [u64; 2],
    output_size: impl Fn(usize, &Dim) -> Result<Dim, String>,
) -> Result<Vec<TensorType>, String> {
    expect_float32(input)?;
    spatial_dims::<N>(input)?;
    expect_channels(input, "in_channels", in_channels)?;
    Ok(vec![with_spatial_dims::<N>(input, &Dim::Fixed(out_channels), output_size)?])
}

/// Declares a convolution over `N` dimensions.
macro_rules! convolution {
    ($(#[doc = $doc:literal])+ $Name:ident, $N:literal) => {
        layer! {
            $(#[doc = $doc])+
            $Name {
                /// Channels of the input.
                in_channels: u64 = SIZE;
                /// Channels of the output.
                out_channels: u64 = SIZE;
                /// Size of the kernel.
                kernel_size: [u64; $N] = Spatial::<$N>::SIZES;
                /// Step from one window to the next.
                stride: [u64; $N] = Spatial::<$N>::SIZES, or [1; $N] => "1";
                /// Elements added at every side; `same` keeps the size (with stride 1), `valid`
                /// adds none.
                padding: Padding<$N> = Spatial::<$N>::PADDING, or Padding::Explicit([0; $N]) => "0";
                /// Distance between elements of the kernel.
                dilation: [u64; $N] = Spatial::<$N>::SIZES, or [1; $N] => "1";
                /// Number of groups of channels that are convolved separately.
                groups: u64 = SIZE, or 1;
                /// Whether to add a learned bias.
                bias: bool = FLAG, or true;
                /// The content of the padding: zeros, the mirrored inside, the edge, or the other
                /// end.
                padding_mode: PadMode = PADDING_MODE, or PadMode::Constant => "zeros";
            }
        }

        impl $Name {
            fn kernel(&self) -> Kernel<'_> {
                Kernel {
                    outer: self.out_channels,
                    inner: self.in_channels.checked_div(self.groups).unwrap_or(0),
                    size: &self.kernel_size,
                    out_channels: self.out_channels,
                    bias: self.bias,
                }
            }

            fn output_size(&self, axis: usize, size: &Dim) -> Result<Dim, String> {
                let Padding::Explicit(padding) = self.padding else {
                    let reach = self.kernel_size[axis]
                        .saturating_sub(1)
                        .saturating_mul(self.dilation[axis]);
                    expect_room(self.padding_mode, size, reach.div_ceil(2))?;
                    return Ok(size.clone());
                };
                expect_room(self.padding_mode, size, padding[axis])?;
                let window = Window {
                    kernel: self.kernel_size[axis],
                    stride: self.stride[axis],
                    padding: padding[axis],
                    dilation: self.dilation[axis],
                    ceil_mode: false,
                };
                window.output_size(size)
            }
        }

        impl Rules for $Name {
            fn check(&self) -> Result<(), BadArgument> {
                check_groups(self.groups, self.in_channels, self.out_channels)?;
                if self.padding == Padding::Same && self.stride != [1; $N] {
                    return Err(bad(
                        "padding",
                        "a number, as the stride is not 1; `same` needs stride 1",
                    ));
                }
                Ok(())
            }

            fn params(&self) -> Vec<ParamSpec> {
                self.kernel().params()
            }

            fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
                let channels = [self.in_channels, self.out_channels];
                infer::<$N>(&inputs[0], channels, |axis, size| self.output_size(axis, size))
            }

            fn flops(&self, _: &[TensorType], outputs: &[TensorType]) -> Result<Dim, OutOfRange> {
                Dim::product(outputs[0].dims())?.times_number(self.kernel().flops_each()?)
            }
        }
    };
}

convolution! {
    /// One-dimensional convolution of `[batch, channels, length]`.
    Conv1d, 1
}
convolution! {
    /// Two-dimensional convolution of `[batch, channels, height, width]`.
    Conv2d, 2
}
convolution! {
    /// Three-dimensional convolution of `[batch, channels, depth, height, width]`.
    Conv3d, 3
}

/// Declares a transposed convolution over `N` dimensions.
macro_rules! transposed {
    ($(#[doc = $doc:literal])+ $Name:ident, $N:literal) => {
        layer! {
            $(#[doc = $doc])+
            $Name {
                /// Channels of the input.
                in_channels: u64 = SIZE;
                /// Channels of the output.
                out_channels: u64 = SIZE;
                /// Size of the kernel.
                kernel_size: [u64; $N] = Spatial::<$N>::SIZES;
                /// Step in the output from one element of the input to the next.
                stride: [u64; $N] = Spatial::<$N>::SIZES, or [1; $N] => "1";
                /// Elements removed at every side of the output.
                padding: [u64; $N] = Spatial::<$N>::COUNTS, or [0; $N] => "0";
                /// Elements added at the end of the output, fewer than the stride or the dilation.
                output_padding: [u64; $N] = Spatial::<$N>::COUNTS, or [0; $N] => "0";
                /// Number of groups of channels that are convolved separately.
                groups: u64 = SIZE, or 1;
                /// Whether to add a learned bias.
                bias: bool = FLAG, or true;
                /// Distance between elements of the kernel.
                dilation: [u64; $N] = Spatial::<$N>::SIZES, or [1; $N] => "1";
            }
            unsupported {
                padding_mode: "PyTorch has zeros only; leave it out";
            }
        }

        impl $Name {
            fn kernel(&self) -> Kernel<'_> {
                Kernel {
                    outer: self.in_channels,
                    inner: self.out_channels.checked_div(self.groups).unwrap_or(0),
                    size: &self.kernel_size,
                    out_channels: self.out_channels,
                    bias: self.bias,
                }
            }

            /// `(size - 1) * stride - 2 * padding + dilation * (kernel - 1) + output_padding + 1`.
            fn output_size(&self, axis: usize, size: &Dim) -> Result<Dim, String> {
                let reach = self.kernel_size[axis]
                    .saturating_sub(1)
                    .checked_mul(self.dilation[axis])
                    .ok_or(OutOfRange)?;
                let added =
                    reach.checked_add(self.output_padding[axis]).and_then(|sum| sum.checked_add(1));
                let removed = self.padding[axis]
                    .checked_mul(2)
                    .and_then(|sum| sum.checked_add(self.stride[axis]));
                let number = |size: Option<u64>| {
                    size.and_then(|size| i64::try_from(size).ok()).ok_or(OutOfRange)
                };
                let places = size
                    .times_number(self.stride[axis])?
                    .plus_number(number(added)? - number(removed)?);
                places.ok().filter(|places| *places != Dim::Fixed(0)).ok_or_else(|| {
                    format!(
                        "nothing is left of a size of {size} when padding {} is taken away",
                        self.padding[axis]
                    )
                })
            }
        }

        impl Rules for $Name {
            fn check(&self) -> Result<(), BadArgument> {
                check_groups(self.groups, self.in_channels, self.out_channels)?;
                let fits = |axis: usize| {
                    self.output_padding[axis] < self.stride[axis].max(self.dilation[axis])
                };
                match (0..$N).all(fits) {
                    true => Ok(()),
                    false => {
                        Err(bad("output_padding", "a number below the stride or the dilation"))
                    }
                }
            }

            fn params(&self) -> Vec<ParamSpec> {
                self.kernel().params()
            }

            fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
                let channels = [self.in_channels, self.out_channels];
                infer::<$N>(&inputs[0], channels, |axis, size| self.output_size(axis, size))
            }

            fn flops(&self, inputs: &[TensorType], _: &[TensorType]) -> Result<Dim, OutOfRange> {
                Dim::product(inputs[0].dims())?.times_number(self.kernel().flops_each()?)
            }
        }
    };
}

transposed! {
    /// Transposed one-dimensional convolution of `[batch, channels, length]`: what the backward
    /// pass of `Conv1d` does.
    ConvTranspose1d, 1
}
transposed! {
    /// Transposed two-dimensional convolution of `[batch, channels, height, width]`: what the
    /// backward pass of `Conv2d` does.
    ConvTranspose2d, 2
}
transposed! {
    /// Transposed three-dimensional convolution of `[batch, channels, depth, height, width]`: what
    /// the backward pass of `Conv3d` does.
    ConvTranspose3d, 3
}
