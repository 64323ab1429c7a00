//! The lines between machines. A line carries one tensor at a time in each direction. Processes on
//! one machine take turns on its lines, as their connections would.

use super::costs::{Link, Process};
use super::Costs;
use std::collections::{BTreeMap, VecDeque};

/// A line in one direction.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum LineId {
    /// From one machine to another.
    Machines(u32, u32),
    /// Between processes of one machine, or of unknown machines.
    Processes(Process, Process),
}

impl LineId {
    pub(super) fn between(from: Process, to: Process, costs: &Costs) -> Self {
        match (costs.machines.get(&from), costs.machines.get(&to)) {
            (Some(from), Some(to)) if from != to => LineId::Machines(*from, *to),
            _ => LineId::Processes(from, to),
        }
    }
}

/// A tensor on its way.
#[derive(Debug)]
pub(super) struct Parcel<T> {
    pub(super) link: Link,
    pub(super) bytes: u64,
    /// The need that its arrival satisfies.
    pub(super) need: T,
}

/// The tensors that wait at each line, by sender.
#[derive(Debug)]
pub(super) struct Lines<T>(BTreeMap<LineId, Line<T>>);

#[derive(Debug)]
struct Line<T> {
    waiting: BTreeMap<Process, VecDeque<Parcel<T>>>,
    /// The sender of the last tensor.
    last: Process,
    busy: bool,
}

impl<T> Default for Lines<T> {
    fn default() -> Self {
        Lines(BTreeMap::new())
    }
}

impl<T> Lines<T> {
    /// Adds a tensor. Returns whether the line was free, so that the caller must ask for the next
    /// tensor.
    pub(super) fn put(&mut self, line: LineId, from: Process, parcel: Parcel<T>) -> bool {
        let fresh = || Line { waiting: BTreeMap::new(), last: from, busy: false };
        let line = self.0.entry(line).or_insert_with(fresh);
        line.waiting.entry(from).or_default().push_back(parcel);
        !std::mem::replace(&mut line.busy, true)
    }

    /// Removes the next tensor. Senders take turns.
    pub(super) fn next(&mut self, line: LineId) -> Option<Parcel<T>> {
        let line = self.0.get_mut(&line)?;
        let mut senders = line
            .waiting
            .iter()
            .filter(|(_, parcels)| !parcels.is_empty())
            .map(|(sender, _)| *sender);
        let first = senders.clone().next();
        let Some(sender) = senders.find(|sender| *sender > line.last).or(first) else {
            line.busy = false;
            return None;
        };
        line.last = sender;
        line.waiting.get_mut(&sender)?.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::WorkerId;

    const BOSS: Process = Process::Boss;
    const WORKER: Process = Process::Worker(WorkerId(0));
    const FAR: Process = Process::Worker(WorkerId(1));

    fn parcel(need: u32) -> Parcel<u32> {
        Parcel { link: Link::default(), bytes: 1, need }
    }

    #[test]
    fn processes_of_a_machine_take_turns_on_its_line() {
        let mut costs = Costs::unit(2);
        costs.machines = [(BOSS, 0), (WORKER, 0), (FAR, 1)].into();
        let line = LineId::between(BOSS, FAR, &costs);
        assert_eq!(line, LineId::between(WORKER, FAR, &costs));
        let mut lines = Lines::default();
        assert!(lines.put(line, BOSS, parcel(0)));
        for (from, need) in [(BOSS, 1), (BOSS, 2), (WORKER, 10), (WORKER, 11)] {
            assert!(!lines.put(line, from, parcel(need)));
        }
        let order: Vec<u32> =
            std::iter::from_fn(|| lines.next(line)).map(|parcel| parcel.need).collect();
        assert_eq!(order, [10, 0, 11, 1, 2]);
        assert!(lines.put(line, BOSS, parcel(3)), "the line is free again");
    }

    #[test]
    fn within_a_machine_and_between_unknown_ones_each_pair_has_its_own_line() {
        let mut costs = Costs::unit(2);
        assert_ne!(LineId::between(BOSS, FAR, &costs), LineId::between(WORKER, FAR, &costs));
        costs.machines = [(BOSS, 0), (WORKER, 0), (FAR, 0)].into();
        assert_ne!(LineId::between(BOSS, FAR, &costs), LineId::between(WORKER, FAR, &costs));
    }
}
