//! Elements of the state in the memory of live tensors: copies of them, and hashes.

use crate::compute::failures::tensor_failure;
use bytes::Bytes;
use pipeline::message::{Failure, FailureKind};
use pipeline::{TensorHasher, TensorMeta, SLICE_BYTES};
use std::sync::Arc;
use tch::Tensor;
use tensor::transfer::{download, Event};
use tensor::{payload, TensorError};

/// Flat elements of a live tensor. They must not change during a call.
pub(super) struct LiveElements {
    pub(super) elements: Tensor,
    /// The point in the device's work from which on they are there. `None` in host memory.
    pub(super) ready: Option<Arc<Event>>,
}

impl LiveElements {
    /// A copy: of those of a GPU, in pinned memory.
    pub(super) fn copy_to_send(&self) -> Result<Bytes, Failure> {
        match &self.ready {
            Some(ready) => {
                let host = download(&self.elements, ready);
                host.and_then(|host| payload::to_bytes(&host)).map_err(tensor_failure)
            }
            // These bytes may share the tensor's memory, so they must not leave this function.
            None => {
                let shared = payload::to_bytes(&self.elements).map_err(tensor_failure)?;
                in_memory_of_its_own(&shared)
            }
        }
    }

    /// A copy that may stay for long. Pinned memory is not for a whole state: libtorch keeps it for
    /// ever.
    pub(super) fn copy_to_keep(&self) -> Result<Bytes, Failure> {
        let copy = self.copy_to_send()?;
        match &self.ready {
            Some(_) => in_memory_of_its_own(&copy),
            None => Ok(copy),
        }
    }

    /// The [hash](pipeline::hash_tensor) of the tensor of this meta whose elements these are.
    pub(super) fn hash(&self, whole: &TensorMeta) -> Result<[u8; 32], Failure> {
        self.hash_in_parts(whole, SLICE_BYTES).map_err(tensor_failure)
    }

    /// Hashes at most this number of bytes at a time, so that no large pinned buffer is taken.
    fn hash_in_parts(&self, whole: &TensorMeta, most: u64) -> Result<[u8; 32], TensorError> {
        let mut hash = TensorHasher::new(whole);
        let all = self.elements.numel();
        let step = (most / whole.dtype.size_bytes()).max(1) as usize;
        for start in (0..all).step_by(step) {
            let part = self.elements.f_narrow(0, start as i64, step.min(all - start) as i64)?;
            let part = match &self.ready {
                Some(ready) => download(&part, ready)?,
                None => part,
            };
            // In host memory these bytes are the tensor's own, so they must not leave this loop.
            hash.update(&payload::to_bytes(&part)?);
        }
        Ok(hash.finish())
    }
}

/// Copies without libtorch, whose threads are the compute thread's.
fn in_memory_of_its_own(bytes: &[u8]) -> Result<Bytes, Failure> {
    let mut copy: Vec<u8> = Vec::new();
    copy.try_reserve_exact(bytes.len()).map_err(|error| Failure {
        kind: FailureKind::OutOfMemory,
        ..Failure::new(format!("copying state that is not sent yet: {error}"))
    })?;
    copy.extend_from_slice(bytes);
    Ok(copy.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compute::payloads::to_payload;
    use pipeline::hash_tensor;
    use tch::{Device, Kind};

    #[test]
    fn a_hash_does_not_depend_on_the_parts() {
        let tensor = Tensor::arange(10, (Kind::Float, Device::Cpu)).reshape([5, 2]);
        let whole = to_payload(&tensor).unwrap();
        let live = LiveElements { elements: tensor.f_view([-1]).unwrap(), ready: None };
        let hash = hash_tensor(&whole.meta, &whole.bytes);
        for most in [1, 4, 12, 39, 40, 1 << 20] {
            assert_eq!(live.hash_in_parts(&whole.meta, most).unwrap(), hash, "{most} bytes");
        }
        assert_eq!(live.hash(&whole.meta).unwrap(), hash);
        let flat = to_payload(&live.elements).unwrap();
        assert_ne!(live.hash(&flat.meta).unwrap(), hash, "the shape counts");
    }
}
