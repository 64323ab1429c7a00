//! Tensors that arrive one by one and are used together.

use crate::ids::Slot;
use std::collections::BTreeSet;

/// The most parameters, buffers and optimizer tensors of a worker.
pub(super) const MAX_STATE_TENSORS: u32 = 1 << 20;

/// Named tensors, and the number of them that are to come.
pub(super) struct NamedTensors {
    of: u32,
    names: BTreeSet<String>,
    tensors: Vec<(String, Slot)>,
}

impl NamedTensors {
    /// Waits for this number of tensors.
    pub(super) fn new(of: u32) -> Self {
        NamedTensors { of, names: BTreeSet::new(), tensors: Vec::new() }
    }

    /// Adds one of `of` tensors. If `of` is 0, the frame is empty. Gives the slots back if there
    /// would be more than announced, or one twice: it would replace another one, which would then
    /// be missing.
    pub(super) fn insert(
        &mut self,
        name: &str,
        of: u32,
        slots: Vec<Slot>,
    ) -> Result<(), Vec<Slot>> {
        let all = self.tensors.len() + slots.len();
        let fits = self.of == of && all <= of as usize && (of == 0 || slots.len() == 1);
        if !fits || (of > 0 && !self.names.insert(name.to_string())) {
            return Err(slots);
        }
        self.tensors.extend(slots.into_iter().map(|slot| (name.to_string(), slot)));
        Ok(())
    }

    /// Whether all have arrived.
    pub(super) fn is_complete(&self) -> bool {
        self.tensors.len() == self.of as usize
    }

    /// The number of tensors that have arrived.
    pub(super) fn held(&self) -> usize {
        self.tensors.len()
    }

    pub(super) fn into_tensors(self) -> Vec<(String, Slot)> {
        self.tensors
    }

    pub(super) fn into_slots(self) -> Vec<Slot> {
        self.tensors.into_iter().map(|(_, slot)| slot).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_are_complete_once_all_have_arrived() {
        let mut tensors = NamedTensors::new(2);
        assert_eq!(tensors.insert("a", 2, vec![Slot(1)]), Ok(()));
        assert_eq!(tensors.insert("a", 2, vec![Slot(2)]), Err(vec![Slot(2)]), "twice");
        assert_eq!(tensors.insert("b", 3, vec![Slot(3)]), Err(vec![Slot(3)]), "another number");
        assert_eq!(tensors.insert("b", 2, Vec::new()), Err(Vec::new()), "no tensor");
        assert!(!tensors.is_complete());
        assert_eq!(tensors.insert("b", 2, vec![Slot(4)]), Ok(()));
        assert!(tensors.is_complete());
        assert_eq!(tensors.insert("c", 2, vec![Slot(5)]), Err(vec![Slot(5)]), "more than 2");
        assert_eq!(tensors.into_slots(), [Slot(1), Slot(4)]);
    }

    #[test]
    fn nothing_is_complete_with_an_empty_frame() {
        let mut tensors = NamedTensors::new(0);
        assert_eq!(tensors.insert("", 0, Vec::new()), Ok(()));
        assert!(tensors.is_complete());
        assert_eq!(tensors.insert("a", 0, vec![Slot(1)]), Err(vec![Slot(1)]));
    }
}
