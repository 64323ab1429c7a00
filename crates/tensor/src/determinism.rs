//! The choice between kernels of GPUs that give equal bits every time, and faster ones.

use crate::{ffi, TensorError};

const WORKSPACE: &str = "CUBLAS_WORKSPACE_CONFIG";

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

/// Gives cuBLAS a workspace of a fixed size, unless the environment already names one. Without it
/// products over several streams differ from run to run, and libtorch refuses them with
/// [`Kernels::Deterministic`]. Call it first in `main`: it sets an environment variable, which no
/// other thread may read at that time.
pub fn fix_cublas_workspace() {
    if std::env::var_os(WORKSPACE).is_none() {
        std::env::set_var(WORKSPACE, ":4096:8");
    }
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
