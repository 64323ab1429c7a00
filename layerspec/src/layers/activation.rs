use super::arguments::expect_floating;
use super::{layer, Rules};
use crate::{Dim, OutOfRange, TensorType};

layer! {
    /// `max(x, 0)`, element by element.
    ReLU {}
    refuses { inplace: "the result is the same without it"; }
}

layer! {
    /// `x * sigmoid(x)`, element by element.
    SiLU {}
    refuses { inplace: "the result is the same without it"; }
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

/// Rules of a layer that maps each element of a floating-point tensor by itself, at a rough
/// number of operations per element.
macro_rules! elementwise {
    ($($Name:ident: $flops:literal),* $(,)?) => {$(
        impl Rules for $Name {
            fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
                expect_floating(&inputs[0])?;
                Ok(inputs.to_vec())
            }

            fn flops(&self, inputs: &[TensorType], _: &[TensorType]) -> Result<Dim, OutOfRange> {
                Dim::product(inputs[0].dims())?.times_number($flops)
            }
        }
    )*};
}

elementwise! { ReLU: 1, SiLU: 5, Sigmoid: 4, Tanh: 4 }

impl Rules for Identity {
    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        Ok(inputs.to_vec())
    }

    fn flops(&self, _: &[TensorType], _: &[TensorType]) -> Result<Dim, OutOfRange> {
        Ok(Dim::Fixed(0))
    }
}
