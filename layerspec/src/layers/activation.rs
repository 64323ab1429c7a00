use super::elementwise::elementwise;
use super::{layer, Rules};
use crate::{Dim, OutOfRange, TensorType};

layer! {
    /// `max(x, 0)`, element by element.
    ReLU {}
    unsupported { inplace: "the result is the same without it"; }
}

layer! {
    /// `x * sigmoid(x)`, element by element.
    SiLU {}
    unsupported { inplace: "the result is the same without it"; }
}

layer! {
    /// `1 / (1 + exp(-x))`, element by element.
    Sigmoid {}
}

layer! {
    /// Hyperbolic tangent, element by element.
    Tanh {}
}

layer! {
    /// Gives its input on unchanged; useful to name a value or to join others with `merge`.
    Identity {}
}

layer! {
    /// `x / (1 + |x|)`, element by element.
    Softsign {}
}

layer! {
    /// `log(1 / (1 + exp(-x)))`, element by element, without its loss of precision.
    LogSigmoid {}
}

layer! {
    /// `x - tanh(x)`, element by element.
    Tanhshrink {}
}

elementwise! { ReLU: 1; SiLU: 5; Sigmoid: 4; Tanh: 4; Softsign: 3; LogSigmoid: 5; Tanhshrink: 5 }

impl Rules for Identity {
    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        Ok(inputs.to_vec())
    }

    fn flops(&self, _: &[TensorType], _: &[TensorType]) -> Result<Dim, OutOfRange> {
        Ok(Dim::Fixed(0))
    }
}
