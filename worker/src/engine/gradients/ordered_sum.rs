//! Sums in a fixed order.

use tch::Tensor;
use tensor::{memory, TensorError};

/// A sum taken left to right, in the order of the calls to [`OrderedSum::add`].
///
/// A term is written to only if there is no other reference to it.
#[derive(Debug, Default)]
pub(crate) struct OrderedSum(Option<Tensor>);

impl OrderedSum {
    /// Adds a term. After an error the sum is empty.
    pub(crate) fn add(&mut self, mut term: Tensor) -> Result<(), TensorError> {
        self.0 = Some(match self.0.take() {
            None => term,
            // The order of two terms does not matter, so the sum may use the memory of either.
            Some(mut sum) if memory::is_uniquely_owned(&sum) && sum.size() == term.size() => {
                let _same = sum.f_add_(&term)?;
                sum
            }
            Some(sum) if memory::is_uniquely_owned(&term) && sum.size() == term.size() => {
                let _same = term.f_add_(&sum)?;
                term
            }
            Some(sum) => sum.f_add(&term)?,
        });
        Ok(())
    }

    pub(crate) fn get(&self) -> Option<&Tensor> {
        self.0.as_ref()
    }

    pub(crate) fn into_tensor(self) -> Option<Tensor> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_are_added_left_to_right_and_left_alone() {
        // 1e8 + 1 - 1e8 in f32 is 0 from the left and 1 from the right.
        let terms = [1e8f32, 1.0, -1e8].map(|value| Tensor::from_slice(&[value]));
        let mut sum = OrderedSum::default();
        for term in &terms {
            sum.add(term.shallow_clone()).unwrap();
        }
        assert_eq!(sum.into_tensor().unwrap().double_value(&[0]), 0.0);
        assert_eq!(terms.map(|term| term.double_value(&[0])), [1e8, 1.0, -1e8]);
    }
}
