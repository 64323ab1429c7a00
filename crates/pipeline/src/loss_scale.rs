//! Dynamic loss scaling, as PyTorch's `GradScaler` does it (Micikevicius et al. 2017,
//! arXiv:1710.03740).

use serde::{Deserialize, Serialize};

/// The factor of the loss that keeps small gradients in the range of float16, which has five bits
/// for the exponent.
///
/// A step whose gradients overflow changes no parameter, and the scale is halved; after many good
/// steps it is doubled. Scales are powers of two: multiplying by one changes no digit.
#[derive(Copy, Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossScale {
    scale: f64,
    /// Good steps since the scale changed.
    good: u32,
    /// Steps in a row that overflowed though the scale was the least.
    lost: u32,
}

/// Gradients are not finite at any scale, so nothing is learned any more. GradScaler would continue
/// for ever.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the gradients of the last {steps} steps overflowed in float16 though the loss was not scaled \
     any more, so none of these steps changed the weights; lower the learning rate, clip the \
     gradients, look for NaN in data and weights, or use bf16"
)]
pub struct Overflowing {
    /// The number of good steps in a row.
    pub steps: u32,
}

const FIRST: f64 = 65_536.0;
/// The number of good steps after which the scale doubles.
const GROWTH_INTERVAL: u32 = 2000;
/// The number of overflows in a row at the smallest scale that is an error. Nothing is learned, and
/// a smaller scale cannot help.
const MOST_OVERFLOWS: u32 = 10;
/// Scales outside these limits do not help: a loss that overflows at 1 is broken, and float32 must
/// hold the product of loss and scale.
const LEAST: f64 = 1.0;
const MOST: f64 = 16_777_216.0;

impl Default for LossScale {
    fn default() -> Self {
        LossScale { scale: FIRST, good: 0, lost: 0 }
    }
}

impl LossScale {
    /// Whether this state can occur. A state that was read from a file may not.
    pub fn is_possible(&self) -> bool {
        (LEAST..=MOST).contains(&self.scale) && self.good < GROWTH_INTERVAL
    }

    /// The factor of the next step's loss.
    pub fn get(&self) -> f64 {
        self.scale
    }

    /// Records whether all gradients of a step were finite, so that it changed the parameters.
    ///
    /// # Errors
    /// Ten steps in a row overflowed at the smallest scale. The scale does not change, so that the
    /// caller may continue.
    pub fn after(&mut self, finite: bool) -> Result<(), Overflowing> {
        if finite {
            let good = self.good + 1;
            *self = match good == GROWTH_INTERVAL {
                true => LossScale { scale: (self.scale * 2.0).min(MOST), good: 0, lost: 0 },
                false => LossScale { good, lost: 0, ..*self },
            };
            return Ok(());
        }
        let lost = if self.scale <= LEAST { self.lost.saturating_add(1) } else { 0 };
        *self = LossScale { scale: (self.scale / 2.0).max(LEAST), good: 0, lost };
        match lost >= MOST_OVERFLOWS {
            true => Err(Overflowing { steps: lost }),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overflow_halves_and_many_good_steps_double() {
        let mut scale = LossScale::default();
        scale.after(false).unwrap();
        assert_eq!(scale.get(), 32_768.0);
        for _ in 0..GROWTH_INTERVAL - 1 {
            scale.after(true).unwrap();
        }
        assert_eq!(scale.get(), 32_768.0, "one good step is missing");
        scale.after(true).unwrap();
        assert_eq!(scale.get(), 65_536.0);
    }

    #[test]
    fn an_overflow_makes_the_count_begin_again() {
        let mut scale = LossScale::default();
        (1..GROWTH_INTERVAL).for_each(|_| scale.after(true).unwrap());
        scale.after(false).unwrap();
        (1..GROWTH_INTERVAL).for_each(|_| scale.after(true).unwrap());
        assert_eq!(scale.get(), 32_768.0);
    }

    #[test]
    fn it_stays_within_bounds_and_a_power_of_two() {
        let mut scale = LossScale::default();
        (0..100).for_each(|_| scale.after(false).unwrap_or(()));
        assert_eq!(scale.get(), LEAST);
        (0..100 * GROWTH_INTERVAL).for_each(|_| scale.after(true).unwrap());
        assert_eq!(scale.get(), MOST);
        assert_eq!(scale.get().log2().fract(), 0.0);
    }

    #[test]
    fn gradients_that_overflow_at_every_scale_end_the_run_with_words() {
        let mut scale = LossScale::default();
        let halvings = FIRST.log2() as u32;
        (0..halvings).for_each(|_| scale.after(false).unwrap());
        assert_eq!(scale.get(), LEAST);
        // A batch that overflows now and then ends nothing.
        for _ in 0..3 {
            (1..MOST_OVERFLOWS).for_each(|_| scale.after(false).unwrap());
            scale.after(true).unwrap();
        }
        (1..MOST_OVERFLOWS).for_each(|_| scale.after(false).unwrap());
        let error = scale.after(false).unwrap_err();
        assert!(
            error.to_string().contains("of the last 10 steps overflowed in float16"),
            "{error}"
        );
        assert_eq!(scale.after(false), Err(Overflowing { steps: 11 }));
        assert_eq!((scale.after(true), scale.get()), (Ok(()), LEAST));
    }
}
