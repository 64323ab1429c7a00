use super::arguments::{dimension, expect_floating};
use super::{layer, Rules};
use crate::spec::MAX_RANK;
use crate::yaml::{Kind, Reader, FLAG, INTEGER};
use crate::{Dim, OutOfRange, TensorType};

const DIMS: Reader<Vec<i64>> =
    Reader::new("a whole number, or a list of them", |node| match &node.kind {
        Kind::List(items) if (1..=MAX_RANK).contains(&items.len()) => {
            items.iter().map(INTEGER.read).collect()
        }
        Kind::List(_) => None,
        _ => (INTEGER.read)(node).map(|dim| vec![dim]),
    });

layer! {
    /// The mean over a dimension or several.
    Mean {
        /// The dimensions; `-1` is the last.
        dim: Vec<i64> = DIMS;
        /// Whether they stay, with size 1.
        keepdim: bool = FLAG, or false;
    }
}

layer! {
    /// The sum over a dimension or several.
    Sum {
        /// The dimensions; `-1` is the last.
        dim: Vec<i64> = DIMS;
        /// Whether they stay, with size 1.
        keepdim: bool = FLAG, or false;
    }
}

/// Rules of a layer that makes one element of many.
macro_rules! reducing {
    ($($Name:ident),*) => {$(
        impl Rules for $Name {
            fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
                expect_floating(&inputs[0])?;
                Ok(vec![reduced(&inputs[0], &self.dim, self.keepdim)?])
            }

            fn flops(&self, inputs: &[TensorType], _: &[TensorType]) -> Result<Dim, OutOfRange> {
                Dim::product(inputs[0].dims())
            }
        }
    )*};
}

reducing! { Mean, Sum }

fn reduced(input: &TensorType, dims: &[i64], keep: bool) -> Result<TensorType, String> {
    let mut gone = vec![false; input.shape.rank()];
    for dim in dims {
        if std::mem::replace(&mut gone[dimension(*dim, input.shape.rank())?], true) {
            return Err(format!(
                "expected each dimension once in `dim`, found {dims:?} for {input}"
            ));
        }
    }
    let sizes = input.dims().iter().zip(gone);
    let kept = sizes.filter_map(|(size, gone)| match (gone, keep) {
        (false, _) => Some(size.clone()),
        (true, true) => Some(Dim::Fixed(1)),
        (true, false) => None,
    });
    Ok(TensorType::new(input.dtype, kept.collect()))
}
