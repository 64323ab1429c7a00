//! How a rotary embedding turns in longer sequences than a model was first trained with, with
//! Hugging Face's names.

use super::arguments::bad;
use super::rules::BadArgument;
use serde::{Deserialize, Serialize};

/// Other angles than those of the base alone; the names in files are those of `rope_type`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum RopeScaling {
    /// `linear`: all angles are divided.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// `dynamic`: the base grows with the sequence, beyond `max_position_embeddings`.
    Dynamic {
        /// How fast it grows.
        factor: f64,
    },
    /// `llama3`: slow angles are divided.
    Llama3(Llama3),
    /// `yarn` (Peng et al. 2023, arXiv:2309.00071): slow angles are divided.
    Yarn(Yarn),
    /// `longrope` (Ding et al. 2024, arXiv:2402.13753): a divisor for each angle.
    LongRope(LongRope),
}

/// The numbers of [`RopeScaling::Llama3`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Llama3 {
    /// The divisor.
    pub factor: f64,
    /// Angles that turn fewer times than this in the original positions are divided.
    pub low_freq_factor: f64,
    /// Angles that turn more often than this stay; those in between are partly divided.
    pub high_freq_factor: f64,
    /// The positions of the first training; None is `max_position_embeddings`.
    pub original_max_position_embeddings: Option<u64>,
}

/// The numbers of [`RopeScaling::Yarn`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Yarn {
    /// The divisor.
    pub factor: f64,
    /// The positions of the first training; None is `max_position_embeddings`.
    pub original_max_position_embeddings: Option<u64>,
    /// The factor of cosines and sines; None comes from `factor`, and the two `mscale`.
    pub attention_factor: Option<f64>,
    /// Angles that turn more often than this in the original positions stay.
    pub beta_fast: f64,
    /// Angles that turn fewer times than this are divided.
    pub beta_slow: f64,
    /// With `mscale_all_dim`: a factor in the numerator of the attention factor; 0 is None.
    pub mscale: Option<f64>,
    /// With `mscale`: a factor in its denominator; 0 is None.
    pub mscale_all_dim: Option<f64>,
    /// Whether the range between fast and slow begins and ends at a whole pair.
    pub truncate: bool,
}

/// The numbers of [`RopeScaling::LongRope`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LongRope {
    /// The divisors of a sequence of at most the original positions.
    pub short_factor: Vec<f64>,
    /// The divisors of a longer one.
    pub long_factor: Vec<f64>,
    /// The positions of the first training; None is `max_position_embeddings`.
    pub original_max_position_embeddings: Option<u64>,
    /// The factor of cosines and sines; None comes from `factor`.
    pub attention_factor: Option<f64>,
    /// How much longer sequences became; None is `max_position_embeddings` by the original
    /// positions.
    pub factor: Option<f64>,
}

/// The arguments of a layer that its scaling must fit.
pub(super) struct Rotation {
    pub(super) head_dim: u64,
    pub(super) base: f64,
    /// The argument that gives the base.
    pub(super) base_name: &'static str,
    pub(super) max_position_embeddings: Option<u64>,
}

impl RopeScaling {
    /// The positions of the first training.
    pub fn original_positions(&self, max_position_embeddings: Option<u64>) -> Option<u64> {
        let own = match self {
            RopeScaling::Linear { .. } | RopeScaling::Dynamic { .. } => None,
            RopeScaling::Llama3(llama3) => llama3.original_max_position_embeddings,
            RopeScaling::Yarn(yarn) => yarn.original_max_position_embeddings,
            RopeScaling::LongRope(longrope) => longrope.original_max_position_embeddings,
        };
        own.or(max_position_embeddings)
    }

    /// Checks that the scaling fits the layer's other arguments.
    pub(super) fn check(&self, rotation: &Rotation) -> Result<(), BadArgument> {
        let original = || {
            self.original_positions(rotation.max_position_embeddings).ok_or_else(|| {
                bad(
                    "rope_scaling",
                    "an `original_max_position_embeddings` in it, or `max_position_embeddings` \
                     beside it",
                )
            })
        };
        match self {
            RopeScaling::Linear { .. } => Ok(()),
            RopeScaling::Dynamic { .. } => rotation.check_dynamic(),
            RopeScaling::Llama3(llama3) => original().and_then(|_| llama3.check()),
            RopeScaling::Yarn(_) => original().and_then(|_| rotation.check_yarn()),
            RopeScaling::LongRope(longrope) => longrope.check(rotation, original()?),
        }
    }
}

impl Rotation {
    fn check_dynamic(&self) -> Result<(), BadArgument> {
        if self.max_position_embeddings.is_none() {
            return Err(bad(
                "max_position_embeddings",
                "a whole number, 1 or more, as `dynamic` scales beyond it",
            ));
        }
        if self.head_dim <= 2 {
            return Err(bad("head_dim", "a number above 2 for `dynamic`"));
        }
        Ok(())
    }

    fn check_yarn(&self) -> Result<(), BadArgument> {
        match self.base > 1.0 {
            true => Ok(()),
            false => Err(bad(self.base_name, "a number above 1 for `yarn`")),
        }
    }
}

impl Llama3 {
    fn check(&self) -> Result<(), BadArgument> {
        match self.high_freq_factor > self.low_freq_factor {
            true => Ok(()),
            false => Err(bad(
                "rope_scaling",
                format!(
                    "a `high_freq_factor` above its `low_freq_factor` ({})",
                    self.low_freq_factor
                ),
            )),
        }
    }
}

impl LongRope {
    fn check(&self, rotation: &Rotation, original: u64) -> Result<(), BadArgument> {
        let pairs = rotation.head_dim / 2;
        for (name, list) in
            [("short_factor", &self.short_factor), ("long_factor", &self.long_factor)]
        {
            if list.len() as u64 != pairs {
                return Err(bad(
                    "rope_scaling",
                    format!(
                        "a `{name}` of {pairs} numbers, one for each pair of a head, and not {}",
                        list.len()
                    ),
                ));
            }
        }
        if self.attention_factor.is_some() {
            return Ok(());
        }
        if self.factor.is_none() && rotation.max_position_embeddings.is_none() {
            return Err(bad(
                "rope_scaling",
                "a `factor` or an `attention_factor` in it, or `max_position_embeddings` beside it",
            ));
        }
        match original > 1 {
            true => Ok(()),
            false => Err(bad("rope_scaling", "original positions above 1 for `longrope`")),
        }
    }
}
