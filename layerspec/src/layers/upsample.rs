use super::arguments::{bad, expect_floating};
use super::spatial::{each_of, spatial_dims, with_spatial_dims, Spatial};
use super::{layer, BadArgument, Rules};
use crate::yaml::{Kind, Reader, FLAG, NUMBER};
use crate::{Dim, OutOfRange, TensorType};
use serde::{Deserialize, Serialize};

/// How an [`Upsample`] makes new elements.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Interpolation {
    /// The nearest element.
    Nearest,
    /// By straight lines between the nearest four.
    Bilinear,
    /// By cubic curves through the nearest sixteen.
    Bicubic,
}

const MODE: Reader<Interpolation> = Reader::keyword(
    "`nearest`, `bilinear` or `bicubic`",
    &["nearest", "bilinear", "bicubic"],
    |node| match node.as_text()? {
        "nearest" => Some(Interpolation::Nearest),
        "bilinear" => Some(Interpolation::Bilinear),
        "bicubic" => Some(Interpolation::Bicubic),
        _ => None,
    },
);

const SIZE: Reader<Option<[u64; 2]>> =
    Reader::new("a whole number, 1 or more, two of them: [height, width], or null", |node| {
        match node.kind {
            Kind::Null => Some(None),
            _ => (Spatial::<2>::SIZES.read)(node).map(Some),
        }
    });

const FACTOR: Reader<Option<[f64; 2]>> =
    Reader::new("a number above 0, two of them: [height, width], or null", |node| {
        match node.kind {
            Kind::Null => Some(None),
            _ => each_of(node, &NUMBER)
                .filter(|factors| factors.iter().all(|factor| *factor > 0.0))
                .map(Some),
        }
    });

const ALIGN: Reader<Option<bool>> =
    Reader::new("`true`, `false` or null", |node| match node.kind {
        Kind::Null => Some(None),
        _ => (FLAG.read)(node).map(Some),
    });

layer! {
    /// Makes `[batch, channels, height, width]` larger or smaller, to a size or by a factor.
    Upsample {
        /// Height and width of the output; if not given, `scale_factor` is.
        size: Option<[u64; 2]> = SIZE, or None => "null";
        /// The factor of height and width; the product is rounded down.
        scale_factor: Option<[f64; 2]> = FACTOR, or None => "null";
        /// How new elements are made.
        mode: Interpolation = MODE, or Interpolation::Nearest => "nearest";
        /// Whether the corners' elements keep their values (`true`), or the corners themselves are
        /// aligned; not with `nearest`.
        align_corners: Option<bool> = ALIGN, or None => "null";
    }
    unsupported { recompute_scale_factor: "give the output's size as `size`"; }
}

impl Upsample {
    /// The size of the output along height (`axis` 0) or width (`axis` 1).
    fn scaled(&self, axis: usize, size: &Dim) -> Result<Dim, String> {
        if let Some(sizes) = self.size {
            return Ok(Dim::Fixed(sizes[axis]));
        }
        let factor = self.scale_factor.map_or(1.0, |factors| factors[axis]);
        let scaled = match size.as_fixed() {
            _ if factor.fract() == 0.0 && (1.0..1e9).contains(&factor) => {
                size.times_number(factor as u64)?
            }
            Some(fixed) if fixed as f64 * factor < 1e15 => {
                Dim::Fixed((fixed as f64 * factor) as u64)
            }
            Some(_) => return Err(OutOfRange.into()),
            None => {
                return Err(format!(
                    "expected a whole scale_factor for {size}, which is symbolic, found \
                     {factor}"
                ))
            }
        };
        match scaled {
            Dim::Fixed(0) => Err(format!(
                "nothing is left of a size of {size} when it is multiplied by {factor}"
            )),
            scaled => Ok(scaled),
        }
    }
}

impl Rules for Upsample {
    fn check(&self) -> Result<(), BadArgument> {
        match (self.size, self.scale_factor) {
            (None, None) => {
                return Err(bad("size", "either `size` or `scale_factor`, found neither"))
            }
            (Some(_), Some(_)) => {
                return Err(bad("size", "either `size` or `scale_factor`, found both"))
            }
            _ => {}
        }
        if self.mode == Interpolation::Nearest && self.align_corners.is_some() {
            return Err(bad("align_corners", "nothing with mode `nearest`"));
        }
        Ok(())
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        expect_floating(&inputs[0])?;
        let (_, channels, _) = spatial_dims::<2>(&inputs[0])?;
        Ok(vec![with_spatial_dims::<2>(&inputs[0], channels, |axis, size| {
            self.scaled(axis, size)
        })?])
    }

    fn flops(&self, _: &[TensorType], outputs: &[TensorType]) -> Result<Dim, OutOfRange> {
        let each = match self.mode {
            Interpolation::Nearest => 0,
            Interpolation::Bilinear => 7,
            Interpolation::Bicubic => 35,
        };
        Dim::product(outputs[0].dims())?.times_number(each)
    }
}
