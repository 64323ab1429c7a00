//! The rules that every kind of layer implements.

use crate::{Dim, OutOfRange, ParamSpec, TensorType};

/// The types and costs of a layer. All arithmetic is checked, because a layer from the wire may
/// hold any numbers.
pub(crate) trait Rules {
    /// The number of inputs that the layer takes.
    fn arity(&self) -> Arity {
        Arity::One
    }

    /// Checks that the arguments fit each other.
    fn check(&self) -> Result<(), BadArgument> {
        Ok(())
    }

    /// Whether it treats the outermost dimension of its input as positions of a sequence, and mixes
    /// them.
    fn mixes_outermost(&self) -> bool {
        false
    }

    /// The dimensions of its first input along which it mixes elements, or selects some, as its
    /// arguments name them.
    fn mixes_along(&self) -> &[i64] {
        &[]
    }

    /// Whether gradients flow through it. If not, its outputs need none.
    fn passes_gradients(&self) -> bool {
        true
    }

    /// Parameters and buffers in PyTorch's order.
    fn params(&self) -> Vec<ParamSpec> {
        Vec::new()
    }

    /// Output types for inputs whose number fits [`Rules::arity`].
    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String>;

    /// Forward FLOPs for the whole batch.
    fn flops(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Result<Dim, OutOfRange>;
}

/// The number of inputs that a kind of layer takes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Arity {
    /// Exactly one.
    One,
    /// Exactly two.
    Two,
    /// Two or more.
    Several,
    /// One or more.
    Any,
    /// One input for each name of one of these lists.
    Named(Vec<Vec<&'static str>>),
}

impl Arity {
    /// Checks a number of inputs; the error says what to do.
    pub(crate) fn check(&self, inputs: usize) -> Result<(), String> {
        match (self, inputs) {
            (Arity::Named(lists), _) if lists.iter().any(|list| list.len() == inputs) => Ok(()),
            (Arity::Named(lists), _) => {
                let named = |list: &Vec<&str>| format!("{} ({})", list.len(), list.join(", "));
                let expected: Vec<String> = lists.iter().map(named).collect();
                Err(format!(
                    "expected as inputs {}, found {inputs}; name those after the first in \
                     `in_variables: [..]`",
                    expected.join(" or ")
                ))
            }
            (Arity::One, 1) | (Arity::Two, 2) | (Arity::Several, 2..) | (Arity::Any, 1..) => Ok(()),
            (Arity::One | Arity::Any, 0) => Err("expected one input, found none".into()),
            (Arity::One, _) => Err(format!(
                "expected one input, found {inputs}; `merge: add`, `mul` or `concat` joins \
                 `in_variables` to it"
            )),
            (Arity::Two, 3..) => Err(format!("expected two inputs, found {inputs}")),
            (Arity::Two, _) => Err(format!(
                "expected two inputs, found {inputs}; name the second one in `in_variables: [..]`"
            )),
            (Arity::Several, _) => Err(format!(
                "expected two inputs or more, found {inputs}; name the others in `in_variables: \
                 [..]`"
            )),
        }
    }
}

/// An argument that does not fit the others.
#[derive(Debug)]
pub(crate) struct BadArgument {
    pub(crate) name: &'static str,
    pub(crate) expected: String,
}
