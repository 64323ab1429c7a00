//! One memory layout for all tensors between layers.

use tch::{Device, Tensor};
use tensor::{memory, TensorError};

/// The tensor in row-major order with the strides of fresh memory. No copy if it already has them.
///
/// A tensor that crosses a cut arrives with these strides, so other tensors must have them, too.
/// libtorch picks kernels by strides, and other kernels give other bits. A dimension of size 1 may
/// have any stride and still count as contiguous. Such strides are corrected, too.
pub(crate) fn canonical_layout(tensor: Tensor) -> Result<Tensor, TensorError> {
    if memory::has_canonical_strides(&tensor) {
        return Ok(tensor);
    }
    let tensor = tensor.f_contiguous()?;
    if memory::has_canonical_strides(&tensor) {
        return Ok(tensor);
    }
    let size = tensor.size();
    Ok(tensor.f_view([-1])?.f_view(&size[..])?)
}

/// A copy in memory of its own, without a graph.
pub(crate) fn deep_copy(tensor: &Tensor) -> Result<Tensor, TensorError> {
    let source = tensor.f_detach()?;
    let mut copy = source.f_empty_like()?;
    copy.f_copy_(&source)?;
    Ok(copy)
}

/// A copy in memory of the host, without a graph. It takes no memory of the device.
pub(crate) fn host_copy(tensor: &Tensor) -> Result<Tensor, TensorError> {
    match tensor.device() {
        Device::Cpu => deep_copy(tensor),
        _ => Ok(tensor.f_detach()?.f_to_device(Device::Cpu)?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::Kind;

    fn numbers(size: &[i64]) -> Tensor {
        Tensor::arange(size.iter().product::<i64>(), (Kind::Float, Device::Cpu)).reshape(size)
    }

    #[test]
    fn any_layout_becomes_the_layout_of_fresh_memory() {
        let transposed = numbers(&[3, 4]).transpose(0, 1);
        let of_size_one = numbers(&[3, 1, 4]).transpose(0, 1);
        let expanded = numbers(&[1, 4]).expand([3, 4], false);
        let empty = numbers(&[3, 0, 2]).transpose(0, 2);
        for tensor in [transposed, of_size_one, expanded, empty, Tensor::from(1.0f32)] {
            let fresh = Tensor::empty(tensor.size(), (Kind::Float, Device::Cpu));
            let canonical = canonical_layout(tensor.shallow_clone()).unwrap();
            assert_eq!(canonical.stride(), fresh.stride());
            assert!(canonical.equal(&tensor));
        }
    }

    #[test]
    fn a_plain_tensor_is_not_copied() {
        let tensor = numbers(&[3, 4]);
        assert_eq!(canonical_layout(tensor.shallow_clone()).unwrap().data_ptr(), tensor.data_ptr());
        let of_size_one = numbers(&[3, 1, 4]).transpose(0, 1);
        assert_eq!(
            canonical_layout(of_size_one.shallow_clone()).unwrap().data_ptr(),
            of_size_one.data_ptr()
        );
    }
}
