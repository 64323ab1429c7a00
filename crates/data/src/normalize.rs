//! Brings inputs to a range that models learn well from.

use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};
use tensor::TensorError;

/// Computes `(x / divide - mean) / std`, as torchvision's `ToTensor` (with 255) and `Normalize` do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Normalize {
    /// The input's name; `None` for the model's first.
    pub input: Option<String>,
    /// The divisor that is applied first.
    pub divide: f64,
    /// The numbers to subtract: one, or one for each channel (the dimension after the batch).
    pub mean: Vec<f64>,
    /// The divisor that is applied last, in the same form as `mean`.
    pub std: Vec<f64>,
}

impl Normalize {
    /// Checks that samples of this shape have the channels.
    pub(super) fn check(&self, shape: Option<&[u64]>) -> Result<(), String> {
        let channels = shape.and_then(|shape| shape.first());
        for (what, numbers) in [("mean", &self.mean), ("std", &self.std)] {
            if numbers.len() != 1 && channels != Some(&(numbers.len() as u64)) {
                let shape = shape.map_or_else(
                    || "no fixed shape".into(),
                    |shape| format!("the shape {shape:?}"),
                );
                return Err(format!(
                    "`normalize` has {} numbers as `{what}`, but a sample has {shape}",
                    numbers.len()
                ));
            }
        }
        Ok(())
    }

    pub(super) fn apply(&self, batch: &Tensor) -> Result<Tensor, TensorError> {
        let kind = batch.f_kind()?;
        let numbers = |numbers: &[f64]| -> Result<Tensor, TensorError> {
            let mut shape = vec![1; batch.dim()];
            if let Some(channels) = shape.get_mut(1) {
                *channels = numbers.len() as i64;
            }
            Ok(Tensor::f_from_slice(numbers)?.f_to_kind(kind)?.f_reshape(shape)?)
        };
        let divide = Tensor::f_from_slice(&[self.divide])?.f_to_kind(kind)?;
        let centred = batch.f_div(&divide)?.f_sub(&numbers(&self.mean)?)?;
        Ok(centred.f_div(&numbers(&self.std)?)?)
    }

    /// Returns whether inputs of this kind can be normalized. Whole numbers cannot.
    pub(super) fn suits(kind: Kind) -> bool {
        matches!(kind, Kind::Float | Kind::Double | Kind::Half | Kind::BFloat16)
    }
}
