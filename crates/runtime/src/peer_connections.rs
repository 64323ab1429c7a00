//! A worker's connections: to the boss, and to the other workers of its run.

use crate::log_fields::{log_message, log_sent};
use link::admission::acceptor::{Accept, Acceptor, Caller};
use link::admission::handshake::{self, Handshake, HandshakeReply};
use link::admission::join::{dial_peer, JoinedRun};
use link::connection::outgoing::{self, Channel};
use link::connection::{Connection, ConnectionEvent, EstablishedConnection, SilenceLimit};
use link::quic::close_codes::PROTOCOL_VIOLATION;
use link::quic::endpoint::AcceptPolicy;
use link::{LinkError, Payload, Ticket, Transport};
use pipeline::effect::{Destination, Peer};
use pipeline::ids::WorkerId;
use pipeline::message::{NoMessage, ToBoss, ToWorker};
use quinn::{Endpoint, VarInt};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use tokio::sync::mpsc;
use tracing::{debug, Instrument};

/// The most dialled connections that wait for the driver.
const MAX_DIALLED: usize = 16;

/// The connections of a worker in one run.
pub(crate) struct PeerConnections {
    /// This worker's number.
    me: WorkerId,
    run: u64,
    transport: Transport,
    boss: Connection<ToWorker>,
    boss_address: SocketAddr,
    workers: BTreeMap<WorkerId, Connection<ToWorker>>,
    /// The number of the last connection to each worker that broke the protocol.
    hung_up: BTreeMap<WorkerId, u64>,
    endpoint: Endpoint,
    ticket: Ticket,
    events: mpsc::Sender<ConnectionEvent<ToWorker>>,
    dialled: mpsc::Sender<DialledWorker>,
}

/// The result of dialling another worker.
pub(crate) struct DialledWorker {
    pub(crate) worker: WorkerId,
    pub(crate) result: Result<EstablishedConnection, LinkError>,
}

/// An event of a worker's connections.
pub(crate) enum PeerEvent {
    /// A connection reports something.
    Connection(ConnectionEvent<ToWorker>),
    /// Another worker was dialled.
    Dialled(DialledWorker),
    /// Another process calls.
    Accept(Accept),
}

/// The sources of [`PeerEvent`]s.
pub(crate) struct PeerEvents {
    connections: mpsc::Receiver<ConnectionEvent<ToWorker>>,
    dialled: mpsc::Receiver<DialledWorker>,
    acceptor: Acceptor,
}

impl PeerEvents {
    /// The next event. Cancel safe.
    pub(crate) async fn next(&mut self) -> PeerEvent {
        tokio::select! {
            Some(event) = self.connections.recv() => PeerEvent::Connection(event),
            Some(dialled) = self.dialled.recv() => PeerEvent::Dialled(dialled),
            Some(accept) = self.acceptor.next() => PeerEvent::Accept(accept),
            else => std::future::pending().await,
        }
    }
}

impl PeerConnections {
    /// Starts with the connection to the boss, and accepts other workers.
    pub(crate) fn start(
        joined: JoinedRun,
        endpoint: &Endpoint,
        ticket: &Ticket,
    ) -> Result<(Self, PeerEvents), LinkError> {
        let JoinedRun { worker, run, boss, boss_address, sender, events, transport, .. } = joined;
        let acceptor = Acceptor::open(endpoint.clone(), AcceptPolicy::of_worker(ticket)?);
        boss.negotiate(transport);
        let (dialled_sender, dialled) = mpsc::channel(MAX_DIALLED);
        let connections = PeerConnections {
            me: worker,
            run,
            transport,
            boss,
            boss_address,
            workers: BTreeMap::new(),
            hung_up: BTreeMap::new(),
            endpoint: endpoint.clone(),
            ticket: ticket.clone(),
            events: sender,
            dialled: dialled_sender,
        };
        Ok((connections, PeerEvents { connections: events, dialled, acceptor }))
    }

    /// Whether a peer is this worker itself.
    pub(crate) fn is_self(&self, peer: Peer) -> bool {
        peer == Peer::Worker(self.me)
    }

    /// Sends a frame to one receiver.
    ///
    /// # Errors
    /// The head cannot be encoded.
    pub(crate) fn send(&self, to: &Destination, tensors: &[Payload]) -> Result<(), String> {
        let (channel, head) = outgoing::encode_head(to, tensors)?;
        let connection = match to.peer {
            Peer::Boss => Some(&self.boss),
            Peer::Worker(worker) => self.workers.get(&worker),
        };
        // The session knows, or will soon know, that a missing connection is lost.
        if let Some(connection) = connection {
            log_sent(to.peer, &to.head, tensors);
            connection.send(channel, head, tensors.iter().map(|t| t.bytes.clone()).collect());
        }
        Ok(())
    }

    /// Sends a message to the boss.
    ///
    /// # Errors
    /// The message cannot be encoded.
    pub(crate) fn tell(&self, message: ToBoss) -> Result<(), String> {
        log_message("sent", Peer::Boss, &message);
        let head = outgoing::encode_message(message)?;
        self.boss.send(Channel::Control, head, Vec::new());
        Ok(())
    }

    /// Dials another worker. The result is a [`PeerEvent::Dialled`].
    pub(crate) fn dial(&self, worker: WorkerId, address: SocketAddr) {
        let address = self.seen_from_here(address);
        let (endpoint, ticket, dialled) =
            (self.endpoint.clone(), self.ticket.clone(), self.dialled.clone());
        let (me, run) = (self.me, self.run);
        let dial = async move {
            let result = dial_peer(&endpoint, address, &ticket, me, run).await;
            dialled.send(DialledWorker { worker, result }).await.ok();
        };
        tokio::spawn(dial.in_current_span());
    }

    /// Lets a worker with this address dial this one through the firewall of this one.
    pub(crate) fn punch_hole(&self, address: SocketAddr) {
        let address = self.seen_from_here(address);
        if !address.ip().is_loopback() {
            if let Err(error) = link::punch_hole(&self.endpoint, &self.ticket, address) {
                debug!(%address, %error, "no hole is punched");
            }
        }
    }

    /// The address of a worker, which the boss tells as it sees it.
    fn seen_from_here(&self, address: SocketAddr) -> SocketAddr {
        // The boss knows a worker of its own machine by the loopback address.
        let mut of_boss = self.boss_address;
        of_boss.set_port(address.port());
        match (address, of_boss) {
            (address, of_boss) if address.ip().is_loopback() => of_boss,
            // On one link, its name is the one by which this worker reaches the boss.
            (SocketAddr::V6(mut own), SocketAddr::V6(boss)) if own.ip().is_unicast_link_local() => {
                own.set_scope_id(boss.scope_id());
                own.into()
            }
            (address, _) => address,
        }
    }

    /// Starts the connection to a worker that this end dialled.
    pub(crate) fn on_dialled(&mut self, worker: WorkerId, established: EstablishedConnection) {
        let connection = self.connect(worker, established);
        connection.negotiate(self.transport);
        self.workers.insert(worker, connection);
    }

    /// Starts the connection to a worker of this run that called, and returns its number. Refuses
    /// every other caller.
    pub(crate) fn on_caller(&mut self, caller: Caller) -> Option<WorkerId> {
        let refusal = match &caller.handshake {
            Handshake::Join(_) | Handshake::Status => {
                "this is a worker, not a boss; check MODEL_HOST and MODEL_PORT".into()
            }
            Handshake::Peer { worker, run } if *run != self.run || *worker == self.me => {
                "this worker is in another run".into()
            }
            Handshake::Peer { worker, .. } if self.is_connected_elsewhere(*worker, &caller) => {
                format!("{worker} is connected from another address")
            }
            Handshake::Peer { worker, .. } => {
                let worker = *worker;
                let reply = handshake::encode(&HandshakeReply::Accepted).ok()?;
                let connection = self.connect(worker, caller.connection);
                connection.send(Channel::Control, reply, Vec::new());
                self.workers.insert(worker, connection);
                return Some(worker);
            }
        };
        caller.refuse(refusal);
        None
    }

    /// Whether the caller claims to be a worker that is connected from another address. A worker
    /// whose old connection is lost calls again from the same address.
    fn is_connected_elsewhere(&self, worker: WorkerId, caller: &Caller) -> bool {
        let current = self.workers.get(&worker).filter(|connection| !connection.is_closed());
        current.is_some_and(|connection| connection.address() != caller.address())
    }

    fn connect(
        &self,
        worker: WorkerId,
        established: EstablishedConnection,
    ) -> Connection<ToWorker> {
        let limit = SilenceLimit::BETWEEN_WORKERS;
        let peer = Peer::Worker(worker);
        Connection::start::<NoMessage>(established, peer, &self.events, self.transport, limit)
    }

    /// Removes the connection with this number, unless a newer connection to the same worker took
    /// its place. Returns whether it did.
    pub(crate) fn remove(&mut self, worker: WorkerId, connection: u64) -> bool {
        let is_current = self.workers.get(&worker).is_some_and(|c| c.id() == connection);
        if is_current {
            self.workers.remove(&worker);
        }
        is_current
    }

    /// Closes the connection to a worker that broke the protocol.
    pub(crate) fn hang_up(&mut self, worker: WorkerId, reason: &str) {
        if let Some(connection) = self.workers.get(&worker) {
            connection.close(PROTOCOL_VIOLATION, reason);
            self.hung_up.insert(worker, connection.id());
        }
    }

    /// Whether this is the connection that was last closed because its worker broke the protocol.
    /// Frames that had arrived by then may be reported when the next one has begun.
    pub(crate) fn is_hung_up(&self, peer: Peer, connection: u64) -> bool {
        matches!(peer, Peer::Worker(worker) if self.hung_up.get(&worker) == Some(&connection))
    }

    /// Closes all connections.
    pub(crate) fn close(&self, code: VarInt, reason: &str) {
        for connection in self.workers.values().chain([&self.boss]) {
            connection.close(code, reason);
        }
    }
}
