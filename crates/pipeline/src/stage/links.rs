//! The links to other workers: direct, or relayed by the boss.

use crate::effect::{Destination, Micros, Peer};
use crate::frame::Route;
use crate::ids::WorkerId;
use crate::message::{LinkReport, PeerAddress, TensorHead, ToBoss};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

/// The time that a direct connection may take before the boss relays instead.
const DIAL_SECONDS: u64 = 3;

/// The link to another worker.
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
    /// Open connections, whether used or not. One may open before the assignment that uses it. It
    /// may also open after the pair began to use the boss as relay, and then serves the next
    /// assignment.
    connected: BTreeSet<WorkerId>,
    /// Peers for which the boss relays, according to its messages since the last assignment. A
    /// change of membership may have waited here when the message came.
    relayed: BTreeSet<WorkerId>,
    /// Connections that are being measured.
    measuring: BTreeSet<Peer>,
    /// Their measured figures.
    reports: BTreeMap<Peer, LinkReport>,
}

/// The connections of a new assignment that need an action.
#[derive(Default)]
pub(super) struct Opening {
    pub(super) dial: Vec<(WorkerId, SocketAddr)>,
    /// The addresses of the peers that dial this worker.
    pub(super) await_from: Vec<SocketAddr>,
    pub(super) unreachable: Vec<WorkerId>,
}

impl Links {
    /// Replaces all links by links to these peers.
    pub(super) fn open(&mut self, now: Micros, me: WorkerId, peers: &[PeerAddress]) -> Opening {
        let mut opening = Opening::default();
        let mut links = BTreeMap::new();
        for peer in peers {
            let link = match (self.connected.contains(&peer.worker), peer.dial, peer.address) {
                _ if peer.relayed || self.relayed.contains(&peer.worker) => Link::Relayed,
                (true, ..) => Link::Direct,
                (false, false, address) => {
                    opening.await_from.extend(address);
                    Link::Awaited
                }
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

    /// Whether every link is direct or relayed.
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
    pub(super) fn reports(&self) -> Vec<ToBoss> {
        let head = |(peer, report): (&Peer, &LinkReport)| {
            let peer = match peer {
                Peer::Boss => None,
                Peer::Worker(worker) => Some(*worker),
            };
            ToBoss::LinkReport { peer, report: *report }
        };
        self.reports.iter().map(head).collect()
    }

    /// Whether no connection is being measured.
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

    /// A connection failed or broke. Returns whether it was up, or `None` if the boss need not
    /// know.
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

    /// Forgets for which peers the boss relays.
    pub(super) fn forget_relays(&mut self) {
        self.relayed.clear();
    }

    pub(super) fn relay(&mut self, peer: WorkerId) {
        self.relayed.insert(peer);
        if let Some(link) = self.links.get_mut(&peer) {
            *link = Link::Relayed;
        }
    }

    /// The next time at which a connection attempt fails.
    pub(super) fn deadline(&self) -> Option<Micros> {
        let dialling = self.links.values().filter_map(|link| match link {
            Link::Dialling(until) => Some(*until),
            _ => None,
        });
        dialling.min()
    }

    /// Peers whose connection attempt has taken too long.
    pub(super) fn overdue(&self, now: Micros) -> Vec<WorkerId> {
        let late = |link: &Link| matches!(link, Link::Dialling(until) if *until <= now);
        self.links.iter().filter(|(_, link)| late(link)).map(|(peer, _)| *peer).collect()
    }

    /// The way to any worker. If there is no link to it, the boss relays.
    pub(super) fn reach(&self, worker: WorkerId, head: TensorHead) -> Destination {
        match (self.me, self.links.contains_key(&worker)) {
            (Some(me), false) if me != worker => {
                Destination { peer: Peer::Boss, route: Some(Route { from: me, to: worker }), head }
            }
            _ => self.to(worker, head),
        }
    }

    /// The way to a worker with a link.
    pub(super) fn to(&self, worker: WorkerId, head: TensorHead) -> Destination {
        match (self.me, self.links.get(&worker)) {
            (Some(me), Some(Link::Relayed)) => {
                Destination { peer: Peer::Boss, route: Some(Route { from: me, to: worker }), head }
            }
            _ => Destination { peer: Peer::Worker(worker), route: None, head },
        }
    }
}
