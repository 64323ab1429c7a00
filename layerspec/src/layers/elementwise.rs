//! Rules that activation functions share.

/// Rules of a layer that maps each element of a floating-point tensor by itself, at a rough
/// number of operations per element. A check of its arguments may follow.
macro_rules! elementwise {
    ($($Name:ident: $flops:literal $(, $check:expr)?);* $(;)?) => {$(
        impl $crate::layers::Rules for $Name {
            $(fn check(&self) -> Result<(), $crate::layers::BadArgument> {
                let check: fn(&$Name) -> Result<(), $crate::layers::BadArgument> = $check;
                check(self)
            })?

            fn infer(
                &self,
                inputs: &[$crate::TensorType],
            ) -> Result<Vec<$crate::TensorType>, String> {
                $crate::layers::arguments::expect_floating(&inputs[0])?;
                Ok(inputs.to_vec())
            }

            fn flops(
                &self,
                inputs: &[$crate::TensorType],
                _: &[$crate::TensorType],
            ) -> Result<$crate::Dim, $crate::OutOfRange> {
                $crate::Dim::product(inputs[0].dims())?.times_number($flops)
            }
        }
    )*};
}
pub(super) use elementwise;
