use super::arguments::{bad, expect_floating};
use super::spatial::{spatial_dims, with_spatial_dims, Spatial};
use super::window::Window;
use super::{layer, BadArgument, Rules};
use crate::yaml::{Kind, Reader, FLAG, INTEGER};
use crate::{Dim, OutOfRange, TensorType};

const DIVISOR: Reader<Option<i64>> =
    Reader::new("a whole number other than 0, or null", |node| match node.kind {
        Kind::Null => Some(None),
        _ => (INTEGER.read)(node).filter(|divisor| *divisor != 0).map(Some),
    });

/// Declares a pool that takes the largest element.
macro_rules! max_pool {
    ($(#[doc = $doc:literal])+ $Name:ident, $N:literal) => {
        layer! {
            $(#[doc = $doc])+
            $Name {
                /// Size of the window.
                kernel_size: [u64; $N] = Spatial::<$N>::SIZES;
                /// Step from one window to the next.
                stride: [u64; $N] = Spatial::<$N>::SIZES, or kernel_size;
                /// Elements of minus infinity added at every side; at most half the kernel.
                padding: [u64; $N] = Spatial::<$N>::COUNTS, or [0; $N] => "0";
                /// Distance between elements of the window.
                dilation: [u64; $N] = Spatial::<$N>::SIZES, or [1; $N] => "1";
                /// Whether a last window may reach over the end.
                ceil_mode: bool = FLAG, or false;
            }
            unsupported {
                return_indices: "the layer has one output; leave it out";
            }
        }
    };
}

max_pool! {
    /// The largest element of each window of `[batch, channels, length]`.
    MaxPool1d, 1
}
max_pool! {
    /// The largest element of each window of `[batch, channels, height, width]`.
    MaxPool2d, 2
}
max_pool! {
    /// The largest element of each window of `[batch, channels, depth, height, width]`.
    MaxPool3d, 3
}

layer! {
    /// The mean of each window of `[batch, channels, length]`.
    AvgPool1d {
        /// Size of the window.
        kernel_size: [u64; 1] = Spatial::<1>::SIZES;
        /// Step from one window to the next.
        stride: [u64; 1] = Spatial::<1>::SIZES, or kernel_size;
        /// Zeros added at every side; at most half the kernel.
        padding: [u64; 1] = Spatial::<1>::COUNTS, or [0] => "0";
        /// Whether a last window may reach over the end.
        ceil_mode: bool = FLAG, or false;
        /// Whether the zeros of the padding count in the mean.
        count_include_pad: bool = FLAG, or true;
    }
}

layer! {
    /// The mean of each window of `[batch, channels, height, width]`.
    AvgPool2d {
        /// Size of the window.
        kernel_size: [u64; 2] = Spatial::<2>::SIZES;
        /// Step from one window to the next.
        stride: [u64; 2] = Spatial::<2>::SIZES, or kernel_size;
        /// Zeros added at every side; at most half the kernel.
        padding: [u64; 2] = Spatial::<2>::COUNTS, or [0, 0] => "0";
        /// Whether a last window may reach over the end.
        ceil_mode: bool = FLAG, or false;
        /// Whether the zeros of the padding count in the mean.
        count_include_pad: bool = FLAG, or true;
        /// The divisor of the sum, instead of the number of elements.
        divisor_override: Option<i64> = DIVISOR, or None => "null";
    }
}

layer! {
    /// The mean of each window of `[batch, channels, depth, height, width]`.
    AvgPool3d {
        /// Size of the window.
        kernel_size: [u64; 3] = Spatial::<3>::SIZES;
        /// Step from one window to the next.
        stride: [u64; 3] = Spatial::<3>::SIZES, or kernel_size;
        /// Zeros added at every side; at most half the kernel.
        padding: [u64; 3] = Spatial::<3>::COUNTS, or [0, 0, 0] => "0";
        /// Whether a last window may reach over the end.
        ceil_mode: bool = FLAG, or false;
        /// Whether the zeros of the padding count in the mean.
        count_include_pad: bool = FLAG, or true;
        /// The divisor of the sum, instead of the number of elements.
        divisor_override: Option<i64> = DIVISOR, or None => "null";
    }
}

layer! {
    /// Takes the mean of each window of `[batch, channels, length]`. The number of windows is the
    /// size of the output.
    AdaptiveAvgPool1d {
        /// Length of the output.
        output_size: [u64; 1] = Spatial::<1>::SIZES;
    }
}

layer! {
    /// Takes the mean of each window. The number of windows is the size of the output.
    AdaptiveAvgPool2d {
        /// Height and width of the output.
        output_size: [u64; 2] = Spatial::<2>::SIZES;
    }
}

layer! {
    /// Takes the mean of each window of `[batch, channels, depth, height, width]`. The number of
    /// windows is the size of the output.
    AdaptiveAvgPool3d {
        /// Depth, height and width of the output.
        output_size: [u64; 3] = Spatial::<3>::SIZES;
    }
}

layer! {
    /// Takes the largest element of each window. The number of windows is the size of the output.
    AdaptiveMaxPool2d {
        /// Height and width of the output.
        output_size: [u64; 2] = Spatial::<2>::SIZES;
    }
    unsupported {
        return_indices: "the layer has one output; leave it out";
    }
}

/// PyTorch does not count the dilation.
fn has_excess_padding(window: Window) -> bool {
    window.padding > window.kernel / 2
}

/// Rules of a layer that slides a window, with the window's dilation: one operation for each
/// element of each window.
macro_rules! pool {
    ($($Name:ident, $N:literal: $dilation:expr);* $(;)?) => {$(
        impl $Name {
            fn window(&self, axis: usize) -> Window {
                let dilation: fn(&$Name, usize) -> u64 = $dilation;
                Window {
                    kernel: self.kernel_size[axis],
                    stride: self.stride[axis],
                    padding: self.padding[axis],
                    dilation: dilation(self, axis),
                    ceil_mode: self.ceil_mode,
                }
            }
        }

        impl Rules for $Name {
            fn check(&self) -> Result<(), BadArgument> {
                match (0..$N).any(|axis| has_excess_padding(self.window(axis))) {
                    true => Err(bad("padding", "at most half of `kernel_size`")),
                    false => Ok(()),
                }
            }

            fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
                expect_floating(&inputs[0])?;
                let (_, channels, _) = spatial_dims::<$N>(&inputs[0])?;
                let places = |axis: usize, size: &Dim| self.window(axis).output_size(size);
                Ok(vec![with_spatial_dims::<$N>(&inputs[0], channels, places)?])
            }

            fn flops(&self, _: &[TensorType], outputs: &[TensorType]) -> Result<Dim, OutOfRange> {
                let places =
                    self.kernel_size.into_iter().try_fold(1, u64::checked_mul).ok_or(OutOfRange)?;
                Dim::product(outputs[0].dims())?.times_number(places)
            }
        }
    )*};
}

pool! {
    MaxPool1d, 1: |pool, axis| pool.dilation[axis];
    MaxPool2d, 2: |pool, axis| pool.dilation[axis];
    MaxPool3d, 3: |pool, axis| pool.dilation[axis];
    AvgPool1d, 1: |_, _| 1;
    AvgPool2d, 2: |_, _| 1;
    AvgPool3d, 3: |_, _| 1;
}

/// Rules of a layer whose windows follow from the sizes of input and output.
macro_rules! adaptive {
    ($($Name:ident, $N:literal);*) => {$(
        impl Rules for $Name {
            fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
                expect_floating(&inputs[0])?;
                let (_, channels, _) = spatial_dims::<$N>(&inputs[0])?;
                let size = |axis: usize, _: &Dim| Ok(Dim::Fixed(self.output_size[axis]));
                Ok(vec![with_spatial_dims::<$N>(&inputs[0], channels, size)?])
            }

            fn flops(&self, inputs: &[TensorType], _: &[TensorType]) -> Result<Dim, OutOfRange> {
                Dim::product(inputs[0].dims())
            }
        }
    )*};
}

adaptive! {
    AdaptiveAvgPool1d, 1;
    AdaptiveAvgPool2d, 2;
    AdaptiveAvgPool3d, 3;
    AdaptiveMaxPool2d, 2
}
