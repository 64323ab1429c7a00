//! The rounding of this machine's matrix products.

use std::sync::OnceLock;
use tch::{Device, Kind, Tensor};

/// Outer and inner sizes of products that take different paths in a library: small and odd ones,
/// and whole blocks.
const SIZES: [(i64, i64); 4] = [(17, 3), (17, 16), (64, 32), (96, 200)];

/// Whether `addmm` has the bits of a product and then a sum, for inner dimensions up to 256.
///
/// On Intel's processors, libtorch's library for CPUs adds last. On others, such as AMD's, it
/// starts from the tensor that the product is added to. A trial determines this once. GPUs'
/// libraries add last, too.
pub fn addmm_adds_last(device: Device) -> bool {
    static ON_CPU: OnceLock<bool> = OnceLock::new();
    device != Device::Cpu
        || *ON_CPU.get_or_init(|| SIZES.into_iter().all(|(outer, inner)| adds_last(outer, inner)))
}

fn adds_last(outer: i64, inner: i64) -> bool {
    let numbers = |rows: i64, columns: i64, phase: f64| {
        let all = Tensor::f_arange(rows * columns, (Kind::Float, Device::Cpu))?;
        all.f_mul_scalar(0.7)?.f_add_scalar(phase)?.f_sin()?.f_view([rows, columns])
    };
    let compared = || {
        let (left, right, sum) =
            (numbers(inner, outer, 0.1)?, numbers(inner, outer, 0.2)?, numbers(outer, outer, 0.3)?);
        let left = left.f_tr()?;
        let apart = sum.f_add(&left.f_mm(&right)?)?;
        let mut at_once = sum;
        at_once.f_addmm_(&left, &right)?.f_equal(&apart)
    };
    compared().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Other products show the same.
    #[test]
    fn what_is_found_holds_for_other_sizes() {
        let shown = [(5, 7), (33, 65), (128, 256)]
            .into_iter()
            .all(|(outer, inner)| adds_last(outer, inner));
        println!("products add last: {}", addmm_adds_last(Device::Cpu));
        assert!(shown || !addmm_adds_last(Device::Cpu));
    }
}
