//! The frames of state that wait until the boss takes earlier ones.
//!
//! ```text
//! worker                 boss
//!   heads, Done    ->
//!   window frames  ->    its caller takes one
//!                  <-    MoreState 1
//!   1 frame        ->
//! ```
//!
//! They wait beside later commands.

use super::outbox::Outbox;
use crate::ids::Slot;
use crate::message::TensorHead;
use std::collections::{BTreeMap, VecDeque};

/// The frames that wait, by command.
#[derive(Default)]
pub(super) struct StateFrames(BTreeMap<u64, Waiting>);

/// The frames of one command of which some wait.
struct Waiting {
    frames: VecDeque<(String, Slot)>,
    /// The number of frames that were sent and not taken.
    untaken: u32,
}

impl Waiting {
    fn send(&mut self, id: u64, most: u32, outbox: &mut Outbox) {
        for _ in 0..most {
            let Some((name, slot)) = self.frames.pop_front() else { return };
            self.untaken = self.untaken.saturating_add(1);
            outbox.send_boss(TensorHead::State { id, name }, vec![slot]);
        }
    }
}

impl StateFrames {
    /// State is copied. At most `window` frames of it are on their way or untaken.
    pub(super) fn begin(
        &mut self,
        id: u64,
        window: u32,
        tensors: Vec<(String, Slot)>,
        outbox: &mut Outbox,
    ) {
        let mut waiting = Waiting { frames: tensors.into(), untaken: 0 };
        waiting.send(id, window.max(1), outbox);
        if !waiting.frames.is_empty() {
            self.0.insert(id, waiting);
        }
    }

    /// The boss took frames. Once the last frame is sent, nothing waits for that.
    pub(super) fn more(&mut self, id: u64, frames: u32, outbox: &mut Outbox) {
        let Some(waiting) = self.0.get_mut(&id) else { return };
        let Some(untaken) = waiting.untaken.checked_sub(frames) else {
            return outbox.refuse_boss("took more frames of state than were sent");
        };
        waiting.untaken = untaken;
        waiting.send(id, frames, outbox);
        if waiting.frames.is_empty() {
            self.0.remove(&id);
        }
    }

    /// The number of frames that wait, each with one tensor.
    pub(super) fn held(&self) -> usize {
        self.0.values().map(|waiting| waiting.frames.len()).sum()
    }

    /// Removes what waits for a command.
    pub(super) fn cancel(&mut self, id: u64) -> Vec<Slot> {
        let frames = self.0.remove(&id).map(|waiting| waiting.frames).unwrap_or_default();
        frames.into_iter().map(|(_, slot)| slot).collect()
    }

    /// Removes everything that waits.
    pub(super) fn cancel_all(&mut self) -> Vec<Slot> {
        let all = std::mem::take(&mut self.0).into_values();
        all.flat_map(|waiting| waiting.frames).map(|(_, slot)| slot).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::text;
    use super::*;

    fn tensors(count: u64) -> Vec<(String, Slot)> {
        (0..count).map(|number| (format!("{number}.weight"), Slot(number))).collect()
    }

    fn begin(frames: &mut StateFrames, id: u64, window: u32, count: u64) -> String {
        let mut outbox = Outbox::default();
        frames.begin(id, window, tensors(count), &mut outbox);
        text(&mut outbox)
    }

    fn more(frames: &mut StateFrames, id: u64, taken: u32) -> String {
        let mut outbox = Outbox::default();
        frames.more(id, taken, &mut outbox);
        text(&mut outbox)
    }

    fn sent(slots: &[u64]) -> String {
        slots.iter().map(|slot| format!("send [{slot}] as State to the boss\n")).collect()
    }

    #[test]
    fn no_more_than_the_window_is_untaken() {
        let mut frames = StateFrames::default();
        assert_eq!(begin(&mut frames, 3, 2, 5), sent(&[0, 1]));
        assert_eq!(more(&mut frames, 3, 1), sent(&[2]));
        assert_eq!(more(&mut frames, 3, 2), sent(&[3, 4]));
        assert_eq!(more(&mut frames, 3, 1), "", "all are sent");
    }

    #[test]
    fn a_small_state_goes_at_once_and_a_window_of_nothing_is_one() {
        let mut frames = StateFrames::default();
        assert_eq!(begin(&mut frames, 3, 2, 2), sent(&[0, 1]));
        assert_eq!(begin(&mut frames, 4, 0, 2), sent(&[0]));
        assert_eq!(begin(&mut frames, 5, 4, 0), "");
        assert_eq!((more(&mut frames, 3, 9), more(&mut frames, 5, 9)), ("".into(), "".into()));
        assert_eq!(frames.cancel_all(), [Slot(1)]);
    }

    #[test]
    fn a_boss_takes_no_more_than_was_sent() {
        let mut frames = StateFrames::default();
        begin(&mut frames, 3, 2, 5);
        let refused = "hang up on the boss: took more frames of state than were sent\n";
        assert_eq!(more(&mut frames, 3, 3), refused);
        assert_eq!(more(&mut frames, 3, u32::MAX), refused);
    }

    #[test]
    fn a_cancelled_command_leaves_nothing() {
        let mut frames = StateFrames::default();
        begin(&mut frames, 3, 1, 3);
        begin(&mut frames, 4, 1, 2);
        assert_eq!(frames.cancel(3), [Slot(1), Slot(2)]);
        assert!(frames.cancel(3).is_empty());
        assert_eq!(more(&mut frames, 3, 1), "", "the boss did not know yet");
        assert_eq!(more(&mut frames, 4, 1), sent(&[1]));
    }
}
