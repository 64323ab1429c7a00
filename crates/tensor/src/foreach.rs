//! One operation on each of many tensors, in place: PyTorch's `torch._foreach_*` functions. A GPU
//! takes a few launches for all of them, a CPU works on one after the other.

use crate::{ffi, TensorError};
use tch::Tensor;

/// Multiplies each tensor by a factor.
///
/// # Errors
/// libtorch fails, or a tensor cannot be changed in place.
pub fn multiply(tensors: &[&Tensor], factor: f64) -> Result<(), TensorError> {
    if tensors.is_empty() {
        return Ok(());
    }
    let list = ffi::pointers(tensors);
    // SAFETY: the list is as long as said, and its tensors are borrowed for the call.
    let status = unsafe { ffi::bm_multiply_each(list.as_ptr(), tensors.len(), factor) };
    ffi::check("a multiplication", status)
}

/// Adds a number to each tensor.
///
/// # Errors
/// As for [`multiply`].
pub fn add(tensors: &[&Tensor], number: f64) -> Result<(), TensorError> {
    if tensors.is_empty() {
        return Ok(());
    }
    let list = ffi::pointers(tensors);
    // SAFETY: the list is as long as said, and its tensors are borrowed for the call.
    let status = unsafe { ffi::bm_add_to_each(list.as_ptr(), tensors.len(), number) };
    ffi::check("an addition", status)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::{Device, Kind};

    #[test]
    fn each_tensor_has_the_bits_of_an_operation_of_its_own() {
        let numbers = |size: i64| {
            (Tensor::arange(size, (Kind::Float, Device::Cpu)) * 0.37).sin().reshape([size])
        };
        let each = [numbers(1), numbers(7), numbers(1000), Tensor::from(3.0f32)];
        let alone: Vec<Tensor> = each.iter().map(|tensor| tensor * 0.1 + 1.0).collect();
        let all: Vec<&Tensor> = each.iter().collect();
        multiply(&all, 0.1).unwrap();
        add(&all, 1.0).unwrap();
        assert!(each.iter().zip(&alone).all(|(one, other)| one.equal(other)));
        multiply(&[], 2.0).unwrap();
        add(&[], 2.0).unwrap();
    }

    #[test]
    fn a_tensor_that_cannot_hold_the_result_is_an_error() {
        let integers = Tensor::zeros([3], (Kind::Int64, Device::Cpu));
        assert!(multiply(&[&integers], 0.5).is_err());
    }
}
