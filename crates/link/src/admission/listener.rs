//! How a boss admits workers: before the run until every place is taken, and during the run if it
//! is a pool.

use crate::admission::acceptor::{Accept, Acceptor, Caller};
use crate::admission::handshake::{self, Handshake, HandshakeReply, WorkerInfo};
use crate::admission::join::EVENTS;
use crate::admission::status_text::StatusText;
use crate::connection::liveness::CHECK_INTERVAL;
use crate::connection::outgoing::Channel;
use crate::connection::{Connection, ConnectionEvent, SilenceLimit};
use crate::error::LinkError;
use crate::memory::shared::Transport;
use crate::quic::close_codes::DONE;
use crate::quic::endpoint::AcceptPolicy;
use crate::quic::listening_endpoint::ListeningEndpoint;
use crate::trust::identity::Identity;
use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use pipeline::effect::Peer;
use pipeline::ids::WorkerId;
use pipeline::message::ToBoss;
use pipeline::recovery::{Answer, JoinDesk, Next};
use quinn::Endpoint;
use std::net::SocketAddr;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tracing::{debug, info};

/// A boss that waits for workers.
pub struct Listener {
    listening: CloseOnDrop,
    address: SocketAddr,
    run: u64,
    acceptor: Acceptor,
    sender: mpsc::Sender<ConnectionEvent<ToBoss>>,
    events: mpsc::Receiver<ConnectionEvent<ToBoss>>,
    places: Vec<Option<JoinedWorker>>,
    /// Decides who gets a place, and when the session begins.
    desk: JoinDesk<WorkerInfo>,
    /// The time from which the desk counts.
    opened: Instant,
    transport: Transport,
    status: StatusText,
}

/// The next action of a boss that waits.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum NextStep {
    /// Tell the user that too few workers remain. Comes once.
    AskForMore,
    /// Wait for an event, and not beyond this time.
    Wait(Option<Instant>),
    /// Begin the run with the workers of the first places.
    Begin(usize),
}

/// An event at a boss that waits for workers.
#[derive(Debug)]
pub enum ListenerEvent {
    /// A worker took a place.
    Joined {
        /// Its number.
        worker: WorkerId,
        /// The description that it sent.
        info: Box<WorkerInfo>,
        /// Its address.
        address: SocketAddr,
    },
    /// A worker left before the run began. Its place is free again.
    Left {
        /// Its number.
        worker: WorkerId,
        /// Why, as far as known.
        reason: String,
    },
    /// A caller was rejected.
    Rejected {
        /// Its address.
        address: SocketAddr,
        /// Why it was rejected.
        reason: String,
    },
}

impl Listener {
    /// Listens at an address, with places for `workers` workers. Must be called within a tokio
    /// runtime.
    ///
    /// # Errors
    /// The address cannot be used.
    pub fn open(
        identity: &Identity,
        address: SocketAddr,
        workers: usize,
    ) -> Result<Self, LinkError> {
        let listening = ListeningEndpoint::open(identity, address)?;
        let address = listening.address;
        debug!(%address, workers, "listening");
        let mut run = [0; 8];
        SystemRandom::new()
            .fill(&mut run)
            .map_err(|_| LinkError::tls("no randomness from the system"))?;
        let (sender, events) = mpsc::channel(EVENTS);
        Ok(Listener {
            acceptor: Acceptor::open(listening.endpoint.clone(), AcceptPolicy::of_boss(identity)?),
            listening: CloseOnDrop(Some(listening)),
            address,
            run: u64::from_le_bytes(run),
            sender,
            events,
            places: (0..workers).map(|_| None).collect(),
            desk: JoinDesk::new(workers),
            opened: Instant::now(),
            transport: Transport::default(),
            status: StatusText::default(),
        })
    }

    /// Gives places as this desk says, from now on. No worker has joined yet.
    pub fn desk(self, desk: JoinDesk<WorkerInfo>) -> Self {
        let places = (0..desk.places()).map(|_| None).collect();
        Listener { places, desk, opened: Instant::now(), ..self }
    }

    /// Sets the transport of all connections of the run, also between workers.
    pub fn transport(self, transport: Transport) -> Self {
        Listener { transport, ..self }
    }

    /// Sets the status that callers with the ticket are told, before the run and during it.
    pub fn status(self, status: StatusText) -> Self {
        Listener { status, ..self }
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The number of free places.
    pub fn missing(&self) -> usize {
        self.places.iter().filter(|place| place.is_none()).count()
    }

    /// The descriptions of the workers that have joined.
    pub fn joined(&self) -> impl Iterator<Item = &WorkerInfo> {
        self.places.iter().flatten().map(|member| &member.info)
    }

    /// Returns the next action. Call it after every event. Asks workers to join again if another
    /// order of places is needed.
    pub fn poll(&mut self) -> NextStep {
        for (place, member) in self.places.iter().enumerate() {
            if member.as_ref().is_some_and(|member| member.connection.is_closed()) {
                self.desk.leaving(place);
            }
        }
        loop {
            match self.desk.poll(self.opened.elapsed()) {
                Next::AskToRejoin(places) => self.ask_these_to_rejoin(&places),
                Next::AskForMore => return NextStep::AskForMore,
                // It speaks in a moment, or counts as lost.
                Next::Begin(workers) if self.has_silent(workers) => {
                    return NextStep::Wait(Some(Instant::now() + CHECK_INTERVAL));
                }
                Next::Begin(workers) => return NextStep::Begin(workers),
                Next::Wait(until) => {
                    let until = until.and_then(|until| self.opened.checked_add(until));
                    return NextStep::Wait(until);
                }
            }
        }
    }

    /// Whether one of the first `workers` workers may be gone.
    fn has_silent(&self, workers: usize) -> bool {
        self.places.iter().take(workers).flatten().any(|member| member.connection.is_silent())
    }

    fn ask_these_to_rejoin(&self, places: &[usize]) {
        for member in places.iter().filter_map(|place| self.places.get(*place)?.as_ref()) {
            member.connection.close(DONE, "join again, the run needs another order of its workers");
        }
    }

    /// The next event. Cancel safe.
    pub async fn next(&mut self) -> ListenerEvent {
        loop {
            let event = tokio::select! {
                Some(accept) = self.acceptor.next() => self.on_accept(accept),
                Some(event) = self.events.recv() => self.on_connection_event(event),
            };
            if let Some(event) = event {
                return event;
            }
        }
    }

    fn on_accept(&mut self, accept: Accept) -> Option<ListenerEvent> {
        match accept {
            Accept::Authenticated(caller) => self.admit(*caller),
            Accept::Rejected { address, reason } => {
                Some(ListenerEvent::Rejected { address, reason })
            }
        }
    }

    fn on_connection_event(&mut self, event: ConnectionEvent<ToBoss>) -> Option<ListenerEvent> {
        let ConnectionEvent::Closed { from: Peer::Worker(worker), connection, reason, .. } = event
        else {
            return None;
        };
        let place = self.places.get_mut(worker.0 as usize)?;
        // A new worker may have the place by now.
        if place.as_ref()?.connection.id() != connection {
            return None;
        }
        *place = None;
        self.desk.left(worker.0 as usize);
        info!(worker = worker.0, reason, "worker left before the run began");
        Some(ListenerEvent::Left { worker, reason })
    }

    fn admit(&mut self, caller: Caller) -> Option<ListenerEvent> {
        let info = match caller.handshake.clone() {
            Handshake::Join(info) => *info,
            Handshake::Status => {
                caller.send_status(&self.status);
                return None;
            }
            Handshake::Peer { .. } => {
                caller.refuse("this is a boss, not a worker".into());
                return None;
            }
        };
        match self.desk.ask(self.opened.elapsed(), &info) {
            Answer::Place(place) => return self.seat(caller, place, info),
            Answer::Full => caller.refuse_full(self.places.len()),
            Answer::Unfit => {
                caller
                    .refuse_until_later("this worker's device does not fit the run's plan".into());
            }
            Answer::Kept => {
                caller.refuse_until_later("the free places are kept for the run's workers".into());
            }
        }
        None
    }

    fn seat(&mut self, caller: Caller, place: usize, info: WorkerInfo) -> Option<ListenerEvent> {
        let worker = WorkerId(place as u16);
        let Some(member) = self.admission().admit(caller, worker, info.clone()) else {
            self.desk.left(place);
            return None;
        };
        let address = member.address;
        self.places[place] = Some(member);
        Some(ListenerEvent::Joined { worker, info: info.into(), address })
    }

    fn admission(&self) -> Admission {
        Admission { run: self.run, transport: self.transport, sender: self.sender.clone() }
    }

    /// Takes the first worker and the rest of the listener apart, without a run. For tests.
    pub fn into_first(
        mut self,
    ) -> Option<(JoinedWorker, mpsc::Receiver<ConnectionEvent<ToBoss>>, Endpoint, Acceptor)> {
        let member = self.places.first_mut()?.take()?;
        Some((member, self.events, self.listening.0.take()?.endpoint, self.acceptor))
    }

    /// Ends the wait with the first `workers` workers. The others are disconnected, and may join
    /// again.
    ///
    /// # Errors
    /// Fewer workers have joined.
    pub fn finish(self, workers: usize) -> Result<Admitted, LinkError> {
        let admission = self.admission();
        let Listener { mut listening, acceptor, events, places, status, .. } = self;
        let mut members: Vec<JoinedWorker> = places.into_iter().flatten().collect();
        for spare in members.drain(workers.min(members.len())..) {
            spare
                .connection
                .close(DONE, "the run begins without it; join again, a place may become free");
        }
        if members.len() != workers {
            let reason =
                format!("the plan is for {workers} workers, but {} have joined", members.len());
            return Err(LinkError::Refused { reason, retry: false });
        }
        let Some(listening) = listening.0.take() else {
            return Err(LinkError::tls("the endpoint is closed"));
        };
        Ok(Admitted { members, listening, acceptor, admission, events, status })
    }
}

/// The workers of a run, and the means to admit others during the run.
pub struct Admitted {
    /// The workers, by number.
    pub members: Vec<JoinedWorker>,
    /// The boss's endpoint.
    pub listening: ListeningEndpoint,
    /// Accepts callers during the run.
    pub acceptor: Acceptor,
    /// Gives places to callers.
    pub admission: Admission,
    /// The events of the members' connections.
    pub events: mpsc::Receiver<ConnectionEvent<ToBoss>>,
    /// The status for callers that ask.
    pub status: StatusText,
}

/// A worker that has a place.
pub struct JoinedWorker {
    /// The description that it sent.
    pub info: WorkerInfo,
    /// Its address.
    pub address: SocketAddr,
    /// The connection to it.
    pub connection: Connection<ToBoss>,
}

/// Gives places to workers, before the run and during it.
pub struct Admission {
    run: u64,
    transport: Transport,
    sender: mpsc::Sender<ConnectionEvent<ToBoss>>,
}

impl Admission {
    /// Gives a worker this number, and starts its connection. Returns `None` if the welcome cannot
    /// be encoded.
    pub fn admit(
        &self,
        caller: Caller,
        worker: WorkerId,
        info: WorkerInfo,
    ) -> Option<JoinedWorker> {
        let welcome = handshake::encode(&HandshakeReply::Welcome {
            worker,
            run: self.run,
            transport: self.transport,
        })
        .ok()?;
        let address = caller.address();
        info!(worker = worker.0, %address, host = info.host, device = info.device, "worker joined");
        let connection = Connection::start::<ToBoss>(
            caller.connection,
            Peer::Worker(worker),
            &self.sender,
            self.transport,
            SilenceLimit::WITH_BOSS,
        );
        connection.send(Channel::Control, welcome, Vec::new());
        Some(JoinedWorker { info, address, connection })
    }
}

/// Closes the connections of a listener that is dropped before its run began, so that workers wait
/// for the next boss.
struct CloseOnDrop(Option<ListeningEndpoint>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        if let Some(listening) = &self.0 {
            listening.endpoint.close(DONE, b"the boss left before the run began");
        }
    }
}
