//! Arguments with a number for each dimension of a signal, an image or a volume, and inputs that
//! are one.

use crate::yaml::{Kind, Node, Reader, COUNT, SIZE};
use crate::{Dim, TensorType};
use serde::{Deserialize, Serialize};

/// Padding of an input's spatial dimensions.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(bound(serialize = "[u64; N]: Serialize", deserialize = "[u64; N]: Deserialize<'de>"))]
pub enum Padding<const N: usize> {
    /// This number at each end of each dimension.
    Explicit([u64; N]),
    /// Padding that keeps the sizes; an odd element goes to the end.
    Same,
}

/// The readers of arguments for `N` spatial dimensions.
pub(super) struct Spatial<const N: usize>;

/// A number for each dimension, or one for all.
pub(super) fn each_of<T: Copy, const N: usize>(node: &Node, one: &Reader<T>) -> Option<[T; N]> {
    match &node.kind {
        Kind::List(items) if items.len() == N => {
            let numbers: Vec<T> = items.iter().map(one.read).collect::<Option<_>>()?;
            numbers.try_into().ok()
        }
        Kind::List(_) => None,
        _ => (one.read)(node).map(|all| [all; N]),
    }
}

fn padding<const N: usize>(node: &Node) -> Option<Padding<N>> {
    match node.as_text() {
        Some("same") => Some(Padding::Same),
        Some("valid") => Some(Padding::Explicit([0; N])),
        _ => each_of(node, &COUNT).map(Padding::Explicit),
    }
}

const KEYWORDS: &[&str] = &["same", "valid"];

macro_rules! readers {
    ($($N:literal: $list:literal),*) => {$(
        impl Spatial<$N> {
            /// 1 or more by dimension.
            pub(super) const SIZES: Reader<[u64; $N]> =
                Reader::new(concat!("a whole number, 1 or more, or ", $list), |node| {
                    each_of(node, &SIZE)
                });
            /// 0 or more by dimension.
            pub(super) const COUNTS: Reader<[u64; $N]> =
                Reader::new(concat!("a whole number, 0 or more, or ", $list), |node| {
                    each_of(node, &COUNT)
                });
            /// 0 or more by dimension, or a keyword.
            pub(super) const PADDING: Reader<Padding<$N>> =
                Reader::keyword(
                    concat!("a whole number, 0 or more, ", $list, ", `same` or `valid`"),
                    KEYWORDS,
                    padding,
                );
        }
    )*};
}

readers! {
    1: "a list of one",
    2: "two of them: [height, width]",
    3: "three of them: [depth, height, width]"
}

/// The batch, the channels, and the sizes of the `N` spatial dimensions.
pub(super) fn spatial_dims<const N: usize>(
    input: &TensorType,
) -> Result<(&Dim, &Dim, &[Dim; N]), String> {
    if let [batch, channels, sizes @ ..] = input.dims() {
        if let Ok(sizes) = sizes.try_into() {
            return Ok((batch, channels, sizes));
        }
    }
    let names = ["length", "height, width", "depth, height, width"].get(N - 1).unwrap_or(&"..");
    Err(format!("expected an input [batch, channels, {names}], found {input}"))
}

/// The type of `[batch, channels]` and sizes like the input's.
pub(super) fn with_spatial_dims<const N: usize>(
    input: &TensorType,
    channels: &Dim,
    size: impl Fn(usize, &Dim) -> Result<Dim, String>,
) -> Result<TensorType, String> {
    let (batch, _, sizes) = spatial_dims::<N>(input)?;
    let mut dims = vec![batch.clone(), channels.clone()];
    for (axis, of_input) in sizes.iter().enumerate() {
        dims.push(size(axis, of_input)?);
    }
    Ok(TensorType::new(input.dtype, dims))
}
