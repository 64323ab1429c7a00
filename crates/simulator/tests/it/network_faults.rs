//! Packets that a network delays, loses or duplicates.

use super::{pair, Event, Network, Packet, Parting};
use crate::planned_faults::{FrameFault, BOSS_GIVES_UP, WORKER_GIVES_UP};
use pipeline::effect::Peer;
use pipeline::ids::WorkerId;
use std::collections::BTreeSet;

impl Parting {
    /// Whether an event needs something to pass between the two sides.
    fn parts(&self, event: &Event) -> bool {
        let is_far =
            |peer: Peer| matches!(peer, Peer::Worker(worker) if self.far.contains(&worker));
        let far = |worker: WorkerId| self.far.contains(&worker);
        match event {
            Event::Arrives(packet) => is_far(packet.from) != is_far(packet.to),
            Event::LinkUp { at, peer, .. } | Event::LinkDown { at, peer, .. } => {
                far(*at) != far(*peer)
            }
            Event::Lost(worker) => far(*worker),
            Event::Computed(_)
            | Event::Summed(..)
            | Event::Read(..)
            | Event::Leaves(_)
            | Event::Taken(..) => false,
        }
    }
}

impl Network {
    /// The time at which an event happens that would happen at `time` without a partition.
    pub(super) fn held_until(&self, time: u64, event: &Event) -> u64 {
        match &self.parting {
            Some(parting) if self.now < parting.until && parting.parts(event) => {
                time.max(parting.until)
            }
            _ => time,
        }
    }

    /// Separates these workers from all others until a time, without a loss. Only one such
    /// partition exists at a time.
    pub fn hold(&mut self, far: BTreeSet<WorkerId>, until: u64) {
        self.slack += until - self.now;
        self.parting = Some(Parting { far, until });
        // This includes packets in flight, which keep their order.
        for ((time, number), event) in std::mem::take(&mut self.queue) {
            let time = self.held_until(time, &event);
            self.queue.insert((time, number), event);
        }
    }

    /// Separates these workers from all others for ever. Each learns this at some time.
    pub fn split(&mut self, far: &BTreeSet<WorkerId>, workers: u16) {
        let (near, spread) =
            ((0..workers).map(WorkerId).filter(|worker| !far.contains(worker)), 300_000);
        let near: Vec<WorkerId> = near.collect();
        for away in far {
            self.severed.insert((Peer::Worker(*away), Peer::Boss));
            for given_up in [Event::Lost(*away), Event::Leaves(*away)] {
                let time = self.now + BOSS_GIVES_UP + self.random.below(spread);
                self.at(time, given_up);
            }
            for here in &near {
                self.severed.insert((Peer::Worker(*away), Peer::Worker(*here)));
                let Some(link) = self.links.get(&pair(*away, *here)) else { continue };
                let ends: Vec<(WorkerId, u32)> =
                    link.up.iter().map(|(at, dial)| (*at, *dial)).collect();
                for (at, dial) in ends {
                    let peer = if at == *away { *here } else { *away };
                    let time = self.now + WORKER_GIVES_UP + self.random.below(spread);
                    self.at(time, Event::LinkDown { at, peer, dial, reason: "silent" });
                }
            }
        }
    }

    /// Whether two peers are separated for ever.
    pub(super) fn is_severed(&self, a: Peer, b: Peer) -> bool {
        self.severed.contains(&(a, b)) || self.severed.contains(&(b, a))
    }

    /// Ends the boss's process. Every worker learns this at some time.
    pub fn lose_boss(&mut self, workers: impl Iterator<Item = WorkerId>) {
        for worker in workers {
            let time = self.soon() + self.random.below(2) * self.random.below(BOSS_GIVES_UP);
            self.at(time, Event::Leaves(worker));
        }
    }

    /// Pauses a worker until a time, at which it is not yet given up.
    pub fn pause(&mut self, worker: WorkerId, until: u64) {
        self.slack += until - self.now;
        self.asleep.insert(worker, until);
    }

    /// A worker closes its direct connection to another, if it has one.
    pub fn hang_up(&mut self, from: WorkerId, to: WorkerId) -> bool {
        let now = self.now;
        let Some(link) = self.links.get_mut(&pair(from, to)) else { return false };
        let Some(dial) = link.up.get(&from).copied().filter(|dial| !link.broken.contains_key(dial))
        else {
            return false;
        };
        link.broken.insert(dial, now);
        for (at, peer) in [(from, to), (to, from)] {
            let time = self.soon();
            self.at(time, Event::LinkDown { at, peer, dial, reason: "it broke the protocol" });
        }
        true
    }

    /// The fault of the next frame: its time of arrival, and the additional delay of its duplicate,
    /// if any.
    pub(super) fn next_frame_fault(&mut self, packet: &Packet) -> (u64, Option<u64>) {
        let arrival = self.soon();
        if packet.from == packet.to {
            return (arrival, None);
        }
        self.frames += 1;
        let Some(frame_fault) = self.frame_faults.remove(&self.frames) else {
            return (arrival, None);
        };
        self.injected_frame_faults.push(frame_fault);
        match frame_fault {
            FrameFault::Delay(more) => {
                self.slack += more;
                (arrival + more, None)
            }
            FrameFault::Duplicate(more) => (arrival, Some(more)),
        }
    }
}
