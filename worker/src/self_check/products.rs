//! Measures how fast the device multiplies matrices, which is the most that a model can reach.

use crate::self_check::report::{Findings, Problem};
use std::time::Instant;
use tch::{Device, Kind, Tensor};
use tensor::{Attempt, TensorError};

/// The sides of the matrices: they double until a product takes long enough to be timed.
const FIRST_SIDE: i64 = 256;
const LAST_SIDE: i64 = 8192;
const LONG_ENOUGH: f64 = 0.02;
/// Products for a median.
const REPETITIONS: usize = 5;

/// Multiplies square matrices in float32 and in bfloat16.
///
/// # Errors
/// The device fails.
pub(crate) fn check(device: Device) -> Result<Findings, Problem> {
    let single = rate(device, Kind::Float)?;
    let brain = rate(device, Kind::BFloat16)?;
    Ok(Findings::new(format!("float32 {single:.2} TFLOP/s, bfloat16 {brain:.2}"))
        .figure("float32_tflop_s", single)
        .figure("bfloat16_tflop_s", brain))
}

/// Floating-point operations in a second, times 10^12.
fn rate(device: Device, kind: Kind) -> Result<f64, TensorError> {
    let mut side = FIRST_SIDE;
    loop {
        let matrix = Tensor::f_ones([side, side], (kind, device)).attempt("a matrix")?;
        let seconds = seconds(device, &matrix)?;
        if seconds > LONG_ENOUGH || side >= LAST_SIDE {
            // Each element of the product is a sum of `side` products.
            return Ok(2.0 * (side as f64).powi(3) / seconds / 1e12);
        }
        side *= 2;
    }
}

/// The median time of a product.
fn seconds(device: Device, matrix: &Tensor) -> Result<f64, TensorError> {
    let mut all = Vec::new();
    // The first product sets up the library.
    for _ in 0..=REPETITIONS {
        tensor::device::synchronize(device)?;
        let begin = Instant::now();
        let _product = matrix.f_matmul(matrix).attempt("a product")?;
        tensor::device::synchronize(device)?;
        all.push(begin.elapsed().as_secs_f64());
    }
    all.remove(0);
    all.sort_by(f64::total_cmp);
    // A clock may be too coarse.
    Ok(all[all.len() / 2].max(1e-9))
}
