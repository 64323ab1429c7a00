//! The losses of two runs that should be equal.

use crate::StepReport;

/// The difference of the losses of two runs.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(super) struct Difference {
    /// Whether all losses are finite and equal to the bit.
    pub(super) is_none: bool,
    /// The largest difference, as a part of the expected loss. Infinite if a loss is missing or not
    /// finite.
    pub(super) largest: f64,
    /// The first step with a difference.
    pub(super) first_step: Option<u64>,
}

impl Difference {
    /// Compares the losses of the same steps.
    pub(super) fn between(found: &[StepReport], expected: &[StepReport]) -> Self {
        let differs = |found: &StepReport, expected: &StepReport| {
            let is_same = found.loss.to_bits() == expected.loss.to_bits();
            found.step != expected.step || !is_same || !found.loss.is_finite()
        };
        let mut largest = match found.len() == expected.len() && !found.is_empty() {
            true => 0.0,
            false => f64::INFINITY,
        };
        let mut first_step = None;
        for (found, expected) in found.iter().zip(expected) {
            if differs(found, expected) {
                first_step = first_step.or(Some(found.step));
                largest = f64::max(largest, relative(found.loss, expected.loss));
            }
        }
        Difference { is_none: first_step.is_none() && largest == 0.0, largest, first_step }
    }

    /// The difference as a part of a text.
    pub(super) fn described(&self) -> String {
        match (self.is_none, self.first_step) {
            (true, _) => "equal to the bit".into(),
            (false, Some(step)) => {
                format!("the losses differ from step {step} on, by up to {:.1e}", self.largest)
            }
            (false, None) => "steps are missing".into(),
        }
    }
}

fn relative(found: f32, expected: f32) -> f64 {
    let (found, expected) = (f64::from(found), f64::from(expected));
    match found.is_finite() && expected.is_finite() {
        true => (found - expected).abs() / expected.abs().max(f64::from(f32::MIN_POSITIVE)),
        false => f64::INFINITY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn steps(losses: &[f32]) -> Vec<StepReport> {
        let step = |(index, loss): (usize, &f32)| StepReport {
            step: index as u64 + 1,
            loss: *loss,
            samples: 1,
            tokens: None,
            time: Duration::ZERO,
            lr: None,
            grad_norm: None,
        };
        losses.iter().enumerate().map(step).collect()
    }

    #[test]
    fn losses_are_equal_to_the_bit_or_the_largest_difference_counts() {
        let between =
            |found: &[f32], expected: &[f32]| Difference::between(&steps(found), &steps(expected));
        let equal = between(&[2.0, 1.0], &[2.0, 1.0]);
        assert!(equal.is_none && equal.largest == 0.0, "{equal:?}");
        let other = between(&[2.0, 1.5, 1.0], &[2.0, 1.0, 0.8]);
        assert!(!other.is_none && other.largest == 0.5, "{other:?}");
        assert_eq!(other.described(), "the losses differ from step 2 on, by up to 5.0e-1");
        for missing in [between(&[2.0], &[2.0, 1.0]), between(&[], &[])] {
            assert!(!missing.is_none && missing.largest.is_infinite(), "{missing:?}");
        }
        let broken = between(&[f32::NAN], &[f32::NAN]);
        assert!(!broken.is_none && broken.largest.is_infinite(), "{broken:?}");
    }
}
