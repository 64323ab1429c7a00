//! The state that the boss hands out frame by frame, and the windows of the workers that send it.

use super::World;
use crate::math::Fake;
use pipeline::effect::Peer;
use pipeline::ids::WorkerId;
use pipeline::message::{Command, TensorHead, ToWorker};
use pipeline::{SlicePlace, StateHeads, TensorMeta};
use std::collections::BTreeMap;
use testkit::Random;

/// The states that are arriving, and what workers may send.
pub(super) struct Fetches {
    /// By request.
    arriving: BTreeMap<u64, Fetch>,
    /// The window of each command.
    windows: BTreeMap<u64, u32>,
    /// The frames of each command and worker that were sent and not taken.
    untaken: BTreeMap<(u64, WorkerId), u32>,
    /// Draws when frames are taken.
    random: Random,
}

/// The state of one request.
#[derive(Default)]
struct Fetch {
    places: StateHeads,
    heads: Vec<Head>,
}

/// A tensor or shard, and its slices so far by first element.
struct Head {
    worker: WorkerId,
    name: String,
    elements: u64,
    slices: BTreeMap<u64, Fake>,
}

impl Fetches {
    pub(super) fn new(seed: u64) -> Self {
        let random = Random::new(seed ^ 0x57A7E);
        let (arriving, windows, untaken) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Fetches { arriving, windows, untaken, random }
    }

    /// The boss announces the state of a request.
    pub(super) fn begin(&mut self, request: u64, heads: Vec<(WorkerId, String, TensorMeta)>) {
        let mut fetch = Fetch::default();
        for (worker, name, meta) in heads {
            fetch.places.add(&name, &meta).expect("a tensor that is announced once");
            let elements = meta.shape.iter().product();
            fetch.heads.push(Head { worker, name, elements, slices: BTreeMap::new() });
        }
        assert!(self.arriving.insert(request, fetch).is_none(), "heads come twice");
    }

    /// The boss hands out a frame.
    fn arrive(&mut self, request: u64, worker: WorkerId, name: &str, value: Fake) {
        let fetch = self.arriving.get_mut(&request).expect("a request with its heads");
        let SlicePlace { head, start } = fetch.places.find(name).expect("a frame of a head");
        let head = &mut fetch.heads[head];
        assert_eq!(head.worker, worker, "{name} comes from another worker than was said");
        assert!(head.slices.insert(start, value).is_none(), "{name} comes twice");
    }

    /// The whole state of a request. All slices of a tensor have the same value here.
    pub(super) fn end(&mut self, request: u64) -> BTreeMap<String, Fake> {
        let fetch = self.arriving.remove(&request).expect("a request with its heads");
        let whole = |head: Head| {
            let Head { name, elements, slices, .. } = head;
            let starts: Vec<u64> = slices.keys().copied().collect();
            assert_eq!(starts, (0..elements).collect::<Vec<u64>>(), "the slices of {name}");
            let mut values = slices.into_values();
            let value = values.next().expect("a tensor has an element");
            assert!(values.all(|other| other == value), "slices of {name} do not belong together");
            (name, value)
        };
        fetch.heads.into_iter().map(whole).collect()
    }

    /// The request failed.
    pub(super) fn forget(&mut self, request: u64) {
        self.arriving.remove(&request);
    }

    pub(super) fn assert_empty(&self) {
        assert!(self.arriving.is_empty(), "states that still arrive: {:?}", self.arriving.keys());
    }
}

impl World {
    /// The boss hands out a frame of state. Its caller takes it at once or later.
    pub(super) fn state_arrives(
        &mut self,
        request: u64,
        worker: WorkerId,
        name: &str,
        value: Fake,
    ) {
        self.fetches.arrive(request, worker, name, value);
        if self.network.conditions.exact || self.fetches.random.chance(50) {
            return self.boss.on_state_taken(request, worker);
        }
        let most = *self.fetches.random.pick(&[1, 100, 10_000]);
        let delay = 1 + self.fetches.random.below(most);
        self.network.take_later(request, worker, delay);
    }

    /// The boss tells a worker something, perhaps about its window.
    pub(super) fn note_window(&mut self, to: WorkerId, message: &ToWorker) {
        match message {
            ToWorker::Command { id, body: Command::SendState { window, .. } } => {
                self.fetches.windows.insert(*id, *window);
            }
            ToWorker::MoreState { id, frames } => {
                self.windows_used += 1;
                let untaken = self.fetches.untaken.get_mut(&(*id, to));
                let untaken = untaken.expect("frames that were sent");
                *untaken = untaken.checked_sub(*frames).expect("frames that were sent");
            }
            _ => {}
        }
    }

    /// A worker sends a frame, perhaps of state.
    pub(super) fn note_sent(&mut self, from: Peer, to: Peer, head: &TensorHead) {
        let (Peer::Worker(worker), Peer::Boss, TensorHead::State { id, .. }) = (from, to, head)
        else {
            return;
        };
        let untaken = self.fetches.untaken.entry((*id, worker)).or_default();
        *untaken += 1;
        // A worker that hears twice that a frame was taken sends one too many.
        let hears_twice =
            self.injected.has_duplicates() || !self.network.injected_frame_faults.is_empty();
        let window = self.fetches.windows[id];
        assert!(hears_twice || *untaken <= window, "{worker} sends more than {window} frames");
    }
}
