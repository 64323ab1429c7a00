//! The balance of a round's actions: each starts once and ends once.
//!
//! It is counted apart from the picker, so that a mistake there is seen here.

use crate::message::Failure;
use crate::schedule::Action;
use std::collections::BTreeMap;

/// The actions of a round that have not started, and those that have not ended.
pub(super) struct ActionLedger {
    /// How often each action has still to start.
    unstarted: BTreeMap<Action, u32>,
    /// The actions at the compute thread, which are few.
    at_work: Vec<Action>,
}

impl ActionLedger {
    pub(super) fn new(actions: &[Action]) -> Self {
        let mut unstarted = BTreeMap::new();
        for action in actions {
            *unstarted.entry(*action).or_insert(0) += 1;
        }
        ActionLedger { unstarted, at_work: Vec::new() }
    }

    /// An action starts. Fails if the round does not have it, or not so often.
    pub(super) fn start(&mut self, action: Action) -> Result<(), Failure> {
        match self.unstarted.get_mut(&action) {
            None => return Err(broken(action, "it was started twice, or is not in the round")),
            Some(left) if *left > 1 => *left -= 1,
            Some(_) => {
                self.unstarted.remove(&action);
            }
        }
        self.at_work.push(action);
        Ok(())
    }

    /// An action ends. Fails if it is not at work.
    pub(super) fn end(&mut self, action: Action) -> Result<(), Failure> {
        let place = self.at_work.iter().position(|other| *other == action);
        let place = place.ok_or_else(|| broken(action, "it ended twice, or never began"))?;
        self.at_work.swap_remove(place);
        Ok(())
    }

    /// Fails unless every action has ended.
    pub(super) fn check(&self) -> Result<(), Failure> {
        match self.unstarted.keys().chain(&self.at_work).next() {
            Some(action) => Err(broken(*action, "the round ended without it")),
            None => Ok(()),
        }
    }
}

/// The failure of a session that broke its own rule.
pub(super) fn broken(action: Action, what: &str) -> Failure {
    in_action(action, Failure::new(format!("{what}; please report it")))
}

/// The same failure, with the action as its place.
pub(super) fn in_action(action: Action, failure: Failure) -> Failure {
    let (stage, verb) = (Some(action.stage()), Some(action.verb().to_string()));
    Failure { stage, action: verb, microbatch: action.microbatch(), ..failure }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::StageId;

    const FORWARD: Action = Action::Forward { stage: StageId(1), microbatch: 3 };
    const SHARE: Action = Action::Share { stage: StageId(1) };

    fn problem(result: Result<(), Failure>) -> String {
        result.err().map_or(String::new(), |failure| failure.to_string())
    }

    #[test]
    fn each_action_starts_and_ends_as_often_as_the_round_has_it() {
        let actions = [SHARE, FORWARD, SHARE];
        let mut ledger = ActionLedger::new(&actions);
        for action in actions {
            assert_eq!(ledger.start(action), Ok(()));
            assert_eq!(ledger.end(action), Ok(()));
        }
        assert_eq!(ledger.check(), Ok(()));
        assert!(ledger.start(SHARE).is_err(), "a third time");
    }

    #[test]
    fn an_action_that_starts_or_ends_twice_is_named() {
        let mut ledger = ActionLedger::new(&[FORWARD]);
        assert!(ledger.end(FORWARD).is_err(), "it has not begun");
        assert_eq!(ledger.start(FORWARD), Ok(()));
        let twice =
            "stage 1, forward, microbatch 3: it was started twice, or is not in the round; \
                     please report it";
        assert_eq!(problem(ledger.start(FORWARD)), twice);
        assert_eq!(ledger.end(FORWARD), Ok(()));
        let twice =
            "stage 1, forward, microbatch 3: it ended twice, or never began; please report it";
        assert_eq!(problem(ledger.end(FORWARD)), twice);
    }

    #[test]
    fn a_round_does_not_end_without_an_action() {
        let mut ledger = ActionLedger::new(&[FORWARD]);
        let left = "stage 1, forward, microbatch 3: the round ended without it; please report it";
        assert_eq!(problem(ledger.check()), left, "it has not started");
        assert_eq!(ledger.start(FORWARD), Ok(()));
        assert_eq!(problem(ledger.check()), left, "it is at work");
    }
}
