//! The balance of the tensors that a driver hands to a session and gets back.

use crate::failure::Failure;

/// Counts slots. A session takes each once, and gives it back in one effect. Until then it holds
/// it.
#[derive(Default, Debug)]
pub(crate) struct SlotLedger {
    /// The number of slots taken minus those given back.
    open: i64,
}

impl SlotLedger {
    /// The session takes this number of slots.
    pub(crate) fn take(&mut self, slots: usize) {
        self.open += slots as i64;
    }

    /// The session gives this number of slots back.
    pub(crate) fn give_back(&mut self, slots: usize) {
        self.open -= slots as i64;
    }

    /// Fails unless the session holds what it took and did not give back. Reports a difference
    /// once, so that a step can be repeated.
    pub(crate) fn settle(&mut self, held: usize) -> Result<(), Failure> {
        let held = held as i64;
        let open = std::mem::replace(&mut self.open, held);
        let (count, what) = match open - held {
            0 => return Ok(()),
            lost if lost > 0 => (lost, "were neither used nor freed"),
            twice => (-twice, "were used or freed twice"),
        };
        Err(Failure::new(format!("{count} tensors {what}; please report it")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(result: Result<(), Failure>) -> String {
        result.err().map_or(String::new(), |failure| failure.message)
    }

    #[test]
    fn slots_that_are_held_are_not_lost() {
        let mut ledger = SlotLedger::default();
        ledger.take(3);
        ledger.give_back(1);
        assert_eq!(ledger.settle(2), Ok(()));
        ledger.give_back(2);
        assert_eq!(ledger.settle(0), Ok(()));
    }

    #[test]
    fn lost_slots_are_reported_once() {
        let mut ledger = SlotLedger::default();
        ledger.take(2);
        let lost = "2 tensors were neither used nor freed; please report it";
        assert_eq!(problem(ledger.settle(0)), lost);
        assert_eq!(ledger.settle(0), Ok(()));
    }

    #[test]
    fn slots_that_are_given_back_twice_are_reported_once() {
        let mut ledger = SlotLedger::default();
        ledger.give_back(1);
        let twice = "1 tensors were used or freed twice; please report it";
        assert_eq!(problem(ledger.settle(0)), twice);
        assert_eq!(ledger.settle(0), Ok(()));
    }
}
