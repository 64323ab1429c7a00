//! Sums of gradients, in a fixed order.

use tch::Tensor;
use tensor::TensorError;

/// A sum taken left to right, in the order of the calls to [`Sum::add`].
///
/// The first term is taken as it is and may share memory with something else, so it is never
/// written to; from the second on the sum has memory of its own.
#[derive(Debug, Default)]
pub(super) enum Sum {
    #[default]
    Nothing,
    One(Tensor),
    Several(Tensor),
}

impl Sum {
    /// Adds a term. After an error the sum is empty.
    pub(super) fn add(&mut self, term: Tensor) -> Result<(), TensorError> {
        *self = match std::mem::take(self) {
            Sum::Nothing => Sum::One(term),
            Sum::One(first) => Sum::Several(first.f_add(&term)?),
            Sum::Several(mut sum) => {
                let _same = sum.f_add_(&term)?;
                Sum::Several(sum)
            }
        };
        Ok(())
    }

    pub(super) fn get(&self) -> Option<&Tensor> {
        match self {
            Sum::Nothing => None,
            Sum::One(sum) | Sum::Several(sum) => Some(sum),
        }
    }

    pub(super) fn into_tensor(self) -> Option<Tensor> {
        match self {
            Sum::Nothing => None,
            Sum::One(sum) | Sum::Several(sum) => Some(sum),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_are_added_left_to_right_and_left_alone() {
        // 1e8 + 1 - 1e8 in f32 is 0 from the left and 1 from the right.
        let terms = [1e8f32, 1.0, -1e8].map(|value| Tensor::from_slice(&[value]));
        let mut sum = Sum::default();
        assert!(sum.get().is_none());
        for term in &terms {
            sum.add(term.shallow_clone()).unwrap();
        }
        assert_eq!(sum.into_tensor().unwrap().double_value(&[0]), 0.0);
        assert_eq!(terms.map(|term| term.double_value(&[0])), [1e8, 1.0, -1e8]);
    }
}
