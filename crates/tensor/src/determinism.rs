//! The choice between kernels of GPUs that give equal bits every time, and faster ones.
//!
//! libtorch 2.11 gives cuBLAS a workspace for each stream, which is enough for equal bits. So
//! nobody sets `CUBLAS_WORKSPACE_CONFIG`: with it cuBLAS 13.1 looks for the best kernel in every
//! call, and a product takes the host 118 µs instead of 15 (measured on an H100).

use crate::{ffi, TensorError};

/// The kernels that GPUs use. CPUs have one of each kind.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Kernels {
    /// Those that give equal bits every time, without TF32. An operation that has none fails.
    Deterministic,
    /// The fastest without TF32. Their results may differ in the last bits from run to run.
    FullPrecision,
    /// The fastest, with TF32.
    Fastest,
}

/// Makes all threads of this process use these kernels from now on.
///
/// # Errors
/// libtorch refuses the choice.
pub fn choose_kernels(kernels: Kernels) -> Result<(), TensorError> {
    let deterministic = i32::from(kernels == Kernels::Deterministic);
    let tf32 = i32::from(kernels == Kernels::Fastest);
    // SAFETY: the arguments are plain numbers.
    ffi::check("choosing the kernels", unsafe { ffi::bm_choose_kernels(deterministic, tf32) })
}

/// Whether this process must use deterministic kernels.
///
/// # Errors
/// libtorch does not say.
pub fn must_be_deterministic() -> Result<bool, TensorError> {
    let mut they_are = 0;
    // SAFETY: the number is written to while it is borrowed.
    let status = unsafe { ffi::bm_kernels_are_deterministic(&mut they_are) };
    ffi::check("asking for the kernels", status)?;
    Ok(they_are != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_choice_changes_no_result_of_a_cpu() {
        let numbers = tch::Tensor::arange(64, (tch::Kind::Float, tch::Device::Cpu)).sin();
        let numbers = numbers.reshape([8, 8]);
        let all = [Kernels::Deterministic, Kernels::FullPrecision, Kernels::Fastest];
        let products = all.map(|kernels| {
            choose_kernels(kernels).unwrap();
            let is_first = kernels == Kernels::Deterministic;
            assert_eq!(must_be_deterministic().unwrap(), is_first);
            numbers.matmul(&numbers)
        });
        assert!(products[0].equal(&products[1]) && products[0].equal(&products[2]));
    }
}
