//! Events of a played schedule, in the order of time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Events that are still to happen. Events of one time happen in the order in which they were
/// added.
pub(super) struct Events<E> {
    queue: BinaryHeap<Reverse<Entry<E>>>,
    added: u64,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Entry<E> {
    time: u64,
    /// The number of events that were added before it.
    number: u64,
    event: E,
}

impl<E: Ord> Events<E> {
    pub(super) fn new() -> Self {
        Events { queue: BinaryHeap::new(), added: 0 }
    }

    /// Adds an event at a time in nanoseconds.
    pub(super) fn push(&mut self, time: u64, event: E) {
        self.queue.push(Reverse(Entry { time, number: self.added, event }));
        self.added += 1;
    }

    /// The time of the next event.
    pub(super) fn next_time(&self) -> Option<u64> {
        self.queue.peek().map(|Reverse(entry)| entry.time)
    }

    /// Removes the next event, if it happens at this time.
    pub(super) fn pop_at(&mut self, time: u64) -> Option<E> {
        if self.next_time() != Some(time) {
            return None;
        }
        self.queue.pop().map(|Reverse(entry)| entry.event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_one_time_happen_in_the_order_in_which_they_were_added() {
        let mut events = Events::new();
        for (time, event) in [(5, 'c'), (2, 'b'), (5, 'a'), (2, 'z')] {
            events.push(time, event);
        }
        assert_eq!(events.next_time(), Some(2));
        assert_eq!(events.pop_at(1), None);
        let now: Vec<char> = std::iter::from_fn(|| events.pop_at(2)).collect();
        assert_eq!(now, ['b', 'z']);
        assert_eq!((events.pop_at(5), events.pop_at(5)), (Some('c'), Some('a')));
        assert_eq!(events.next_time(), None);
    }
}
