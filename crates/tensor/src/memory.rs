//! Facts about the memory of tensors: references, strides and size.

use crate::{ffi, TensorError};
use std::collections::HashSet;
use std::ffi::c_void;
use tch::{Device, Kind, Tensor};

/// Whether this is the only reference to the tensor and its memory, so that it may be written to.
///
/// False for memory that was made elsewhere ([`crate::payload::from_bytes`]), because its other
/// readers are unknown.
pub fn is_uniquely_owned(tensor: &Tensor) -> bool {
    // SAFETY: the tensor is borrowed for the call.
    unsafe { ffi::bm_is_alone(tensor.as_ptr()) }
}

/// Whether the tensor's strides are those that fresh memory would have: row-major, also where sizes
/// are 1.
pub fn has_canonical_strides(tensor: &Tensor) -> bool {
    // SAFETY: the tensor is borrowed for the call.
    unsafe { ffi::bm_is_plain(tensor.as_ptr()) }
}

/// Whether the tensor is all of its memory, and not a part of a larger one.
pub fn fills_its_memory(tensor: &Tensor) -> bool {
    let (_, bytes) = storage(tensor);
    let size = tensor.f_kind().map_or(0, |kind| kind.elt_size_in_bytes() * tensor.numel());
    bytes == size as u64
}

/// Whether two tensors lie in the same memory. One may be a view of the other.
pub fn share_memory(one: &Tensor, other: &Tensor) -> bool {
    storage(one).0 == storage(other).0
}

/// The place and the bytes of the memory behind a tensor.
fn storage(tensor: &Tensor) -> (*const c_void, u64) {
    let (mut data, mut bytes) = (std::ptr::null(), 0);
    // SAFETY: the tensor is borrowed for the call, and both pointers are to live places.
    unsafe { ffi::bm_storage(tensor.as_ptr(), &mut data, &mut bytes) };
    (data, bytes)
}

/// Counts the bytes of memory that tensors keep. Shared memory counts once.
#[derive(Debug, Default)]
pub struct StorageCounter {
    seen: HashSet<usize>,
    bytes: u64,
}

impl StorageCounter {
    /// Counts all memory behind a tensor, also if the tensor is a view of a part.
    pub fn count(&mut self, tensor: &Tensor) {
        let (data, bytes) = storage(tensor);
        if bytes > 0 && self.seen.insert(data as usize) {
            self.bytes += bytes;
        }
    }

    /// Leaves the memory behind a tensor out of the count.
    pub fn ignore(&mut self, tensor: &Tensor) {
        let counted = self.bytes;
        self.count(tensor);
        self.bytes = counted;
    }

    /// The sum.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// The sums of the squares of a floating-point tensor's elements, in float64 on its device: one
/// for each block of elements, in row-major order. The last block may be shorter. The order of each
/// sum does not depend on the number of threads.
///
/// # Errors
/// The tensor has no floating-point elements, `block` is 0, or the device fails.
pub fn squares_of_blocks(tensor: &Tensor, block: usize) -> Result<Tensor, TensorError> {
    if block == 0 {
        return Err(TensorError::invalid("a gradient's norm", "blocks of 0 elements"));
    }
    if tensor.device() != Device::Cpu {
        return squares_on_device(&tensor.f_detach()?.f_reshape([-1])?, block as i64);
    }
    let mut sums = vec![0.0; tensor.numel().div_ceil(block)];
    // SAFETY: the tensor is borrowed for the call, and there is a place for every sum.
    let status =
        unsafe { ffi::bm_squares_of_blocks(tensor.as_ptr(), block, sums.as_mut_ptr(), sums.len()) };
    ffi::check("a gradient's norm", status)?;
    Ok(Tensor::f_from_slice(&sums)?)
}

/// The same for a tensor of one dimension on a device, which is not copied to the host.
fn squares_on_device(flat: &Tensor, block: i64) -> Result<Tensor, TensorError> {
    /// Bounds the memory of the squares, which have twice the size of float32.
    const BLOCKS_AT_ONCE: i64 = 16 << 10;
    let count = flat.numel() as i64;
    let whole = count / block;
    let mut sums = Vec::new();
    for first in (0..whole).step_by(BLOCKS_AT_ONCE as usize) {
        let blocks = BLOCKS_AT_ONCE.min(whole - first);
        let part = flat.f_narrow(0, first * block, blocks * block)?.f_view([blocks, block])?;
        let squares = part.f_to_kind(Kind::Double)?.f_square()?;
        sums.push(squares.f_sum_dim_intlist(Some(&[1i64][..]), false, None)?);
    }
    if whole * block < count || count == 0 {
        let rest = flat.f_narrow(0, whole * block, count - whole * block)?;
        let sum = rest.f_to_kind(Kind::Double)?.f_square()?.f_sum(None)?;
        sums.push(sum.f_reshape([1])?.f_narrow(0, 0, (count > 0).into())?);
    }
    Ok(Tensor::f_cat(&sums, 0)?)
}

/// Keeps freed memory in the process, because a training step makes and frees thousands of tensors.
/// New pages from the kernel must be filled with zeros and are not in the processor's cache.
///
/// Call it first in `main`. Blocks above 1 GiB (32 MiB if glibc is older than 2.35) still come from
/// the kernel and return to it. Nothing else returns until [`return_freed_memory`], because most
/// steps need as much as the one before. Does nothing if the C library is not glibc.
pub fn keep_freed_memory() {
    const LARGEST_BLOCK: usize = 1 << 30;
    const KEEP: usize = usize::MAX;
    // SAFETY: the arguments are plain numbers. `mallopt` takes the lock of the heap.
    unsafe { ffi::bm_keep_freed_memory(LARGEST_BLOCK, KEEP) };
}

/// The reverse, for a process that is short of memory: free blocks from 4 MiB on return to the
/// kernel, and so does the memory at the heap's end once more than 16 MiB of it are free.
pub fn return_freed_memory() {
    const LARGEST_BLOCK: usize = 4 << 20;
    const KEEP: usize = 16 << 20;
    // SAFETY: as above; `malloc_trim`, too, may be called at any time.
    unsafe { ffi::bm_keep_freed_memory(LARGEST_BLOCK, KEEP) };
}

/// Returns freed blocks from 4 MiB on to the kernel, for a process through which state passes in
/// pieces. Each thread would keep some for itself. Call it first in `main`. Does nothing if the C
/// library is not glibc.
pub fn return_large_blocks() {
    const BLOCK: usize = 4 << 20;
    const KEEP: usize = 16 << 20;
    // SAFETY: as above.
    unsafe { ffi::bm_return_large_blocks(BLOCK, KEEP) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload;
    use tch::{Device, Kind};

    fn numbers() -> Tensor {
        Tensor::zeros([4, 1, 3], (Kind::Float, Device::Cpu))
    }

    #[test]
    fn a_tensor_is_alone_until_somebody_else_refers_to_it_or_its_memory() {
        let tensor = numbers();
        assert!(is_uniquely_owned(&tensor));
        let clone = tensor.shallow_clone();
        assert!(!is_uniquely_owned(&tensor) && !is_uniquely_owned(&clone));
        drop(clone);
        assert!(is_uniquely_owned(&tensor));
        let view = tensor.select(0, 1);
        assert!(!is_uniquely_owned(&tensor) && !is_uniquely_owned(&view));
        drop(view);
        let bytes = payload::to_bytes(&tensor).unwrap();
        assert!(!is_uniquely_owned(&tensor));
        drop(bytes);
        assert!(is_uniquely_owned(&tensor));
    }

    #[test]
    fn foreign_memory_is_never_alone() {
        let bytes = payload::to_bytes(&numbers()).unwrap();
        let tensor = payload::from_bytes(layerspec::DType::Float32, &[12], bytes).unwrap();
        assert!(!is_uniquely_owned(&tensor));
    }

    #[test]
    fn fresh_memory_is_plain_and_other_strides_are_not() {
        let tensor = numbers();
        assert!(has_canonical_strides(&tensor) && has_canonical_strides(&Tensor::from(1.0f32)));
        assert!(!has_canonical_strides(&tensor.transpose(0, 2)));
        assert!(!has_canonical_strides(&tensor.transpose(0, 1)), "sizes of 1 count");
        assert!(has_canonical_strides(&Tensor::zeros([2, 0, 3], (Kind::Float, Device::Cpu))));
    }

    #[test]
    fn squares_are_summed_in_double_precision_whatever_the_layout() {
        let tensor = Tensor::arange(1001, (Kind::Float, Device::Cpu)) / 7.0;
        let expected = (tensor.to_kind(Kind::Double).square()).sum(Kind::Double).double_value(&[]);
        let squares_of_blocks = |tensor: &Tensor, block| {
            let sums = squares_of_blocks(tensor, block)?;
            Ok::<_, TensorError>(Vec::<f64>::try_from(sums).unwrap())
        };
        let sums = squares_of_blocks(&tensor, 256).unwrap();
        let on_device = squares_on_device(&tensor, 256).unwrap();
        assert!((on_device - Tensor::from_slice(&sums)).abs().max().double_value(&[]) < 1e-9);
        assert_eq!(sums.len(), 4);
        assert!((sums.iter().sum::<f64>() / expected - 1.0).abs() < 1e-14);
        let otherwise = tensor.reshape([7, 143]).transpose(0, 1).contiguous().transpose(0, 1);
        assert_eq!(squares_of_blocks(&otherwise, 256).unwrap(), sums);
        assert_eq!(
            squares_of_blocks(&tensor.narrow(0, 512, 489), 256).unwrap(),
            sums[2..],
            "a part that begins with a block"
        );
        assert!(squares_of_blocks(&Tensor::zeros([0], (Kind::Float, Device::Cpu)), 256)
            .unwrap()
            .is_empty());
        assert!(squares_of_blocks(&Tensor::from(1i64), 256).is_err());
        assert!(squares_of_blocks(&tensor, 0).is_err());
    }

    #[test]
    fn shared_memory_counts_once() {
        let tensor = numbers();
        let mut held = StorageCounter::default();
        for tensor in [&tensor, &tensor.select(0, 2), &numbers()] {
            held.count(tensor);
        }
        assert_eq!(held.bytes(), 2 * 48);
    }
}
