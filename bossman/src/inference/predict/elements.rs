//! The numbers of an output, as text and as JSON.

use serde_json::Value;
use tch::{Kind, Tensor};
use tensor::TensorError;

/// One number of an output.
#[derive(Clone, Copy)]
pub(super) enum Element {
    Float(f32),
    Integer(i64),
}

impl Element {
    /// The shortest decimal that reads back as the same f32, or `NaN`, `inf` or `-inf`.
    pub(super) fn format_text(&self) -> String {
        match self {
            Element::Float(number) => format!("{number:?}"),
            Element::Integer(number) => number.to_string(),
        }
    }

    /// The same, but null if it is not finite, because JSON has no such numbers.
    pub(super) fn format_json(self) -> Value {
        match self {
            Element::Float(number) => {
                number.to_string().parse::<f64>().map_or(Value::Null, Value::from)
            }
            Element::Integer(number) => number.into(),
        }
    }
}

/// The elements of each sample.
pub(super) fn rows(output: &Tensor) -> Result<Vec<Vec<Element>>, TensorError> {
    let samples = output.size().first().copied().unwrap_or(1);
    let flat = output.f_reshape([samples, -1])?;
    let width = usize::try_from(flat.size().get(1).copied().unwrap_or(1)).unwrap_or(1).max(1);
    let numbers: Vec<Element> = match flat.is_floating_point() {
        true => {
            let numbers = Vec::<f32>::try_from(flat.f_to_kind(Kind::Float)?.f_reshape(-1)?)?;
            numbers.into_iter().map(Element::Float).collect()
        }
        false => {
            let numbers = Vec::<i64>::try_from(flat.f_to_kind(Kind::Int64)?.f_reshape(-1)?)?;
            numbers.into_iter().map(Element::Integer).collect()
        }
    };
    Ok(numbers.chunks(width).map(<[Element]>::to_vec).collect())
}

/// Each sample as nested lists.
pub(super) fn nested(output: &Tensor) -> Result<Vec<Value>, TensorError> {
    let sizes = output.size();
    let within = sizes.get(1..).unwrap_or_default();
    let in_json = |row: Vec<Element>| row.into_iter().map(Element::format_json).collect();
    Ok(rows(output)?.into_iter().map(|row| folded(in_json(row), within)).collect())
}

fn folded(numbers: Vec<Value>, sizes: &[i64]) -> Value {
    match sizes.split_first() {
        None => numbers.into_iter().next().unwrap_or(Value::Null),
        Some((count, rest)) => {
            let each = (numbers.len() / usize::try_from(*count).unwrap_or(1).max(1)).max(1);
            Value::Array(numbers.chunks(each).map(|part| folded(part.to_vec(), rest)).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_of_any_shape_and_type_become_lists() {
        let fractions = Tensor::from_slice(&[0.1f32, 2.0, -3.5, f32::NAN]);
        assert_eq!(
            serde_json::to_string(&nested(&fractions).unwrap()).unwrap(),
            "[0.1,2.0,-3.5,null]"
        );
        let pairs = nested(&fractions.view([2, 1, 2])).unwrap();
        assert_eq!(serde_json::to_string(&pairs).unwrap(), "[[[0.1,2.0]],[[-3.5,null]]]");
        let large = Tensor::from_slice(&[1i64 << 53]).view([1, 1]);
        assert_eq!(
            serde_json::to_string(&nested(&large).unwrap()).unwrap(),
            "[[9007199254740992]]"
        );
    }

    #[test]
    fn csv_says_what_is_no_number() {
        let fractions =
            Tensor::from_slice(&[0.1f32, 2.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY]);
        let text: Vec<String> =
            rows(&fractions).unwrap().iter().map(|row| row[0].format_text()).collect();
        assert_eq!(text, ["0.1", "2.0", "NaN", "inf", "-inf"]);
    }
}
