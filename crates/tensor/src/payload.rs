//! Converts tensors to bytes and back, without needless copies.
//!
//! Bytes are the elements in row-major order, little-endian. Tensor and bytes share memory if
//! possible, so neither may be written to while the other lives. An in-place operation on a shared
//! tensor would change bytes that are in flight.

use crate::{dtype_of, ffi, kind_of, TensorError};
use bytes::Bytes;
use layerspec::DType;
use std::ffi::c_void;
use tch::{Device, Kind, Tensor};

/// The elements of a tensor.
///
/// No copy for a contiguous tensor in host memory: the bytes keep it alive. A tensor on a GPU, or
/// with strides, is copied once.
pub fn to_bytes(tensor: &Tensor) -> Result<Bytes, TensorError> {
    let dtype = dtype_of(tensor)?;
    if tensor.is_sparse() || tensor.is_mkldnn() {
        return Err(TensorError::UnsupportedKind("sparse or MKL-DNN".into()));
    }
    // Both are the tensor itself if there is nothing to do.
    let tensor = tensor.f_detach()?.f_to_device(Device::Cpu)?.f_contiguous()?;
    let length = tensor.numel() * dtype.size_bytes() as usize;
    if length == 0 {
        return Ok(Bytes::new());
    }
    Ok(Bytes::from_owner(Elements { data: tensor.data_ptr().cast(), length, _tensor: tensor }))
}

/// Host memory of a tensor, with the tensor that keeps it.
struct Elements {
    data: *const u8,
    length: usize,
    _tensor: Tensor,
}

// SAFETY: the pointer is into memory that the tensor beside it keeps; a tensor may move between
// threads.
unsafe impl Send for Elements {}

impl AsRef<[u8]> for Elements {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `data` points to `length` bytes of a contiguous host tensor that lives as long as
        // `self`; by this module's contract it is not written to during that time.
        unsafe { std::slice::from_raw_parts(self.data, self.length) }
    }
}

/// Makes a host tensor of `bytes`, whose number must be that of dtype and shape.
///
/// No copy if the bytes are aligned for the dtype: the tensor keeps them alive. Write to the
/// tensor in place only after copying it. Booleans must be 0 or 1.
pub fn from_bytes(dtype: DType, shape: &[i64], bytes: Bytes) -> Result<Tensor, TensorError> {
    let expected = byte_count(dtype, shape);
    if expected != u64::try_from(bytes.len()).ok() {
        return Err(TensorError::WrongSize {
            dtype,
            shape: shape.into(),
            expected,
            got: bytes.len() as u64,
        });
    }
    if dtype == DType::Bool && bytes.iter().any(|&byte| byte > 1) {
        return Err(TensorError::invalid("reading a bool tensor", "a byte is neither 0 nor 1"));
    }
    let kind = kind_of(dtype);
    if bytes.is_empty() {
        return Ok(Tensor::f_empty(shape, (kind, Device::Cpu))?);
    }
    if !(bytes.as_ptr() as usize).is_multiple_of(dtype.size_bytes() as usize) {
        return Ok(Tensor::f_from_data_size(&bytes, shape, kind)?);
    }
    share(kind, shape, bytes)
}

/// The bytes of a tensor; `None` if a dimension is negative or the product overflows.
fn byte_count(dtype: DType, shape: &[i64]) -> Option<u64> {
    shape
        .iter()
        .try_fold(dtype.size_bytes(), |product, &dim| product.checked_mul(u64::try_from(dim).ok()?))
}

fn share(kind: Kind, shape: &[i64], bytes: Bytes) -> Result<Tensor, TensorError> {
    extern "C" fn drop_bytes(owner: *mut c_void) {
        // SAFETY: `owner` came from `Box::into_raw` of a `Bytes`, and libtorch calls its deleter
        // once.
        drop(unsafe { Box::from_raw(owner.cast::<Bytes>()) });
    }
    let data = bytes.as_ptr().cast_mut().cast();
    let owner = Box::into_raw(Box::new(bytes)).cast();
    let mut tensor = std::ptr::null_mut();
    // SAFETY: `data` is aligned for `kind` and holds exactly the elements of `shape` (checked by
    // the caller); it does not move until `drop_bytes` runs. If libtorch throws, it may or may not
    // have run the deleter, so the bytes leak rather than being freed twice.
    let status = unsafe {
        ffi::bm_from_blob(
            data,
            shape.as_ptr(),
            shape.len(),
            scalar_type(kind),
            drop_bytes,
            owner,
            &mut tensor,
        )
    };
    ffi::check("making a tensor of bytes", status)?;
    // SAFETY: on success `tensor` is a new C++ tensor that is ours.
    Ok(unsafe { Tensor::from_ptr(tensor) })
}

/// c10's number for a kind, as in `c10/core/ScalarType.h`.
const fn scalar_type(kind: Kind) -> i8 {
    match kind {
        Kind::Uint8 => 0,
        Kind::Int => 3,
        Kind::Int64 => 4,
        Kind::Half => 5,
        Kind::Float => 6,
        Kind::Double => 7,
        Kind::Bool => 11,
        Kind::BFloat16 => 15,
        _ => -1,
    }
}

#[cfg(test)]
#[path = "payload_tests.rs"]
mod tests;
