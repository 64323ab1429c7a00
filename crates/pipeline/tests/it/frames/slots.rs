//! The tensors that a driver holds, by number alone.

use pipeline::effect::Frame;
use pipeline::frame::TensorEnvelope;
use pipeline::ids::Slot;
use std::collections::BTreeSet;

/// The tensors that the driver holds.
#[derive(Default)]
pub struct Slots {
    pub held: BTreeSet<Slot>,
    next: u64,
}

impl Slots {
    pub fn hold(&mut self) -> Slot {
        self.next += 1;
        self.held.insert(Slot(self.next));
        Slot(self.next)
    }

    pub fn give_up(&mut self, slots: &[Slot]) {
        slots.iter().for_each(|slot| {
            assert!(self.held.remove(slot), "{slot} was given back twice or never held")
        });
    }

    pub fn frame(&mut self, TensorEnvelope { route, head, tensors }: TensorEnvelope) -> Frame {
        Frame { route, head, slots: tensors.iter().map(|_| self.hold()).collect() }
    }
}
