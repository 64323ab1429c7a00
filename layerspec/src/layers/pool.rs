use super::arguments::{bad, expect_floating, image, COUNT_PAIR, PAIR};
use super::window::Window;
use super::{layer, BadArgument, Rules};
use crate::yaml::{Kind, Reader, FLAG, INTEGER};
use crate::{Dim, OutOfRange, TensorType};

const DIVISOR: Reader<Option<i64>> = Reader::new("a whole number other than 0, or null", |node| match node.kind {
    Kind::Null => Some(None),
    _ => (INTEGER.read)(node).filter(|divisor| *divisor != 0).map(Some),
});

layer! {
    /// The largest element of each window of `[batch, channels, height, width]`.
    MaxPool2d {
        /// Height and width of the window.
        kernel_size: [u64; 2] = PAIR;
        /// Step from one window to the next.
        stride: [u64; 2] = PAIR, or kernel_size;
        /// Places that never win added at every side; at most half the kernel.
        padding: [u64; 2] = COUNT_PAIR, or [0, 0] => "0";
        /// Distance between the window's own places.
        dilation: [u64; 2] = PAIR, or [1, 1] => "1";
        /// Whether a last window may reach over the end.
        ceil_mode: bool = FLAG, or false;
    }
    refuses {
        return_indices: "the layer has one output; leave it out";
    }
}

layer! {
    /// The mean of each window of `[batch, channels, height, width]`.
    AvgPool2d {
        /// Height and width of the window.
        kernel_size: [u64; 2] = PAIR;
        /// Step from one window to the next.
        stride: [u64; 2] = PAIR, or kernel_size;
        /// Zeros added at every side; at most half the kernel.
        padding: [u64; 2] = COUNT_PAIR, or [0, 0] => "0";
        /// Whether a last window may reach over the end.
        ceil_mode: bool = FLAG, or false;
        /// Whether the zeros of the padding count in the mean.
        count_include_pad: bool = FLAG, or true;
        /// What the sum is divided by, instead of the number of places.
        divisor_override: Option<i64> = DIVISOR, or None => "null";
    }
}

layer! {
    /// The mean of each of so many equal windows that the output has the size asked for.
    AdaptiveAvgPool2d {
        /// Height and width of the output.
        output_size: [u64; 2] = PAIR;
    }
}

/// A pool's window along height (`axis` 0) or width (`axis` 1).
trait Pool {
    fn window(&self, axis: usize) -> Window;

    fn check_padding(&self) -> Result<(), BadArgument> {
        let wide = |axis| {
            let window = self.window(axis);
            window.reach().is_none_or(|reach| window.padding > reach / 2)
        };
        if wide(0) || wide(1) {
            return Err(bad("padding", "at most half of what the kernel reaches over"));
        }
        Ok(())
    }

    fn output(&self, input: &TensorType) -> Result<TensorType, String> {
        expect_floating(input)?;
        let [batch, channels, height, width] = image(input)?;
        let (height, width) = (self.window(0).places(height)?, self.window(1).places(width)?);
        Ok(TensorType::new(input.dtype, vec![batch.clone(), channels.clone(), height, width]))
    }
}

impl Pool for MaxPool2d {
    fn window(&self, axis: usize) -> Window {
        Window {
            kernel: self.kernel_size[axis],
            stride: self.stride[axis],
            padding: self.padding[axis],
            dilation: self.dilation[axis],
            ceil_mode: self.ceil_mode,
        }
    }
}

impl Pool for AvgPool2d {
    fn window(&self, axis: usize) -> Window {
        Window {
            kernel: self.kernel_size[axis],
            stride: self.stride[axis],
            padding: self.padding[axis],
            dilation: 1,
            ceil_mode: self.ceil_mode,
        }
    }
}

/// Rules of a layer that slides a window: as many operations as the windows have places.
macro_rules! pool {
    ($($Name:ident),*) => {$(
        impl Rules for $Name {
            fn check(&self) -> Result<(), BadArgument> {
                self.check_padding()
            }

            fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
                Ok(vec![self.output(&inputs[0])?])
            }

            fn flops(&self, _: &[TensorType], outputs: &[TensorType]) -> Result<Dim, OutOfRange> {
                let [height, width] = self.kernel_size;
                Dim::product(outputs[0].dims())?.times_number(height)?.times_number(width)
            }
        }
    )*};
}

pool! { MaxPool2d, AvgPool2d }

impl Rules for AdaptiveAvgPool2d {
    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        expect_floating(&inputs[0])?;
        let [batch, channels, _, _] = image(&inputs[0])?;
        let [height, width] = self.output_size.map(Dim::Fixed);
        let dims = vec![batch.clone(), channels.clone(), height, width];
        Ok(vec![TensorType::new(inputs[0].dtype, dims)])
    }

    fn flops(&self, inputs: &[TensorType], _: &[TensorType]) -> Result<Dim, OutOfRange> {
        Dim::product(inputs[0].dims())
    }
}
