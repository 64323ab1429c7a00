//! Draws the next token from a model's logits.

use crate::BossManError;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tch::{Kind, Tensor};
use tensor::TensorError;

/// The settings by which the next token is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// The divisor of the logits. 0 takes the likeliest token.
    pub temperature: f64,
    /// The number of likeliest tokens to draw from. `None` is all.
    pub top_k: Option<u32>,
    /// Draws from the likeliest tokens that together have this probability (nucleus sampling,
    /// Holtzman et al. 2019, arXiv:1904.09751). 1 is all.
    pub top_p: f64,
    /// The source of random numbers.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling { temperature: 1.0, top_k: None, top_p: 1.0, seed: 0 }
    }
}

impl Sampling {
    /// A sampler with these settings.
    pub(crate) fn sampler(self) -> Sampler {
        Sampler { sampling: self, random: ChaCha8Rng::seed_from_u64(self.seed) }
    }

    /// # Errors
    /// A number that is out of its range.
    pub(crate) fn check(&self) -> Result<(), BossManError> {
        let wrong = |problem: String| Err(BossManError::Usage(problem));
        if !(self.temperature >= 0.0 && self.temperature.is_finite()) {
            return wrong(format!("a temperature of {}: expected 0 or more", self.temperature));
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return wrong(format!(
                "a top_p of {}: expected more than 0, and 1 at most",
                self.top_p
            ));
        }
        if self.top_k == Some(0) {
            return wrong("a top_k of 0: expected 1 or more".into());
        }
        Ok(())
    }
}

pub(crate) struct Sampler {
    sampling: Sampling,
    random: ChaCha8Rng,
}

impl Sampler {
    /// Draws a token from the logits `[vocabulary]`.
    pub(crate) fn draw(&mut self, logits: &Tensor) -> Result<u32, TensorError> {
        let logits = logits.f_to_kind(Kind::Double)?;
        let Sampling { temperature, top_k, top_p, .. } = self.sampling;
        let vocabulary = logits.size().first().copied().unwrap_or(0);
        let most = top_k.map_or(vocabulary, |most| i64::from(most).min(vocabulary));
        let kept = if temperature > 0.0 { most } else { 1 };
        // The likeliest tokens come first, so that the draw does not depend on the vocabulary's
        // order.
        let (logits, tokens) = logits.f_topk(kept, 0, true, true)?;
        // The largest logit is subtracted first, so that a low temperature makes no infinity.
        let scaled = logits.f_sub(&logits.f_max()?)?.f_div_scalar(if temperature > 0.0 {
            temperature
        } else {
            1.0
        })?;
        let probabilities: Vec<f64> = numbers(&scaled.f_softmax(0, None::<Kind>)?)?;
        let (mut nucleus, mut total) = (Vec::new(), 0.0);
        for probability in probabilities {
            if total >= top_p {
                break;
            }
            nucleus.push(probability);
            total += probability;
        }
        if total.is_nan() || nucleus.is_empty() {
            return Err(non_finite_logits());
        }
        let mut drawn = self.random.random::<f64>() * total;
        let place = nucleus.iter().position(|probability| {
            drawn -= probability;
            drawn < 0.0
        });
        let token = tokens.f_int64_value(&[place.unwrap_or(0) as i64])?;
        u32::try_from(token)
            .map_err(|_| TensorError::invalid("the model", format!("gave the token {token}")))
    }
}

/// The error about logits that are NaN or infinite.
pub(crate) fn non_finite_logits() -> TensorError {
    let problem = "gave logits that are no numbers: its weights hold NaN, or have grown too large \
                   in training; take earlier ones";
    TensorError::invalid("the model", problem)
}

fn numbers(tensor: &Tensor) -> Result<Vec<f64>, TensorError> {
    Vec::try_from(tensor.f_contiguous()?).map_err(TensorError::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(sampling: Sampling) -> Vec<u32> {
        let logits = Tensor::from_slice(&[1.0f32, 4.0, 3.0, 0.0]);
        let mut sampler = sampling.sampler();
        (0..400).map(|_| sampler.draw(&logits).unwrap()).collect()
    }

    #[test]
    fn tokens_are_drawn_by_their_probability() {
        let share = |tokens: &[u32], token| {
            tokens.iter().filter(|t| **t == token).count() as f64 / tokens.len() as f64
        };
        let all = drawn(Sampling::default());
        // softmax: 0.035, 0.696, 0.256 and 0.013
        assert!((share(&all, 1) - 0.696).abs() < 0.08 && (share(&all, 2) - 0.256).abs() < 0.08);
        assert_eq!(
            drawn(Sampling { seed: 5, ..Sampling::default() }),
            drawn(Sampling { seed: 5, ..Sampling::default() })
        );
        assert_ne!(all, drawn(Sampling { seed: 5, ..Sampling::default() }));
        assert!(drawn(Sampling { temperature: 0.0, ..Sampling::default() })
            .iter()
            .all(|token| *token == 1));
        let two = drawn(Sampling { top_k: Some(2), ..Sampling::default() });
        assert!(two.iter().all(|token| [1, 2].contains(token)) && two.contains(&2));
        let nucleus = drawn(Sampling { top_p: 0.6, ..Sampling::default() });
        assert!(nucleus.iter().all(|token| *token == 1));
    }

    #[test]
    fn what_is_out_of_range_is_refused() {
        let refused = |sampling: Sampling| sampling.check().unwrap_err().to_string();
        assert!(refused(Sampling { temperature: f64::NAN, ..Sampling::default() })
            .contains("temperature"));
        assert!(refused(Sampling { top_p: 0.0, ..Sampling::default() }).contains("top_p"));
        assert!(refused(Sampling { top_k: Some(0), ..Sampling::default() }).contains("top_k"));
    }

    #[test]
    fn logits_that_are_no_numbers_are_an_error_and_those_of_what_must_not_come_are_none() {
        let ways = [
            Sampling::default(),
            Sampling { temperature: 0.0, ..Sampling::default() },
            Sampling { top_k: Some(1), ..Sampling::default() },
            Sampling { top_p: 0.1, ..Sampling::default() },
        ];
        let (nan, more, less) = (f32::NAN, f32::INFINITY, f32::NEG_INFINITY);
        for sampling in ways {
            let draw = |logits: &[f32]| sampling.sampler().draw(&Tensor::from_slice(logits));
            for logits in [[1.0, nan, 2.0], [nan; 3], [1.0, more, 2.0], [less; 3]] {
                let error = draw(&logits).unwrap_err().to_string();
                assert!(
                    error.starts_with("the model: gave logits that are no numbers"),
                    "{sampling:?} {logits:?}: {error}"
                );
            }
            assert_eq!(draw(&[less, 5.0, less]).unwrap(), 1, "{sampling:?}");
            assert!(draw(&[]).is_err());
        }
        let cold = Sampling { temperature: 1e-320, ..Sampling::default() };
        assert_eq!(cold.sampler().draw(&Tensor::from_slice(&[1.0f32, 3.0, 2.0])).unwrap(), 1);
    }
}
