//! Tensors as bytes, and the slots in which a driver stores them for its session.

use bytes::Bytes;
use parking_lot::Mutex;
use pipeline::ids::Slot;
use pipeline::TensorMeta;
use std::collections::HashMap;
use std::sync::Arc;

/// A tensor's shape and its bytes: little-endian, dense, row-major.
#[derive(Clone, Debug)]
pub struct Payload {
    /// The dtype and the shape.
    pub meta: TensorMeta,
    /// The bytes. `meta` determines their number.
    pub bytes: Bytes,
}

/// Tensors by slot number, in the form that a driver has them in. Clones share the same slots.
pub struct Slots<T = Payload> {
    inner: Arc<Mutex<Stored<T>>>,
}

struct Stored<T> {
    next: u64,
    tensors: HashMap<Slot, T>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        let stored = Stored { next: 0, tensors: HashMap::new() };
        Slots { inner: Arc::new(Mutex::new(stored)) }
    }
}

impl<T> Clone for Slots<T> {
    fn clone(&self) -> Self {
        Slots { inner: self.inner.clone() }
    }
}

impl<T> Slots<T> {
    /// Stores a tensor.
    pub fn insert(&self, tensor: T) -> Slot {
        let mut stored = self.inner.lock();
        let slot = Slot(stored.next);
        stored.next += 1;
        stored.tensors.insert(slot, tensor);
        slot
    }

    /// Takes a tensor out. Its slot is then empty.
    pub fn remove(&self, slot: Slot) -> Option<T> {
        let mut stored = self.inner.lock();
        stored.tensors.remove(&slot)
    }

    /// Takes the tensors of a frame out.
    ///
    /// # Errors
    /// A slot is empty.
    pub fn take(&self, numbers: &[Slot]) -> Result<Vec<T>, String> {
        let missing = |slot: &Slot| format!("{slot} holds no tensor; please report it");
        numbers.iter().map(|slot| self.remove(*slot).ok_or_else(|| missing(slot))).collect()
    }

    /// The number of stored tensors.
    pub fn len(&self) -> usize {
        self.inner.lock().tensors.len()
    }

    /// Whether no tensor is stored.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
