//! Tensors as they travel, and the slots in which a driver holds them for its session.

use bytes::Bytes;
use parking_lot::Mutex;
use pipeline::ids::Slot;
use pipeline::TensorMeta;
use std::collections::HashMap;
use std::sync::Arc;

/// A tensor's shape and its bytes: little-endian, dense, row-major.
#[derive(Clone, Debug)]
pub struct Payload {
    /// Element type and sizes.
    pub meta: TensorMeta,
    /// The bytes, as many as `meta` states.
    pub bytes: Bytes,
}

/// Tensors by slot number. Clones share the same slots.
#[derive(Clone, Default)]
pub struct Slots {
    inner: Arc<Mutex<Held>>,
}

#[derive(Default)]
struct Held {
    next: u64,
    payloads: HashMap<Slot, Payload>,
}

impl Slots {
    /// Keeps a tensor.
    pub fn insert(&self, payload: Payload) -> Slot {
        let mut held = self.inner.lock();
        let slot = Slot(held.next);
        held.next += 1;
        held.payloads.insert(slot, payload);
        slot
    }

    /// Gives a tensor out; its slot is then empty.
    pub fn remove(&self, slot: Slot) -> Option<Payload> {
        let mut held = self.inner.lock();
        held.payloads.remove(&slot)
    }

    /// The number of tensors held.
    pub fn len(&self) -> usize {
        self.inner.lock().payloads.len()
    }

    /// Whether none is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
