use super::arguments::dimension;
use super::{layer, Rules};
use crate::yaml::{Kind, Reader, INTEGER, SIZE};
use crate::{Dim, OutOfRange, TensorType};

const PLACE: Reader<Option<i64>> = Reader::new("a whole number, or null", |node| match node.kind {
    Kind::Null => Some(None),
    _ => (INTEGER.read)(node).map(Some),
});

layer! {
    /// Takes a part of a dimension: `x[start:end:step]` there. Unlike in Python, what lies outside
    /// is an error.
    Slice {
        /// The dimension; `-1` is the last.
        dim: i64 = INTEGER, or 0;
        /// The first index; below zero it counts from the end; `null` is the beginning.
        start: Option<i64> = PLACE, or None => "null";
        /// The index after the last; below zero it counts from the end; `null` is the end.
        end: Option<i64> = PLACE, or None => "null";
        /// Distance from one index to the next.
        step: u64 = SIZE, or 1;
    }
}

layer! {
    /// Selects one index of a dimension, which the output does not have.
    Select {
        /// The dimension; `-1` is the last.
        dim: i64 = INTEGER;
        /// The index; below zero it counts from the end.
        index: i64 = INTEGER;
    }
}

/// The index from the beginning; a number below zero counts from the end.
fn place(number: i64, size: &Dim) -> Result<Dim, OutOfRange> {
    match u64::try_from(number) {
        Ok(number) => Ok(Dim::Fixed(number)),
        Err(_) => size.plus_number(number),
    }
}

/// `end - start`, where both are numbers or both count from the same end, or the end is the
/// symbol's.
fn length(start: i64, end: Option<i64>, size: &Dim) -> Option<Dim> {
    match (size.as_fixed(), end) {
        (Some(_), _) => {
            let first = place(start, size).ok()?.as_fixed()?;
            let end = end.map_or(Ok(size.clone()), |end| place(end, size)).ok()?;
            end.plus_number(i64::try_from(first).ok()?.checked_neg()?).ok()
        }
        (None, None) if start < 0 => u64::try_from(start.checked_neg()?).ok().map(Dim::Fixed),
        (None, None) => size.plus_number(start.checked_neg()?).ok(),
        (None, Some(end)) if (start < 0) == (end < 0) => {
            u64::try_from(end.checked_sub(start)?).ok().map(Dim::Fixed)
        }
        (None, Some(end)) if end < 0 => size.plus_number(end.checked_sub(start)?).ok(),
        (None, Some(_)) => None,
    }
}

impl Rules for Slice {
    fn mixes_along(&self) -> &[i64] {
        std::slice::from_ref(&self.dim)
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let input = &inputs[0];
        let mut dims = input.dims().to_vec();
        let along = dimension(self.dim, dims.len())?;
        let size = &dims[along];
        let show = |place: Option<i64>| place.map_or(String::new(), |place| place.to_string());
        let misfit = || {
            let (start, end) = (show(self.start), show(self.end));
            format!("expected a part of dimension {along} of {input}, found [{start}:{end}]")
        };
        let start = self.start.unwrap_or(0);
        let places =
            [Some(start), self.end].into_iter().flatten().map(|number| place(number, size));
        for place in places {
            let place = place.map_err(|_| misfit())?;
            if place.as_fixed().zip(size.as_fixed()).is_some_and(|(place, size)| place > size) {
                return Err(misfit());
            }
        }
        let length = length(start, self.end, size)
            .filter(|length| *length != Dim::Fixed(0))
            .ok_or_else(misfit)?;
        let last =
            i64::try_from(self.step).ok().and_then(|step| step.checked_sub(1)).ok_or(OutOfRange)?;
        dims[along] = length.plus_number(last)?.floor_div(self.step)?;
        Ok(vec![TensorType::new(input.dtype, dims)])
    }

    fn flops(&self, _: &[TensorType], _: &[TensorType]) -> Result<Dim, OutOfRange> {
        Ok(Dim::Fixed(0))
    }
}

impl Rules for Select {
    fn mixes_along(&self) -> &[i64] {
        std::slice::from_ref(&self.dim)
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let input = &inputs[0];
        let mut dims = input.dims().to_vec();
        let along = dimension(self.dim, dims.len())?;
        let size = dims.remove(along);
        let place = place(self.index, &size).ok();
        let outside = |place: &Dim| {
            place.as_fixed().zip(size.as_fixed()).is_some_and(|(place, size)| place >= size)
        };
        if place.as_ref().is_none_or(outside) {
            return Err(format!(
                "there is no place {} in dimension {along} of {input}",
                self.index
            ));
        }
        Ok(vec![TensorType::new(input.dtype, dims)])
    }

    fn flops(&self, _: &[TensorType], _: &[TensorType]) -> Result<Dim, OutOfRange> {
        Ok(Dim::Fixed(0))
    }
}
