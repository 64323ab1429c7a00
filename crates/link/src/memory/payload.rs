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

/// Tensors by slot number. Clones share the same slots.
#[derive(Clone, Default)]
pub struct Slots {
    inner: Arc<Mutex<Stored>>,
}

#[derive(Default)]
struct Stored {
    next: u64,
    payloads: HashMap<Slot, Payload>,
}

impl Slots {
    /// Stores a tensor.
    pub fn insert(&self, payload: Payload) -> Slot {
        let mut stored = self.inner.lock();
        let slot = Slot(stored.next);
        stored.next += 1;
        stored.payloads.insert(slot, payload);
        slot
    }

    /// Takes a tensor out. Its slot is then empty.
    pub fn remove(&self, slot: Slot) -> Option<Payload> {
        let mut stored = self.inner.lock();
        stored.payloads.remove(&slot)
    }

    /// The number of stored tensors.
    pub fn len(&self) -> usize {
        self.inner.lock().payloads.len()
    }

    /// Whether no tensor is stored.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
