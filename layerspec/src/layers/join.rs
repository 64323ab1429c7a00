use super::arguments::{dimension, expect_floating, new_dimension, OPTIONAL_NUMBER};
use super::rules::Arity;
use super::{layer, Rules};
use crate::yaml::INTEGER;
use crate::{DType, Dim, OutOfRange, TensorType};

layer! {
    /// Adds its inputs, element by element; sizes of 1 broadcast.
    Add {
        /// A number that is added to the sum. With it, one input is enough.
        number: Option<f64> = OPTIONAL_NUMBER, or None => "null";
    }
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

layer! {
    /// Takes the second input from the first, element by element; sizes of 1 broadcast.
    Sub {}
    unsupported { alpha: "multiply the second input before, with `Scale`"; }
}

layer! {
    /// Puts its inputs one after the other along a new dimension.
    Stack {
        /// The place of the new dimension in the output; `-1` is the last.
        dim: i64 = INTEGER, or 0;
    }
}

impl Rules for Add {
    fn arity(&self) -> Arity {
        if self.number.is_some() {
            Arity::Any
        } else {
            Arity::Several
        }
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        if self.number.is_some() {
            inputs.iter().try_for_each(expect_floating)?;
        }
        joined_all(inputs)
    }

    fn flops(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Result<Dim, OutOfRange> {
        let terms = inputs.len() + usize::from(self.number.is_some());
        Dim::product(outputs[0].dims())?.times_number(terms.saturating_sub(1) as u64)
    }
}

/// Rules of a layer that joins its inputs element by element.
macro_rules! broadcasting {
    ($($Name:ident: $arity:expr, $check:expr;)*) => {$(
        impl Rules for $Name {
            fn arity(&self) -> Arity {
                $arity
            }

            fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
                let check: fn(&TensorType) -> Result<(), String> = $check;
                inputs.iter().try_for_each(check)?;
                joined_all(inputs)
            }

            fn flops(
                &self,
                inputs: &[TensorType],
                outputs: &[TensorType],
            ) -> Result<Dim, OutOfRange> {
                Dim::product(outputs[0].dims())?.times_number(inputs.len() as u64 - 1)
            }
        }
    )*};
}

broadcasting! {
    Mul: Arity::Several, |_| Ok(());
    Sub: Arity::Two, expect_number;
}

/// PyTorch does not subtract booleans.
fn expect_number(input: &TensorType) -> Result<(), String> {
    match input.dtype {
        DType::Bool => Err(format!("expected numbers, found {input}")),
        _ => Ok(()),
    }
}

/// The type of what joins all inputs element by element.
pub(super) fn joined_all(inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
    let (first, others) = inputs.split_first().ok_or("expected an input")?;
    others.iter().try_fold(first.clone(), joined).map(|joined| vec![joined])
}

/// The type of an element-wise result.
fn joined(left: TensorType, right: &TensorType) -> Result<TensorType, String> {
    expect_same_dtype(&left, right)?;
    let dims = broadcast(left.dims(), right.dims()).map_err(|sizes| {
        format!(
            "expected inputs whose shapes are equal or broadcast, found {left} and {right}: \
             {sizes}"
        )
    })?;
    Ok(TensorType::new(left.dtype, dims))
}

/// The shape of an element-wise result, by PyTorch's rule: shapes are aligned at their end, and a
/// size goes with itself or with 1. A symbol goes with itself or 1 only. The error says which sizes
/// do not.
pub(super) fn broadcast(left: &[Dim], right: &[Dim]) -> Result<Vec<Dim>, String> {
    let one = Dim::Fixed(1);
    let size = |dims: &[Dim], from_end: usize| {
        let index = dims.len().checked_sub(from_end);
        index.and_then(|index| dims.get(index)).unwrap_or(&one).clone()
    };
    let dims = (1..=left.len().max(right.len())).rev().map(|from_end| {
        match (size(left, from_end), size(right, from_end)) {
            (a, b) if a == b || b == one => Ok(a),
            (a, b) if a == one => Ok(b),
            (a, b) => Err(format!("{a} against {b}")),
        }
    });
    dims.collect()
}

pub(super) fn expect_same_dtype(left: &TensorType, right: &TensorType) -> Result<(), String> {
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
                && (0..dims.len())
                    .all(|index| index == along || other.dims()[index] == dims[index]);
            if !fits {
                return Err(format!(
                    "expected inputs that differ in dimension {along} only, found {first} and \
                     {other}"
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

impl Rules for Stack {
    fn arity(&self) -> Arity {
        Arity::Several
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let (first, others) = inputs.split_first().ok_or("expected an input")?;
        if let Some(other) = others.iter().find(|other| *other != first) {
            return Err(format!("expected inputs that are alike, found {first} and {other}"));
        }
        let mut dims = first.dims().to_vec();
        let along = new_dimension(self.dim, dims.len())?;
        dims.insert(along, Dim::Fixed(inputs.len() as u64));
        Ok(vec![TensorType::new(first.dtype, dims)])
    }

    fn flops(&self, _: &[TensorType], _: &[TensorType]) -> Result<Dim, OutOfRange> {
        Ok(Dim::Fixed(0))
    }
}
