//! Collects state that workers send through a window: parameters, buffers and optimizer state.
//!
//! Frames pass through to the caller. Those that arrive before every worker has answered are kept,
//! at most a window of each worker, because the caller first receives what all frames belong to.

use crate::effect::BossEffect;
use crate::ids::{Slot, WorkerId};
use crate::state_slices::{StateHeads, MAX_STATE_HEADS};
use crate::tensor_meta::TensorMeta;
use std::collections::{BTreeMap, BTreeSet};

/// The most frames of state that are on their way to the boss, or there and untaken.
const STATE_WINDOW_FRAMES: usize = 16;

/// The part of the window of each of this number of workers.
pub(in crate::boss) fn state_window(senders: usize) -> u32 {
    (STATE_WINDOW_FRAMES / senders.max(1)).max(1) as u32
}

/// The frames of a request for state, and what they are.
pub(super) struct StateParts {
    window: u32,
    senders: BTreeMap<WorkerId, Sender>,
    /// The heads' names, and the frames' names.
    heads: BTreeSet<String>,
    frames: BTreeSet<String>,
    /// Whether the caller has received the heads.
    is_open: bool,
}

/// A worker that sends state.
#[derive(Default)]
struct Sender {
    /// What its frames are, once it has said so.
    heads: Option<StateHeads>,
    /// The same for the caller, until it has received them.
    listed: Vec<(String, TensorMeta)>,
    /// The frames that the caller has not received.
    kept: Vec<(String, Slot)>,
    /// The number of frames that the caller has received and taken.
    given: u32,
    taken: u32,
    /// The number of all its frames, once it has answered.
    announced: Option<u32>,
}

impl Sender {
    /// Whether frames wait at the worker.
    fn has_waiting(&self, window: u32) -> bool {
        self.announced.is_some_and(|all| all > window.saturating_add(self.taken))
    }

    fn untaken(&self) -> usize {
        self.kept.len() + (self.given - self.taken) as usize
    }
}

impl StateParts {
    pub(super) fn of(workers: &BTreeSet<WorkerId>) -> Self {
        StateParts {
            window: state_window(workers.len()),
            senders: workers.iter().map(|worker| (*worker, Sender::default())).collect(),
            heads: BTreeSet::new(),
            frames: BTreeSet::new(),
            is_open: false,
        }
    }

    /// Whether a worker has not said what its frames are.
    pub(super) fn is_owed_by(&self, worker: WorkerId) -> bool {
        self.senders.get(&worker).is_some_and(|sender| sender.heads.is_none())
    }

    /// A worker says what its frames are. It has not answered yet.
    ///
    /// # Errors
    /// The worker violated the protocol.
    pub(super) fn take_heads(
        &mut self,
        from: WorkerId,
        listed: Vec<(String, TensorMeta)>,
    ) -> Result<(), String> {
        let sender = self.senders.get_mut(&from).filter(|sender| sender.heads.is_none());
        let Some(sender) = sender else {
            return Err("announced its state twice, or unasked".into());
        };
        if listed.len() > MAX_STATE_HEADS {
            return Err(format!("announced more than {MAX_STATE_HEADS} tensors"));
        }
        let mut heads = StateHeads::default();
        for (name, meta) in &listed {
            heads.add(name, meta)?;
            // Otherwise a worker could replace another worker's weights.
            if !self.heads.insert(name.clone()) {
                return Err(format!("announced `{name}`, which another worker has"));
            }
        }
        if let Some((name, _)) = sender.kept.iter().find(|(name, _)| heads.find(name).is_none()) {
            return Err(not_announced(name));
        }
        (sender.heads, sender.listed) = (Some(heads), listed);
        Ok(())
    }

    /// Checks a frame before it is [kept](Self::keep).
    ///
    /// # Errors
    /// The worker violated the protocol.
    pub(super) fn check_frame(&mut self, from: WorkerId, name: &str) -> Result<(), String> {
        let Some(sender) = self.senders.get(&from) else {
            return Err(format!("sent the parameter `{name}` unasked"));
        };
        if sender.untaken() >= self.window as usize {
            return Err("sent more of its state than may be untaken".into());
        }
        if sender.heads.as_ref().is_some_and(|heads| heads.find(name).is_none()) {
            return Err(not_announced(name));
        }
        match self.frames.insert(name.to_string()) {
            true => Ok(()),
            false => Err(format!("sent the parameter `{name}` twice")),
        }
    }

    /// Keeps a frame for the caller.
    pub(super) fn keep(&mut self, from: WorkerId, name: String, slot: Slot) {
        if let Some(sender) = self.senders.get_mut(&from) {
            sender.kept.push((name, slot));
        }
    }

    /// A worker has answered, and says how many frames it sends.
    pub(super) fn announce(&mut self, from: WorkerId, frames: u32) {
        if let Some(sender) = self.senders.get_mut(&from) {
            sender.announced = Some(frames);
        }
    }

    /// The effects that hand the caller what it can receive, once every worker has answered: first
    /// the heads, then each frame.
    pub(super) fn hand_out(&mut self, request: u64) -> Vec<BossEffect> {
        let mut effects = Vec::new();
        if !self.is_open {
            self.is_open = true;
            let mut heads = Vec::new();
            for (worker, sender) in &mut self.senders {
                let listed = std::mem::take(&mut sender.listed).into_iter();
                heads.extend(listed.map(|(name, meta)| (*worker, name, meta)));
            }
            effects.push(BossEffect::StateHeads { request, heads });
        }
        for (worker, sender) in &mut self.senders {
            for (name, slot) in std::mem::take(&mut sender.kept) {
                sender.given += 1;
                effects.push(BossEffect::State { request, worker: *worker, name, slot });
            }
        }
        effects
    }

    /// The caller has taken a frame. Returns whether another one waits at the worker.
    pub(super) fn take_one(&mut self, worker: WorkerId) -> bool {
        let window = self.window;
        let sender = self.senders.get_mut(&worker).filter(|sender| sender.taken < sender.given);
        let Some(sender) = sender else { return false };
        let waits = sender.has_waiting(window);
        sender.taken += 1;
        waits
    }

    /// The workers at which frames wait.
    pub(super) fn waiting_at(&self) -> Vec<WorkerId> {
        let waits = self.senders.iter().filter(|(_, sender)| sender.has_waiting(self.window));
        waits.map(|(worker, _)| *worker).collect()
    }

    /// The number of frames that the caller has not received.
    pub(super) fn held(&self) -> usize {
        self.senders.values().map(|sender| sender.kept.len()).sum()
    }

    pub(super) fn into_slots(self) -> Vec<Slot> {
        let kept = self.senders.into_values().flat_map(|sender| sender.kept);
        kept.map(|(_, slot)| slot).collect()
    }
}

fn not_announced(name: &str) -> String {
    format!("sent `{name}`, which it did not announce")
}

#[cfg(test)]
mod tests {
    use super::*;
    use layerspec::DType;

    const ME: WorkerId = WorkerId(1);
    const OTHER: WorkerId = WorkerId(2);

    fn parts(workers: &[WorkerId]) -> StateParts {
        StateParts::of(&workers.iter().copied().collect())
    }

    fn heads(names: &[&str]) -> Vec<(String, TensorMeta)> {
        let meta = TensorMeta { dtype: DType::Float32, shape: vec![100] };
        names.iter().map(|name| (name.to_string(), meta.clone())).collect()
    }

    fn arrive(parts: &mut StateParts, from: WorkerId, name: &str) -> Result<(), String> {
        parts.check_frame(from, name)?;
        parts.keep(from, name.to_string(), Slot(0));
        Ok(())
    }

    fn error<T>(result: Result<T, String>) -> String {
        result.err().unwrap_or_default()
    }

    #[test]
    fn the_window_is_shared() {
        assert_eq!([0, 1, 3, 16, 17, 1000].map(state_window), [16, 16, 5, 1, 1, 1]);
    }

    #[test]
    fn frames_come_after_the_heads_in_the_order_of_workers() {
        let mut parts = parts(&[ME, OTHER]);
        assert_eq!(arrive(&mut parts, ME, "slice/a[50]"), Ok(()), "before its head");
        assert!(parts.is_owed_by(ME));
        assert_eq!(parts.take_heads(OTHER, heads(&["b"])), Ok(()));
        assert_eq!(parts.take_heads(ME, heads(&["a"])), Ok(()));
        assert!(!parts.is_owed_by(ME));
        let effects = parts.hand_out(7);
        let [BossEffect::StateHeads { request: 7, heads }, BossEffect::State { worker, .. }] =
            &effects[..]
        else {
            panic!("{effects:?}");
        };
        assert_eq!(heads.iter().map(|(worker, ..)| *worker).collect::<Vec<_>>(), [ME, OTHER]);
        assert_eq!(*worker, ME);
        assert!(parts.hand_out(7).is_empty());
        assert_eq!(arrive(&mut parts, OTHER, "b"), Ok(()));
        assert_eq!(parts.hand_out(7).len(), 1);
    }

    #[test]
    fn a_frame_is_of_a_head_of_its_worker() {
        let mut parts = parts(&[ME, OTHER]);
        assert_eq!(arrive(&mut parts, ME, "c"), Ok(()));
        assert!(error(parts.take_heads(ME, heads(&["a"]))).contains("`c`"));
        assert_eq!(parts.take_heads(OTHER, heads(&["b"])), Ok(()));
        for wrong in ["a", "slice/b[100]", "optimizer/b"] {
            let error = error(arrive(&mut parts, OTHER, wrong));
            assert!(error.contains("did not announce"), "{wrong}: {error}");
        }
        assert!(error(arrive(&mut parts, WorkerId(3), "b")).contains("unasked"));
    }

    #[test]
    fn nothing_comes_twice() {
        let mut parts = parts(&[ME, OTHER]);
        assert_eq!(parts.take_heads(ME, heads(&["a"])), Ok(()));
        assert!(error(parts.take_heads(ME, heads(&["b"]))).contains("twice"));
        assert!(error(parts.take_heads(OTHER, heads(&["a"]))).contains("another worker"));
        assert_eq!(arrive(&mut parts, ME, "a"), Ok(()));
        assert!(error(arrive(&mut parts, ME, "a")).contains("twice"));
        assert!(error(arrive(&mut parts, OTHER, "a")).contains("twice"));
    }

    #[test]
    fn no_more_than_the_window_is_untaken() {
        let mut parts = parts(&[ME]);
        assert_eq!(parts.take_heads(ME, heads(&["a"])), Ok(()));
        let name = |number: usize| format!("slice/a[{number}]");
        for number in 0..STATE_WINDOW_FRAMES {
            assert_eq!(arrive(&mut parts, ME, &name(number)), Ok(()));
        }
        assert!(error(arrive(&mut parts, ME, &name(20))).contains("untaken"));
        parts.announce(ME, 18);
        assert!(!parts.take_one(ME), "the caller has none");
        parts.hand_out(7);
        assert_eq!(parts.waiting_at(), [ME]);
        assert!(parts.take_one(ME) && parts.take_one(ME));
        assert!(parts.waiting_at().is_empty());
        assert!(!parts.take_one(ME), "all are on their way");
        for number in [20, 21] {
            assert_eq!(arrive(&mut parts, ME, &name(number)), Ok(()));
        }
        assert_eq!(parts.into_slots().len(), 2);
    }
}
