use super::arguments::expect_floating;
use super::join::{broadcast, expect_same_dtype};
use super::{layer, Arity, Rules};
use crate::{Dim, OutOfRange, TensorType};

layer! {
    /// The product of two matrices, or of two batches of them, whose outer dimensions broadcast.
    MatMul {}
}

impl Rules for MatMul {
    fn arity(&self) -> Arity {
        Arity::Two
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let (left, right) = (&inputs[0], &inputs[1]);
        expect_floating(left)?;
        expect_same_dtype(left, right)?;
        match (left.dims(), right.dims()) {
            ([left_outer @ .., rows, inner], [right_outer @ .., other, columns])
                if inner == other =>
            {
                let mut dims = broadcast(left_outer, right_outer).map_err(|sizes| {
                    format!(
                        "expected outer dimensions that broadcast, found {left} and {right}: \
                         {sizes}"
                    )
                })?;
                dims.extend([rows.clone(), columns.clone()]);
                Ok(vec![TensorType::new(left.dtype, dims)])
            }
            _ => {
                Err(format!("expected inputs [.., n, m] and [.., m, k], found {left} and {right}"))
            }
        }
    }

    fn flops(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Result<Dim, OutOfRange> {
        let inner = inputs[0].dims().last().ok_or(OutOfRange)?;
        Dim::product(outputs[0].dims())?.times(inner)?.times_number(2)
    }
}
