//! `inputs:`, the tensors that a model is called with.

use super::name::{check_name, Name};
use crate::error::quoted;
use crate::vars::is_identifier;
use crate::yaml::{Entry, Kind, Node, Reader, SIZE};
use crate::{DType, Diagnostic, Dim, TensorType};

/// The most dimensions of a tensor.
pub(crate) const MAX_RANK: usize = 16;

/// One input of the model.
#[derive(Debug)]
pub(crate) struct Input {
    pub(crate) name: Name,
    pub(crate) ty: TensorType,
}

/// An element type.
pub(crate) const DTYPE: Reader<DType> = Reader::keyword(
    "float32, float64, float16, bfloat16, int64, int32, uint8 or bool",
    &["float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool"],
    |node| node.as_text()?.parse().ok(),
);

const SIZE_OR_WORD: Reader<Dim> =
    Reader::new("a whole number, 1 or more, or a symbol like `batch`", |node| {
        match node.as_text() {
            Some(symbol) if is_identifier(symbol) => Some(Dim::symbol(symbol)),
            _ => (SIZE.read)(node).map(Dim::Fixed),
        }
    });

pub(super) fn read_inputs(node: &Node) -> Result<Vec<Input>, Diagnostic> {
    match &node.kind {
        Kind::Map(entries) if !entries.is_empty() => entries.iter().map(read_input).collect(),
        _ => Err(node.unexpected("`inputs`", "at least one input, as in `x: [batch, 1]`")),
    }
}

fn read_input(entry: &Entry) -> Result<Input, Diagnostic> {
    let Entry { key, value } = entry;
    let name = Name { text: key.text.clone(), location: key.location };
    check_name(&name)?;
    let what = format!("input {}", quoted(&key.text));
    let (shape, dtype) = match &value.kind {
        Kind::Map(_) => {
            let input = value.mapping(&what, "key", &["shape", "dtype"])?;
            let dtype = input.optional("dtype", &DTYPE)?.unwrap_or(DType::Float32);
            (input.need("shape")?, dtype)
        }
        _ => (value, DType::Float32),
    };
    let sizes = shape.list(&what, "a shape like [batch, 1], or {shape: [..], dtype: ..}")?;
    if sizes.is_empty() || sizes.len() > MAX_RANK {
        let expected = format!("a shape of 1 to {MAX_RANK} dimensions, the batch first");
        return Err(Diagnostic::new(shape.location, format!("{what}: expected {expected}")));
    }
    let dims =
        sizes.iter().map(|size| size.read(&what, &SIZE_OR_WORD)).collect::<Result<_, _>>()?;
    Ok(Input { name, ty: TensorType::new(dtype, dims) })
}
