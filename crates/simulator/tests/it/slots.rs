//! The tensors that a driver holds for its session.

use crate::math::Fake;
use pipeline::ids::Slot;
use std::collections::BTreeMap;

/// Tensors by number. Each is given up once.
#[derive(Default)]
pub struct Slots {
    held: BTreeMap<Slot, Fake>,
    next: u64,
}

impl Slots {
    pub fn hold(&mut self, tensor: Fake) -> Slot {
        let slot = Slot(self.next);
        self.next += 1;
        self.held.insert(slot, tensor);
        slot
    }

    pub fn give_up(&mut self, slot: Slot) -> Fake {
        self.held
            .remove(&slot)
            .unwrap_or_else(|| panic!("{slot} was given back twice or never held"))
    }

    pub fn give_up_all(&mut self, slots: Vec<Slot>) -> Vec<Fake> {
        slots.into_iter().map(|slot| self.give_up(slot)).collect()
    }

    pub fn held(&self) -> &BTreeMap<Slot, Fake> {
        &self.held
    }
}
