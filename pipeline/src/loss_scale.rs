//! Dynamic loss scaling, as PyTorch's `GradScaler` does it (Micikevicius et al. 2017, arXiv:1710.03740).

/// What the loss is multiplied by so that small gradients are not lost in float16, which has five bits for the exponent.
///
/// A step whose gradients overflow changes no parameter, and the scale is halved; after many good steps it is doubled.
/// Scales are powers of two: multiplying by one changes no digit.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct LossScale {
    scale: f64,
    good: u32,
}

const FIRST: f64 = 65_536.0;
/// As many good steps double the scale.
const GROWTH_INTERVAL: u32 = 2000;
/// Beyond these nothing is gained: a loss that overflows at 1 is broken, and float32 carries the product of loss and scale.
const LEAST: f64 = 1.0;
const MOST: f64 = 16_777_216.0;

impl Default for LossScale {
    fn default() -> Self {
        LossScale { scale: FIRST, good: 0 }
    }
}

impl LossScale {
    /// What the loss of the next step is multiplied by.
    pub fn get(&self) -> f64 {
        self.scale
    }

    /// Whether it cannot become smaller.
    pub fn is_least(&self) -> bool {
        self.scale <= LEAST
    }

    /// After a step: whether all its gradients were finite, which is whether it changed the parameters.
    pub fn after(&mut self, finite: bool) {
        if !finite {
            *self = LossScale { scale: (self.scale / 2.0).max(LEAST), good: 0 };
            return;
        }
        self.good += 1;
        if self.good == GROWTH_INTERVAL {
            *self = LossScale { scale: (self.scale * 2.0).min(MOST), good: 0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overflow_halves_and_many_good_steps_double() {
        let mut scale = LossScale::default();
        scale.after(false);
        assert_eq!(scale.get(), 32_768.0);
        assert!(!scale.is_least());
        for _ in 0..GROWTH_INTERVAL - 1 {
            scale.after(true);
        }
        assert_eq!(scale.get(), 32_768.0, "one good step is missing");
        scale.after(true);
        assert_eq!(scale.get(), 65_536.0);
    }

    #[test]
    fn an_overflow_makes_the_count_begin_again() {
        let mut scale = LossScale::default();
        (1..GROWTH_INTERVAL).for_each(|_| scale.after(true));
        scale.after(false);
        (1..GROWTH_INTERVAL).for_each(|_| scale.after(true));
        assert_eq!(scale.get(), 32_768.0);
    }

    #[test]
    fn it_stays_within_bounds_and_a_power_of_two() {
        let mut scale = LossScale::default();
        (0..100).for_each(|_| scale.after(false));
        assert_eq!(scale.get(), LEAST);
        (0..100 * GROWTH_INTERVAL).for_each(|_| scale.after(true));
        assert_eq!(scale.get(), MOST);
        assert_eq!(scale.get().log2().fract(), 0.0);
    }
}
