//! The boss's side of joining: workers come in until every place is taken.

use crate::connection::outgoing::Channel;
use crate::connection::{Connection, ConnectionEvent, SilenceLimit};
use crate::error::LinkError;
use crate::memory::shared::Transport;
use crate::quic::close_codes::DONE;
use crate::quic::endpoint::AcceptPolicy;
use crate::quic::listening_endpoint::ListeningEndpoint;
use crate::trust::acceptor::{Accept, Acceptor, Caller};
use crate::trust::handshake::{self, Handshake, HandshakeReply, WorkerInfo};
use crate::trust::identity::Identity;
use crate::trust::join::EVENTS;
use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use pipeline::effect::Peer;
use pipeline::ids::WorkerId;
use quinn::Endpoint;
use std::net::SocketAddr;
use tokio::sync::mpsc;

/// An endpoint that waits for workers.
pub struct Listener {
    listening: CloseOnDrop,
    address: SocketAddr,
    run: u64,
    acceptor: Acceptor,
    sender: mpsc::Sender<ConnectionEvent>,
    events: mpsc::Receiver<ConnectionEvent>,
    places: Vec<Option<JoinedWorker>>,
    transport: Transport,
}

/// An event while the boss waits.
#[derive(Debug)]
pub enum ListenerEvent {
    /// A worker took a place.
    Joined {
        /// Its number.
        worker: WorkerId,
        /// Its description of itself.
        info: WorkerInfo,
        /// Its address.
        address: SocketAddr,
    },
    /// A worker left before the run began; its place is free again.
    Left {
        /// Its number.
        worker: WorkerId,
        /// Why, as far as known.
        reason: String,
    },
    /// Somebody came who is not let in.
    Rejected {
        /// Where from.
        address: SocketAddr,
        /// Why.
        reason: String,
    },
}

impl Listener {
    /// Listens with places for `workers` workers. Must be called within a tokio runtime.
    pub fn open(identity: &Identity, address: SocketAddr, workers: usize) -> Result<Self, LinkError> {
        let listening = ListeningEndpoint::open(identity, address)?;
        let address = listening.address;
        let mut run = [0; 8];
        SystemRandom::new().fill(&mut run).map_err(|_| LinkError::tls("no randomness from the system"))?;
        let (sender, events) = mpsc::channel(EVENTS);
        Ok(Listener {
            acceptor: Acceptor::open(listening.endpoint.clone(), AcceptPolicy::of_boss(identity)?),
            listening: CloseOnDrop(Some(listening)),
            address,
            run: u64::from_le_bytes(run),
            sender,
            events,
            places: (0..workers).map(|_| None).collect(),
            transport: Transport::default(),
        })
    }

    /// Sets the transport of the run's connections, between workers, too.
    pub fn transport(self, transport: Transport) -> Self {
        Listener { transport, ..self }
    }

    /// Its address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The number of missing workers.
    pub fn missing(&self) -> usize {
        self.places.iter().filter(|place| place.is_none()).count()
    }

    /// Whether the run could begin with the joined workers and no others: no place before theirs is
    /// free.
    pub fn is_contiguous(&self) -> bool {
        self.places.iter().skip_while(|place| place.is_some()).all(Option::is_none)
    }

    /// Has those who are behind a gap come again, to take places before it.
    pub fn ask_to_rejoin(&mut self) {
        for member in self.places.iter().skip_while(|place| place.is_some()).flatten() {
            member.connection.close(DONE, "join again, a place before this one is free");
        }
    }

    /// The next thing that happens. Cancel safe.
    pub async fn next(&mut self) -> ListenerEvent {
        loop {
            tokio::select! {
                Some(accept) = self.acceptor.next() => match accept {
                    Accept::Authenticated(caller) => {
                        if let Some(event) = self.admit(caller) {
                            return event;
                        }
                    }
                    Accept::Rejected { address, reason } => return ListenerEvent::Rejected { address, reason },
                },
                Some(event) = self.events.recv() => {
                    if let ConnectionEvent::Closed { from: Peer::Worker(worker), connection, reason, .. } = event {
                        let place = self.places.get_mut(worker.0 as usize);
                        // The place may have a new worker by now.
                        if let Some(place) = place.filter(|p| p.as_ref().is_some_and(|m| m.connection.id() == connection)) {
                            *place = None;
                            return ListenerEvent::Left { worker, reason };
                        }
                    }
                }
            }
        }
    }

    fn admit(&mut self, caller: Caller) -> Option<ListenerEvent> {
        let info = match caller.handshake.clone() {
            Handshake::Join(info) => info,
            Handshake::Status => {
                caller.refuse(format!("the run has not begun; {} workers are missing", self.missing()), true);
                return None;
            }
            Handshake::Peer { .. } => {
                caller.refuse("this is a boss, not a worker".into(), false);
                return None;
            }
        };
        let Some(place) = self.places.iter().position(Option::is_none) else {
            caller.refuse_full(self.places.len());
            return None;
        };
        let worker = WorkerId(place as u16);
        let member = self.admission().admit(caller, worker, info.clone())?;
        let address = member.address;
        self.places[place] = Some(member);
        Some(ListenerEvent::Joined { worker, info, address })
    }

    fn admission(&self) -> Admission {
        Admission { run: self.run, transport: self.transport, sender: self.sender.clone() }
    }

    /// The first worker's connection, without a run: for tests.
    pub fn into_first(mut self) -> Option<(JoinedWorker, mpsc::Receiver<ConnectionEvent>, Endpoint, Acceptor)> {
        let member = self.places.first_mut()?.take()?;
        Some((member, self.events, self.listening.0.take()?.endpoint, self.acceptor))
    }

    /// Ends the wait with the first `workers` workers. The others wait for the next boss.
    ///
    /// # Errors
    /// Fewer workers have joined.
    pub fn finish(self, workers: usize) -> Result<Admitted, LinkError> {
        let admission = self.admission();
        let Listener { mut listening, acceptor, events, places, .. } = self;
        let mut members: Vec<JoinedWorker> = places.into_iter().flatten().collect();
        for spare in members.drain(workers.min(members.len())..) {
            spare.connection.close(DONE, "the run goes on without it until it has a place");
        }
        if members.len() != workers {
            let reason = format!("the plan is for {workers} workers, {} are here", members.len());
            return Err(LinkError::Refused { reason, retry: false });
        }
        let Some(listening) = listening.0.take() else { return Err(LinkError::tls("the endpoint is closed")) };
        Ok(Admitted { members, listening, acceptor, admission, events })
    }
}

/// The workers of a run, and what admits others while it runs.
pub struct Admitted {
    /// The workers, by number.
    pub members: Vec<JoinedWorker>,
    /// The boss's endpoint.
    pub listening: ListeningEndpoint,
    /// Accepts callers during the run.
    pub acceptor: Acceptor,
    /// Welcomes those that may join.
    pub admission: Admission,
    /// The events of the members' connections.
    pub events: mpsc::Receiver<ConnectionEvent>,
}

/// A worker with its place.
pub struct JoinedWorker {
    /// Its description of itself.
    pub info: WorkerInfo,
    /// Its address.
    pub address: SocketAddr,
    /// The connection to it.
    pub connection: Connection,
}

/// Admits workers, before the run and during it.
pub struct Admission {
    run: u64,
    transport: Transport,
    sender: mpsc::Sender<ConnectionEvent>,
}

impl Admission {
    /// Welcomes a worker as this number.
    pub fn admit(&self, caller: Caller, worker: WorkerId, info: WorkerInfo) -> Option<JoinedWorker> {
        let welcome =
            handshake::encode(&HandshakeReply::Welcome { worker, run: self.run, transport: self.transport }).ok()?;
        let address = caller.quic.remote_address();
        let control = (caller.send, caller.recv);
        let connection = Connection::start(
            Peer::Worker(worker),
            caller.quic,
            control,
            &self.sender,
            self.transport,
            SilenceLimit::WITH_BOSS,
        );
        connection.send(Channel::Control, welcome, Vec::new());
        Some(JoinedWorker { info, address, connection })
    }
}

/// A listener that is left before its run began closes its connections, so that workers wait for the next
/// boss and not for this one.
struct CloseOnDrop(Option<ListeningEndpoint>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        if let Some(listening) = &self.0 {
            listening.endpoint.close(DONE, b"the boss left before the run began");
        }
    }
}
