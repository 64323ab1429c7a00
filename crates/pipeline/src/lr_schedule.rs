//! Learning rates that change from step to step, by the names and formulas of PyTorch and
//! transformers.

use serde::{Deserialize, Serialize};
use std::f64::consts::PI;

/// The factor of the optimizer's learning rate in each step.
#[derive(Copy, Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct LrSchedule {
    /// The rise at the beginning.
    pub warmup: Warmup,
    /// The decay after the rise.
    pub decay: LrDecay,
}

/// A linear rise over the first steps, as `torch.optim.lr_scheduler.LinearLR` with an end factor of
/// 1: in step `s` of `steps` the factor is `start_factor + (1 - start_factor) * s / steps`. With a
/// start factor of 0 it is the warm-up of transformers, whose first step changes nothing.
#[derive(Copy, Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Warmup {
    /// Over how many steps; 0 for none.
    pub steps: u64,
    /// The factor of the first step, from 0 to 1.
    pub start_factor: f64,
}

/// The decay of a learning rate after its warm-up. `t` counts steps from the end of the warm-up.
#[derive(Copy, Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub enum LrDecay {
    /// Always 1 (`get_constant_schedule_with_warmup`).
    #[default]
    Constant,
    /// `max(0, 1 - t / (total - warmup))` (`get_linear_schedule_with_warmup`).
    Linear {
        /// All steps, with the warm-up.
        total_steps: u64,
    },
    /// `(1 + cos(pi * t / (total - warmup))) / 2`, and 0 after that
    /// (`get_cosine_schedule_with_warmup`, half a cycle).
    Cosine {
        /// All steps, with the warm-up.
        total_steps: u64,
    },
    /// `1 / sqrt((t + timescale) / timescale)` (`get_inverse_sqrt_schedule`).
    InverseSqrt {
        /// After how many steps the factor is `1 / sqrt(2)`; by default those of the warm-up, or
        /// 10,000 without one.
        timescale: Option<u64>,
    },
    /// `gamma ^ floor(t / step_size)` (`torch.optim.lr_scheduler.StepLR`).
    Step {
        /// The number of steps with the same factor, at least 1.
        step_size: u64,
        /// Its factor then.
        gamma: f64,
    },
}

impl LrSchedule {
    /// The factor of a step. The first step is 0.
    pub fn factor(&self, step: u64) -> f64 {
        let Warmup { steps, start_factor } = self.warmup;
        if step < steps {
            return start_factor + (1.0 - start_factor) * step as f64 / steps as f64;
        }
        let t = step - steps;
        let share = |total: u64| (t as f64 / total.saturating_sub(steps).max(1) as f64).min(1.0);
        match self.decay {
            LrDecay::Constant => 1.0,
            LrDecay::Linear { total_steps } => 1.0 - share(total_steps),
            LrDecay::Cosine { total_steps } => 0.5 * (1.0 + (PI * share(total_steps)).cos()),
            LrDecay::InverseSqrt { timescale } => {
                let default = if steps > 0 { steps } else { 10_000 };
                let timescale = timescale.unwrap_or(default).max(1) as f64;
                1.0 / ((t as f64 + timescale) / timescale).sqrt()
            }
            LrDecay::Step { step_size, gamma } => {
                gamma.powi(i32::try_from(t / step_size.max(1)).unwrap_or(i32::MAX))
            }
        }
    }

    /// Refuses values without a meaning.
    pub fn check(&self) -> Result<(), String> {
        if !(0.0..=1.0).contains(&self.warmup.start_factor) {
            return Err(format!(
                "invalid start_factor: {}; expected 0 to 1",
                self.warmup.start_factor
            ));
        }
        match self.decay {
            LrDecay::Linear { total_steps } | LrDecay::Cosine { total_steps }
                if total_steps <= self.warmup.steps =>
            {
                Err(format!(
                    "invalid total_steps: {total_steps}; expected more than the {} of warm-up",
                    self.warmup.steps
                ))
            }
            LrDecay::InverseSqrt { timescale: Some(0) } => {
                Err("invalid timescale: 0; expected at least 1".into())
            }
            LrDecay::Step { step_size: 0, .. } => {
                Err("invalid step_size: 0; expected at least 1".into())
            }
            LrDecay::Step { gamma, .. } if !gamma.is_finite() || gamma < 0.0 => {
                Err(format!("invalid gamma: {gamma}; expected a number of at least 0"))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In millionths.
    fn factors(warmup: u64, decay: LrDecay, steps: &[u64]) -> Vec<u64> {
        let schedule = LrSchedule { warmup: Warmup { steps: warmup, start_factor: 0.0 }, decay };
        assert_eq!(schedule.check(), Ok(()));
        steps.iter().map(|step| (schedule.factor(*step) * 1e6).round() as u64).collect()
    }

    /// The values are those of transformers 4 and PyTorch 2.
    #[test]
    fn factors_are_those_of_transformers_and_pytorch() {
        const ONE: u64 = 1_000_000;
        let steps = [0, 1, 2, 4, 7, 10, 12];
        assert_eq!(factors(2, LrDecay::Constant, &steps), [0, ONE / 2, ONE, ONE, ONE, ONE, ONE]);
        let linear = LrDecay::Linear { total_steps: 10 };
        assert_eq!(factors(2, linear, &steps), [0, ONE / 2, ONE, 750_000, 375_000, 0, 0]);
        assert_eq!(factors(0, linear, &steps), [ONE, 900_000, 800_000, 600_000, 300_000, 0, 0]);
        let cosine = LrDecay::Cosine { total_steps: 10 };
        assert_eq!(factors(2, cosine, &steps), [0, ONE / 2, ONE, 853_553, 308_658, 0, 0]);
        let sqrt = LrDecay::InverseSqrt { timescale: None };
        assert_eq!(factors(2, sqrt, &steps), [0, ONE / 2, ONE, 707_107, 534_522, 447_214, 408_248]);
        assert_eq!(factors(0, sqrt, &[0, 10_000, 30_000]), [ONE, 707_107, ONE / 2]);
        let step = LrDecay::Step { step_size: 3, gamma: 0.1 };
        assert_eq!(
            factors(0, step, &[0, 2, 3, 5, 6, 9]),
            [ONE, ONE, 100_000, 100_000, 10_000, 1000]
        );
    }

    #[test]
    fn warm_up_may_begin_above_nothing() {
        let schedule =
            LrSchedule { warmup: Warmup { steps: 4, start_factor: 0.5 }, decay: LrDecay::Constant };
        let factors = [0, 1, 2, 3, 4, 5].map(|step| schedule.factor(step));
        assert_eq!(factors, [0.5, 0.625, 0.75, 0.875, 1.0, 1.0]);
    }

    #[test]
    fn what_has_no_meaning_is_refused() {
        let warmup = Warmup { steps: 5, start_factor: 0.0 };
        let bad = [
            LrSchedule { warmup: Warmup { start_factor: 1.5, ..warmup }, decay: LrDecay::Constant },
            LrSchedule { warmup, decay: LrDecay::Cosine { total_steps: 5 } },
            LrSchedule { warmup, decay: LrDecay::InverseSqrt { timescale: Some(0) } },
            LrSchedule { warmup, decay: LrDecay::Step { step_size: 0, gamma: 0.1 } },
            LrSchedule { warmup, decay: LrDecay::Step { step_size: 1, gamma: f64::NAN } },
        ];
        let errors = bad.map(|schedule| schedule.check().expect_err("it has no meaning"));
        assert_eq!(errors[1], "invalid total_steps: 5; expected more than the 5 of warm-up");
        assert!(
            errors
                .iter()
                .all(|error| error.starts_with("invalid ") && error.contains("; expected ")),
            "{errors:?}"
        );
    }
}
