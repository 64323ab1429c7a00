use super::arguments::dimension;
use super::rules::Arity;
use super::{layer, Rules};
use crate::yaml::INTEGER;
use crate::{Dim, OutOfRange, TensorType};

layer! {
    /// Adds its inputs, element by element; sizes of 1 broadcast.
    Add {}
}

layer! {
    /// Multiplies its inputs, element by element; sizes of 1 broadcast.
    Mul {}
}

layer! {
    /// Puts its inputs one after the other along a dimension.
    Concat {
        /// The dimension; `-1` is the last.
        dim: i64 = INTEGER;
    }
}

/// Rules of a layer that joins its inputs element by element.
macro_rules! broadcasting {
    ($($Name:ident),*) => {$(
        impl Rules for $Name {
            fn arity(&self) -> Arity {
                Arity::Several
            }

            fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
                let (first, others) = inputs.split_first().ok_or("expected an input")?;
                others.iter().try_fold(first.clone(), broadcast).map(|joined| vec![joined])
            }

            fn flops(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Result<Dim, OutOfRange> {
                Dim::product(outputs[0].dims())?.times_number(inputs.len() as u64 - 1)
            }
        }
    )*};
}

broadcasting! { Add, Mul }

/// The type of an element-wise result, by PyTorch's rule: shapes are aligned at their end, and a
/// size goes with itself or with 1. A word goes with itself or 1 only.
fn broadcast(left: TensorType, right: &TensorType) -> Result<TensorType, String> {
    expect_same_dtype(&left, right)?;
    let rank = left.shape.rank().max(right.shape.rank());
    let one = Dim::Fixed(1);
    let size = |ty: &TensorType, from_end: usize| {
        let index = ty.shape.rank().checked_sub(from_end);
        index.and_then(|index| ty.dims().get(index)).unwrap_or(&one).clone()
    };
    let dims = (1..=rank).rev().map(|from_end| match (size(&left, from_end), size(right, from_end)) {
        (a, b) if a == b || b == one => Ok(a),
        (a, b) if a == one => Ok(b),
        (a, b) => Err(format!(
            "expected inputs whose shapes are equal or broadcast, found {left} and {right}: {a} against {b}"
        )),
    });
    Ok(TensorType::new(left.dtype, dims.collect::<Result<_, _>>()?))
}

fn expect_same_dtype(left: &TensorType, right: &TensorType) -> Result<(), String> {
    if left.dtype == right.dtype {
        return Ok(());
    }
    Err(format!("expected inputs of one dtype, found {} and {}", left.dtype, right.dtype))
}

impl Rules for Concat {
    fn arity(&self) -> Arity {
        Arity::Several
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let (first, others) = inputs.split_first().ok_or("expected an input")?;
        let along = dimension(self.dim, first.shape.rank())?;
        let mut dims = first.dims().to_vec();
        for other in others {
            expect_same_dtype(first, other)?;
            let fits = other.shape.rank() == dims.len()
                && (0..dims.len()).all(|index| index == along || other.dims()[index] == dims[index]);
            if !fits {
                return Err(format!(
                    "expected inputs that differ in dimension {along} only, found {first} and {other}"
                ));
            }
            dims[along] = dims[along].plus(&other.dims()[along])?;
        }
        Ok(vec![TensorType::new(first.dtype, dims)])
    }

    fn flops(&self, _: &[TensorType], _: &[TensorType]) -> Result<Dim, OutOfRange> {
        Ok(Dim::Fixed(0))
    }
}
