//! How fast the pairs of a rotary embedding turn. The operations in float32 and their order are
//! those of transformers' `modeling_rope_utils`, so that the angles of late positions are equal.

use crate::engine::error::layer_error;
use crate::engine::sizes::size;
use layerspec::layers::{Llama3, LongRope, RopeScaling, RotaryEmbedding, Yarn};
use std::f64::consts::TAU;
use tch::{Device, Kind, Tensor};
use tensor::transfer::to_device;
use tensor::TensorError;

/// The turning of a sequence.
pub(crate) struct RopeFrequencies {
    /// Each pair's angle from one position to the next.
    pub(crate) inverse: Tensor,
    /// The factor of cosines and sines, if they have one.
    pub(crate) attention_factor: Option<f64>,
}

/// The turning of a sequence of so many positions, earlier ones included.
pub(crate) fn rope_frequencies(
    layer: &RotaryEmbedding,
    positions: i64,
    device: Device,
) -> Result<RopeFrequencies, TensorError> {
    let head = size(layer.head_dim)?;
    let exponents =
        Tensor::f_arange_start_step(0, head, 2, (Kind::Float, device))?.f_div_scalar(head)?;
    let powers = Tensor::f_pow_scalar(layer.base, &exponents)?;
    let Some(scaling) = &layer.rope_scaling else {
        return Ok(RopeFrequencies { inverse: powers.f_reciprocal()?, attention_factor: None });
    };
    let original = || {
        let original = scaling.original_positions(layer.max_position_embeddings);
        original.map(|positions| positions as f64).ok_or_else(|| {
            layer_error("`rope_scaling` needs the number of positions that it starts from")
        })
    };
    let positions = positions as f64;
    let (inverse, attention_factor) = match scaling {
        RopeScaling::Linear { factor } => (powers.f_reciprocal()?.f_div_scalar(*factor)?, None),
        RopeScaling::Dynamic { factor } => {
            (dynamic(layer, *factor, [positions, original()?], &exponents)?.f_reciprocal()?, None)
        }
        RopeScaling::Llama3(llama3) => (divided(llama3, original()?, &powers)?, None),
        RopeScaling::Yarn(yarn) => {
            (interpolated(yarn, layer, original()?, &powers)?, Some(yarn_attention_factor(yarn)))
        }
        RopeScaling::LongRope(longrope) => {
            let most = layer.max_position_embeddings.map(|most| most as f64);
            let factor = longrope_attention_factor(longrope, original()?, most);
            (stretched(longrope, [positions, original()?], &powers)?, Some(factor))
        }
    };
    Ok(RopeFrequencies { inverse, attention_factor })
}

/// The powers of a base that grows with the sequence.
fn dynamic(
    layer: &RotaryEmbedding,
    factor: f64,
    [positions, most]: [f64; 2],
    exponents: &Tensor,
) -> Result<Tensor, TensorError> {
    let head = layer.head_dim as f64;
    let exponent = head / (head - 2.0);
    if positions <= most {
        let stretch = factor * most / most - (factor - 1.0);
        return Ok(Tensor::f_pow_scalar(layer.base * stretch.powf(exponent), exponents)?);
    }
    // There the length is a tensor, and with it the base.
    let base = Tensor::f_scalar_tensor(positions, (Kind::Float, exponents.device()))?
        .f_mul_scalar(factor)?
        .f_div_scalar(most)?
        .f_sub_scalar(factor - 1.0)?
        .f_pow_tensor_scalar(exponent)?
        .f_mul_scalar(layer.base)?;
    Ok(base.f_pow(exponents)?)
}

/// Slow angles divided, those in between partly.
fn divided(scaling: &Llama3, original: f64, powers: &Tensor) -> Result<Tensor, TensorError> {
    let [low, high] = [scaling.low_freq_factor, scaling.high_freq_factor];
    let inverse = powers.f_reciprocal()?;
    let lengths = inverse.f_reciprocal()?.f_mul_scalar(TAU)?;
    let (long, short) = (lengths.f_gt(original / low)?, lengths.f_lt(original / high)?);
    let ends = inverse.f_div_scalar(scaling.factor)?.f_where_self(&long, &inverse)?;
    let smooth = lengths
        .f_reciprocal()?
        .f_mul_scalar(original)?
        .f_sub_scalar(low)?
        .f_div_scalar(high - low)?;
    let between = smooth
        .f_rsub_scalar(1.0)?
        .f_mul(&ends)?
        .f_div_scalar(scaling.factor)?
        .f_add(&smooth.f_mul(&ends)?)?;
    Ok(between.f_where_self(&long.f_logical_or(&short)?.f_logical_not()?, &ends)?)
}

/// A mixture of the angles and of the divided ones, with shares that fall along a ramp.
fn interpolated(
    scaling: &Yarn,
    layer: &RotaryEmbedding,
    original: f64,
    powers: &Tensor,
) -> Result<Tensor, TensorError> {
    let head = layer.head_dim as f64;
    let pair = |turns: f64| head * (original / (turns * TAU)).ln() / (2.0 * layer.base.ln());
    let (low, high) = (pair(scaling.beta_fast), pair(scaling.beta_slow));
    let (low, high) = if scaling.truncate { (low.floor(), high.ceil()) } else { (low, high) };
    let (low, high) = (low.max(0.0), high.min(head - 1.0));
    // A ramp has a length.
    let high = if low == high { high + 0.001 } else { high };
    let pairs = Tensor::f_arange(size(layer.head_dim / 2)?, (Kind::Float, powers.device()))?;
    let ramp = pairs.f_sub_scalar(low)?.f_div_scalar(high - low)?.f_clamp(0.0, 1.0)?;
    let kept = ramp.f_rsub_scalar(1.0)?;
    let divided = powers.f_mul_scalar(scaling.factor)?.f_reciprocal()?;
    let sum =
        divided.f_mul(&kept.f_rsub_scalar(1.0)?)?.f_add(&powers.f_reciprocal()?.f_mul(&kept)?)?;
    Ok(sum)
}

fn yarn_attention_factor(scaling: &Yarn) -> f64 {
    let by = |scale: f64| match scaling.factor > 1.0 {
        true => 0.1 * scale * scaling.factor.ln() + 1.0,
        false => 1.0,
    };
    let given = |scale: Option<f64>| scale.filter(|scale| *scale != 0.0);
    scaling.attention_factor.unwrap_or_else(|| {
        match (given(scaling.mscale), given(scaling.mscale_all_dim)) {
            (Some(above), Some(below)) => by(above) / by(below),
            _ => by(1.0),
        }
    })
}

/// Each angle divided by a number of its own.
fn stretched(
    scaling: &LongRope,
    [positions, original]: [f64; 2],
    powers: &Tensor,
) -> Result<Tensor, TensorError> {
    let is_long = positions > original;
    let factors = if is_long { &scaling.long_factor } else { &scaling.short_factor };
    let factors: Vec<f32> = factors.iter().map(|factor| *factor as f32).collect();
    let factors = to_device(&Tensor::f_from_slice(&factors)?, powers.device())?;
    Ok(factors.f_mul(powers)?.f_reciprocal()?)
}

fn longrope_attention_factor(scaling: &LongRope, original: f64, most: Option<f64>) -> f64 {
    let factor = scaling.factor.or(most.map(|most| most / original)).unwrap_or(1.0);
    scaling.attention_factor.unwrap_or_else(|| match factor > 1.0 {
        true => (1.0 + factor.ln() / original.ln()).sqrt(),
        false => 1.0,
    })
}
