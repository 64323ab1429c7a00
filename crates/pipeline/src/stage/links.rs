//! How each other worker is reached: directly, or by way of the boss.

use crate::effect::{Destination, Micros, Peer};
use crate::frame::Route;
use crate::ids::WorkerId;
use crate::message::{Head, LinkReport, PeerAddress};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

/// The time that a direct connection may take before the boss relays instead.
const DIAL_SECONDS: u64 = 3;

/// The way that tensors for a worker take.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Link {
    /// Being dialled from here, until this time at the latest.
    Dialling(Micros),
    /// The other end dials.
    Awaited,
    Direct,
    Relayed,
}

/// The state of every link of a worker.
#[derive(Default)]
pub(super) struct Links {
    me: Option<WorkerId>,
    links: BTreeMap<WorkerId, Link>,
    /// Connections that are there, whether used or not: one may come up before the assignment that
    /// wants it, or after the pair has settled on the boss and serve the next assignment.
    connected: BTreeSet<WorkerId>,
    /// Peers for which the boss relays, as it has said since the last assignment. A change of who shares the stages may have
    /// waited here for longer than that.
    told: BTreeSet<WorkerId>,
    /// Connections of which it is being found out what they are like.
    measuring: BTreeSet<Peer>,
    /// Their figures.
    reports: BTreeMap<Peer, LinkReport>,
}

/// The actions for the links of a new assignment.
pub(super) struct Opening {
    pub(super) dial: Vec<(WorkerId, SocketAddr)>,
    pub(super) unreachable: Vec<WorkerId>,
}

impl Links {
    /// Starts over with these peers.
    pub(super) fn open(&mut self, now: Micros, me: WorkerId, peers: &[PeerAddress]) -> Opening {
        let mut opening = Opening { dial: Vec::new(), unreachable: Vec::new() };
        let mut links = BTreeMap::new();
        for peer in peers {
            let link = match (self.connected.contains(&peer.worker), peer.dial, peer.address) {
                _ if peer.relayed || self.told.contains(&peer.worker) => Link::Relayed,
                (true, ..) => Link::Direct,
                (false, false, _) => Link::Awaited,
                (false, true, Some(address)) => {
                    opening.dial.push((peer.worker, address));
                    Link::Dialling(now.plus_seconds(DIAL_SECONDS))
                }
                (false, true, None) => {
                    opening.unreachable.push(peer.worker);
                    Link::Relayed
                }
            };
            links.insert(peer.worker, link);
        }
        self.me = Some(me);
        self.links = links;
        opening
    }

    /// Whether it is known of every peer how to reach it.
    pub(super) fn settled(&self) -> bool {
        self.links.values().all(|link| matches!(link, Link::Direct | Link::Relayed))
    }

    pub(super) fn measuring(&mut self, peer: Peer) {
        self.measuring.insert(peer);
    }

    pub(super) fn measured(&mut self, peer: Peer, report: Option<LinkReport>) {
        self.measuring.remove(&peer);
        self.reports.extend(report.map(|report| (peer, report)));
    }

    /// The known figures of the connections, as reported to the boss.
    pub(super) fn reports(&self) -> Vec<Head> {
        let head = |(peer, report): (&Peer, &LinkReport)| {
            let peer = match peer {
                Peer::Boss => None,
                Peer::Worker(worker) => Some(*worker),
            };
            Head::LinkReport { peer, report: *report }
        };
        self.reports.iter().map(head).collect()
    }

    /// Whether all that can be known of the connections is.
    pub(super) fn all_measured(&self) -> bool {
        self.measuring.is_empty()
    }

    pub(super) fn up(&mut self, peer: WorkerId) {
        self.connected.insert(peer);
        match self.links.get_mut(&peer) {
            Some(Link::Relayed) => {} // too late: the pair has settled on the boss
            Some(link) => *link = Link::Direct,
            None => {}
        }
    }

    /// A connection failed or broke; says whether it had been up, or nothing where that is no news.
    pub(super) fn down(&mut self, peer: WorkerId) -> Option<bool> {
        self.connected.remove(&peer);
        self.measuring.remove(&Peer::Worker(peer));
        self.reports.remove(&Peer::Worker(peer));
        let link = self.links.get_mut(&peer)?;
        let was_up = match link {
            Link::Direct => true,
            Link::Dialling(_) => false,
            Link::Awaited | Link::Relayed => return None,
        };
        *link = Link::Relayed;
        Some(was_up)
    }

    /// Whom the boss relays for is found out anew.
    pub(super) fn forget_relays(&mut self) {
        self.told.clear();
    }

    pub(super) fn relay(&mut self, peer: WorkerId) {
        self.told.insert(peer);
        if let Some(link) = self.links.get_mut(&peer) {
            *link = Link::Relayed;
        }
    }

    /// The next time at which a dial counts as failed.
    pub(super) fn deadline(&self) -> Option<Micros> {
        let dialling = self.links.values().filter_map(|link| match link {
            Link::Dialling(until) => Some(*until),
            _ => None,
        });
        dialling.min()
    }

    /// Peers whose dial has taken too long.
    pub(super) fn overdue(&self, now: Micros) -> Vec<WorkerId> {
        let late = |link: &Link| matches!(link, Link::Dialling(until) if *until <= now);
        self.links.iter().filter(|(_, link)| late(link)).map(|(peer, _)| *peer).collect()
    }

    /// The way to a worker, which need not be one that this worker exchanges tensors with in a round.
    pub(super) fn reach(&self, worker: WorkerId, head: Head) -> Destination {
        match (self.me, self.links.contains_key(&worker)) {
            (Some(me), false) if me != worker => {
                Destination { peer: Peer::Boss, route: Some(Route { from: me, to: worker }), head }
            }
            _ => self.to(worker, head),
        }
    }

    /// The way to a worker.
    pub(super) fn to(&self, worker: WorkerId, head: Head) -> Destination {
        match (self.me, self.links.get(&worker)) {
            (Some(me), Some(Link::Relayed)) => {
                Destination { peer: Peer::Boss, route: Some(Route { from: me, to: worker }), head }
            }
            _ => Destination { peer: Peer::Worker(worker), route: None, head },
        }
    }
}
