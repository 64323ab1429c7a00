use super::arguments::{bad, expect_floating, NUMBER_OR_INFINITY};
use super::{layer, BadArgument, Rules};
use crate::spec::MAX_RANK;
use crate::yaml::{Kind, Reader, INTEGER};
use crate::{Dim, OutOfRange, TensorType};
use serde::{Deserialize, Serialize};

/// The content of padding.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum PadMode {
    /// One number.
    Constant,
    /// The mirrored inside, without repeating the edge.
    Reflect,
    /// The element at the edge.
    Replicate,
    /// The elements at the other end.
    Circular,
}

impl PadMode {
    /// PyTorch's word for it.
    pub fn name(self) -> &'static str {
        match self {
            PadMode::Constant => "constant",
            PadMode::Reflect => "reflect",
            PadMode::Replicate => "replicate",
            PadMode::Circular => "circular",
        }
    }

    pub(super) fn named(name: &str) -> Option<PadMode> {
        let all = [PadMode::Constant, PadMode::Reflect, PadMode::Replicate, PadMode::Circular];
        all.into_iter().find(|mode| mode.name() == name)
    }
}

/// Refuses padding that needs more elements than the input has.
pub(super) fn expect_room(mode: PadMode, size: &Dim, places: u64) -> Result<(), String> {
    let most = match (mode, size.as_fixed()) {
        (PadMode::Reflect, Some(size)) => size.saturating_sub(1),
        (PadMode::Circular, Some(size)) => size,
        _ => return Ok(()),
    };
    if places <= most {
        return Ok(());
    }
    Err(format!(
        "expected {} padding of at most {most} for a size of {size}, found {places}",
        mode.name()
    ))
}

const MODE: Reader<PadMode> = Reader::keyword(
    "`constant`, `reflect`, `replicate` or `circular`",
    &["constant", "reflect", "replicate", "circular"],
    |node| PadMode::named(node.as_text()?),
);

const PAD: Reader<Vec<i64>> = Reader::new(
    "a list of whole numbers, two for each dimension: [before, after] of the last first",
    |node| {
        let Kind::List(items) = &node.kind else { return None };
        let fits = items.len() % 2 == 0 && (2..=2 * MAX_RANK).contains(&items.len());
        items
            .iter()
            .filter(|_| fits)
            .map(INTEGER.read)
            .collect::<Option<Vec<i64>>>()
            .filter(|pad| !pad.is_empty())
    },
);

layer! {
    /// Adds elements at the ends of dimensions, like `torch.nn.functional.pad`.
    Pad {
        /// The numbers of elements before and after the last dimension, then the one before it, and
        /// so on. Numbers below zero remove elements.
        pad: Vec<i64> = PAD;
        /// Their content: `value`, the mirrored inside, the edge, or the other end.
        mode: PadMode = MODE, or PadMode::Constant => "constant";
        /// The number of `mode: constant`.
        value: f64 = NUMBER_OR_INFINITY, or 0.0;
    }
}

impl Rules for Pad {
    fn check(&self) -> Result<(), BadArgument> {
        if self.mode == PadMode::Constant {
            return Ok(());
        }
        if self.pad.iter().any(|places| *places < 0) {
            return Err(bad(
                "pad",
                format!("numbers of 0 or more with mode `{}`", self.mode.name()),
            ));
        }
        if self.value != 0.0 {
            return Err(bad(
                "value",
                format!("nothing, as mode `{}` has no use for it", self.mode.name()),
            ));
        }
        Ok(())
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let input = &inputs[0];
        let mut dims = input.dims().to_vec();
        let padded = self.pad.len() / 2;
        if padded > dims.len() {
            return Err(format!("`pad` is for {padded} dimensions, found {input}"));
        }
        let is_image = (1..=3).contains(&padded) && (padded + 1..=padded + 2).contains(&dims.len());
        if self.mode != PadMode::Constant && !is_image {
            return Err(format!(
                "mode `{}` pads the last one, two or three dimensions of an input that has one or \
                 two more, found {input} and `pad` for {padded}",
                self.mode.name()
            ));
        }
        let is_of_floats = matches!(self.mode, PadMode::Reflect | PadMode::Replicate);
        if is_of_floats || self.value.is_infinite() {
            expect_floating(input)?;
        }
        for (size, ends) in dims.iter_mut().rev().zip(self.pad.chunks_exact(2)) {
            for places in ends {
                expect_room(self.mode, size, u64::try_from(*places).unwrap_or(0))?;
            }
            let removed = ends.iter().map(|end| (*end).min(0).unsigned_abs());
            let removed = removed.fold(0, u64::saturating_add);
            if size.as_fixed().is_some_and(|size| size < removed) {
                return Err(format!("a size of {size} has fewer elements than {ends:?} removes"));
            }
            let added = ends[0].checked_add(ends[1]).ok_or(OutOfRange)?;
            let left = size.plus_number(added).ok().filter(|size| *size != Dim::Fixed(0));
            *size = left.ok_or_else(|| {
                format!("nothing is left of a size of {size} with padding {ends:?}")
            })?;
        }
        Ok(vec![TensorType::new(input.dtype, dims)])
    }

    fn flops(&self, _: &[TensorType], _: &[TensorType]) -> Result<Dim, OutOfRange> {
        Ok(Dim::Fixed(0))
    }
}
