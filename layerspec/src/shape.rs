//! Shapes and tensor types.

use crate::{Bindings, DType, Dim};
use std::fmt;

/// The sizes of a tensor, outermost first.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Shape(Vec<Dim>);

impl Shape {
    /// A shape of these sizes.
    pub fn new(dims: Vec<Dim>) -> Self {
        Shape(dims)
    }

    /// The sizes, outermost first.
    pub fn dims(&self) -> &[Dim] {
        &self.0
    }

    /// The number of dimensions; 0 for a scalar.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// The number of elements once symbols are bound; None when a symbol is missing or the number
    /// does not fit 64 bits.
    pub fn elements(&self, bindings: &Bindings) -> Option<u64> {
        self.0.iter().try_fold(1u64, |product, dim| product.checked_mul(dim.eval(bindings)?))
    }

    /// The sizes once symbols are bound; None when a symbol is missing.
    pub fn eval(&self, bindings: &Bindings) -> Option<Vec<u64>> {
        self.0.iter().map(|dim| dim.eval(bindings)).collect()
    }

    /// Checks the sizes of a real tensor against this shape, and binds the symbols met for the
    /// first time. The error says what was expected and what was found.
    pub fn match_sizes(&self, sizes: &[u64], bindings: &mut Bindings) -> Result<(), String> {
        let wrong = |why: String| Err(format!("expected shape {self}, found {sizes:?}: {why}"));
        if sizes.len() != self.rank() {
            return wrong(format!("{} dimensions instead of {}", sizes.len(), self.rank()));
        }
        for (dim, size) in self.0.iter().zip(sizes) {
            if let Some(symbol) = dim.as_symbol() {
                if bindings.get(symbol).is_none() {
                    bindings.set(symbol, *size);
                }
            }
            match dim.eval(bindings) {
                Some(expected) if expected == *size => {}
                Some(expected) => return wrong(format!("{dim} is {expected} here, not {size}")),
                None => return wrong(format!("{dim} is not known here")),
            }
        }
        Ok(())
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims: Vec<String> = self.0.iter().map(Dim::to_string).collect();
        write!(f, "[{}]", dims.join(", "))
    }
}

/// Element type and shape of a value.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct TensorType {
    /// Element type.
    pub dtype: DType,
    /// Sizes, symbols included.
    pub shape: Shape,
}

impl TensorType {
    /// A tensor type of these parts.
    pub fn new(dtype: DType, dims: Vec<Dim>) -> Self {
        TensorType { dtype, shape: Shape::new(dims) }
    }

    /// The sizes, outermost first.
    pub fn dims(&self) -> &[Dim] {
        self.shape.dims()
    }

    /// Bytes once symbols are bound; None when a symbol is missing or the number does not fit 64
    /// bits.
    pub fn bytes(&self, bindings: &Bindings) -> Option<u64> {
        self.shape.elements(bindings)?.checked_mul(self.dtype.size_bytes())
    }
}

/// `[batch, 512]`, with the element type in front unless it is float32.
impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.dtype {
            DType::Float32 => write!(f, "{}", self.shape),
            dtype => write!(f, "{dtype} {}", self.shape),
        }
    }
}
