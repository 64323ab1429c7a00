//! Feeds the boss's session with what happens and carries out what it wants.

use crate::clock::Clock;
use link::connection::outgoing;
use link::connection::{Connection, Event, BROKE_PROTOCOL, DONE, SENT_AWAY};
use link::quic::listening::Listening;
use link::trust::acceptor::{Accept, Acceptor, Arrival};
use link::trust::handshake::{Handshake, WorkerInfo};
use link::trust::listener::{Admission, Admitted};
use link::{LinkError, Listener};
use link::{Payload, Slots};
use pipeline::boss::{BossSession, Request, Setup};
use pipeline::effect::{Answer, BossEffect, Destination, Frame, Peer};
use pipeline::ids::WorkerId;
use pipeline::message::{Failure, Progress};
use pipeline::replicas::BucketBytes;
use pipeline::Plan;
use quinn::VarInt;
use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// Workers close their connections when told to stop; who has not done so after this long is left.
const FAREWELL: Duration = Duration::from_secs(2);

/// So many workers may come in one run, those that have left counted.
const MOST_WORKERS: usize = u16::MAX as usize;

type Reply = oneshot::Sender<Result<Answer, Failure>>;

enum Input {
    Request(Request, Reply),
    Lost(WorkerId, String),
    /// Workers may come and go, and are told of here.
    Open(mpsc::UnboundedSender<PoolEvent>),
    /// How the run stands, for this worker.
    Tell(WorkerId, Progress),
    /// Closes the connection to a worker.
    Dismiss(WorkerId, String, VarInt),
    Leave,
    Stop(oneshot::Sender<()>),
}

/// Who comes and goes in a run that is open.
#[derive(Debug)]
pub enum PoolEvent {
    /// A worker is here. It has no stages yet.
    Joined {
        /// Its number.
        worker: WorkerId,
        /// What it says of itself.
        info: WorkerInfo,
        /// Where it calls from.
        address: SocketAddr,
    },
    /// A worker is gone.
    Left {
        /// Its number.
        worker: WorkerId,
        /// Why, as far as known.
        reason: String,
    },
}

/// The user's end of a running boss. When the last clone is dropped the connections are closed.
#[derive(Clone)]
pub struct Handle {
    inputs: mpsc::UnboundedSender<Input>,
    /// Where tensors of requests and answers are kept.
    pub slots: Slots,
    workers: Vec<WorkerInfo>,
    status: Arc<Mutex<String>>,
}

impl Handle {
    /// Has a request carried out. Tensors in it, and in the answer, are in [`Handle::slots`]. It is in line when this returns,
    /// whether or not somebody waits for the answer yet.
    pub fn call(&self, request: Request) -> impl Future<Output = Result<Answer, Failure>> + Send + 'static {
        let (reply, answer) = oneshot::channel();
        let sent = self.inputs.send(Input::Request(request, reply)).is_ok();
        async move {
            let ended = || Failure::new("the run has ended");
            match sent {
                true => answer.await.unwrap_or_else(|_| Err(ended())),
                false => Err(ended()),
            }
        }
    }

    /// Tells that a worker is known to be gone, sooner than its connection shows it.
    pub fn lost(&self, worker: WorkerId, reason: &str) {
        self.inputs.send(Input::Lost(worker, reason.to_string())).ok();
    }

    /// From now on workers may come and go; who does is told here.
    pub fn open(&self) -> mpsc::UnboundedReceiver<PoolEvent> {
        let (sender, events) = mpsc::unbounded_channel();
        self.inputs.send(Input::Open(sender)).ok();
        events
    }

    /// Has a worker print how the run stands.
    pub fn tell(&self, worker: WorkerId, progress: Progress) {
        self.inputs.send(Input::Tell(worker, progress)).ok();
    }

    /// Closes the connection to a worker, which is told why and may come again.
    pub fn dismiss(&self, worker: WorkerId, reason: &str) {
        self.inputs.send(Input::Dismiss(worker, reason.to_string(), BROKE_PROTOCOL)).ok();
    }

    /// The same, and the worker does not come again.
    pub fn send_away(&self, worker: WorkerId, reason: &str) {
        self.inputs.send(Input::Dismiss(worker, reason.to_string(), SENT_AWAY)).ok();
    }

    /// Closes all connections, as where the last clone of this is dropped.
    pub fn leave(&self) {
        self.inputs.send(Input::Leave).ok();
    }

    /// What whoever holds the ticket is shown who asks how the run stands; JSON.
    pub fn show(&self, status: String) {
        *self.status.lock().unwrap_or_else(PoisonError::into_inner) = status;
    }

    /// Ends the run: every worker is told, and has closed its connection when this returns, or has
    /// been given two seconds.
    pub async fn stop(&self) {
        let (done, stopped) = oneshot::channel();
        if self.inputs.send(Input::Stop(done)).is_ok() {
            stopped.await.ok();
        }
    }

    /// What the workers said of themselves, by number.
    pub fn workers(&self) -> &[WorkerInfo] {
        &self.workers
    }
}

/// Starts the run with the first workers that have joined, one for each that the plan has. Others
/// wait for a place. At most `most_waiting` batches wait for their backward pass. Replicas exchange
/// gradients in buckets of the sizes in `buckets`. Notices for the user go to `notice`.
///
/// # Errors
/// Fewer workers have joined than the plan has.
pub fn start(
    listener: Listener,
    plan: Plan,
    buckets: BucketBytes,
    seed: u64,
    most_waiting: usize,
    mut notice: impl FnMut(String) + Send + 'static,
) -> Result<Handle, LinkError> {
    let Admitted { members, listening, acceptor, admission, events } = listener.finish(plan.workers())?;
    if let Some(small) = &listening.small_buffers {
        notice(small.to_string());
    }
    let addresses = members.iter().map(|m| m.info.direct.then_some(m.address)).collect();
    let setup = Setup { plan, buckets, seed, addresses, most_waiting };
    let (inputs, requests) = mpsc::unbounded_channel();
    let slots = Slots::default();
    let status = Arc::new(Mutex::new("{}".to_string()));
    let workers = members.iter().map(|m| m.info.clone()).collect();
    let driver = Driver {
        session: BossSession::new(setup),
        connections: members.into_iter().map(|m| m.connection).collect(),
        slots: slots.clone(),
        clock: Clock::start(),
        replies: BTreeMap::new(),
        next_request: 0,
        notice: Box::new(notice),
        admission,
        pool: None,
        status: status.clone(),
    };
    tokio::spawn(driver.run(listening, acceptor, events, requests));
    Ok(Handle { inputs, slots, workers, status })
}

struct Driver {
    session: BossSession,
    connections: Vec<Connection>,
    slots: Slots,
    clock: Clock,
    replies: BTreeMap<u64, Reply>,
    next_request: u64,
    notice: Box<dyn FnMut(String) + Send>,
    admission: Admission,
    /// Who is told of those who come and go, where they may.
    pool: Option<mpsc::UnboundedSender<PoolEvent>>,
    status: Arc<Mutex<String>>,
}

impl Driver {
    async fn run(
        mut self,
        listening: Listening,
        mut acceptor: Acceptor,
        mut events: mpsc::Receiver<Event>,
        mut inputs: mpsc::UnboundedReceiver<Input>,
    ) {
        loop {
            self.carry_out();
            let deadline = self.session.poll_timeout();
            tokio::select! {
                Some(event) = events.recv() => self.on_event(event),
                input = inputs.recv() => match input {
                    Some(Input::Request(request, reply)) => self.request(request, reply),
                    Some(Input::Lost(worker, reason)) => self.lost(worker, &reason),
                    Some(Input::Open(pool)) => {
                        self.session.open();
                        for (worker, reason) in self.session.lost() {
                            pool.send(PoolEvent::Left { worker, reason: reason.to_string() }).ok();
                        }
                        self.pool = Some(pool);
                    }
                    Some(Input::Tell(worker, progress)) => self.session.tell(worker, progress),
                    Some(Input::Dismiss(worker, reason, code)) => self.hang_up(worker, &reason, code),
                    Some(Input::Stop(done)) => {
                        self.stop(&mut events).await;
                        done.send(()).ok();
                        break;
                    }
                    Some(Input::Leave) | None => {
                        for connection in &self.connections {
                            connection.close(DONE, "the boss left the run");
                        }
                        drop(acceptor);
                        return listening.keep();
                    }
                },
                Some(accept) = acceptor.next() => {
                    if let Accept::Arrived(arrival) = accept {
                        self.on_arrival(arrival);
                    }
                }
                // The boss session asks for no timeouts yet; the driver keeps the contract anyway.
                () = self.clock.at(deadline) => {}
            }
        }
        drop(acceptor);
        listening.endpoint.close(DONE, b"the boss left the run");
        tokio::time::timeout(FAREWELL, listening.endpoint.wait_idle()).await.ok();
    }

    /// Lets a worker in where workers may come and go.
    fn on_arrival(&mut self, arrival: Arrival) {
        let info = match &arrival.handshake {
            Handshake::Look => {
                let status = self.status.lock().unwrap_or_else(PoisonError::into_inner).clone();
                return arrival.show(status);
            }
            Handshake::Peer { .. } => return arrival.refuse("this is a boss, not a worker".into(), false),
            Handshake::Join(info) => info.clone(),
        };
        let places = self.connections.len();
        match &self.pool {
            None => arrival.refuse_late(places),
            Some(_) if places >= MOST_WORKERS => {
                arrival.refuse(format!("{places} workers have come in this run, which is as many as can"), false);
            }
            Some(pool) => {
                let worker = WorkerId(places as u16);
                let Some(member) = self.admission.seat(arrival, worker, info.clone()) else { return };
                let address = member.address;
                self.connections.push(member.connection);
                self.session.on_joined(info.direct.then_some(address));
                pool.send(PoolEvent::Joined { worker, info, address }).ok();
            }
        }
    }

    fn lost(&mut self, worker: WorkerId, reason: &str) {
        if let Some(pool) = &self.pool {
            pool.send(PoolEvent::Left { worker, reason: reason.to_string() }).ok();
        }
        self.session.on_lost(self.clock.now(), worker, reason);
    }

    fn hang_up(&mut self, worker: WorkerId, reason: &str, code: VarInt) {
        if let Some(connection) = self.connections.get(worker.0 as usize) {
            connection.close(code, reason);
        }
        self.lost(worker, reason);
    }

    fn request(&mut self, request: Request, reply: Reply) {
        let number = self.next_request;
        self.next_request += 1;
        self.replies.insert(number, reply);
        self.session.on_request(self.clock.now(), number, request);
    }

    /// Tells the workers, once they have cleared up after a request that failed, and hears them out.
    async fn stop(&mut self, events: &mut mpsc::Receiver<Event>) {
        let (reply, _answer) = oneshot::channel();
        self.request(Request::Stop, reply);
        let farewell = async {
            while self.connections.iter().any(|connection| !connection.is_closed()) {
                self.carry_out();
                // A connection that closes is an event, too.
                let Some(event) = events.recv().await else { return };
                self.on_event(event);
            }
        };
        tokio::time::timeout(FAREWELL, farewell).await.ok();
    }

    fn on_event(&mut self, event: Event) {
        let now = self.clock.now();
        match event {
            Event::Frame { from: Peer::Worker(from), envelope, payloads } => {
                let slots = payloads.into_iter().map(|p| self.slots.put(p)).collect();
                self.session.on_frame(now, from, Frame { route: envelope.route, head: envelope.head, slots });
            }
            Event::Closed { from: Peer::Worker(from), reason, .. } => self.lost(from, &reason),
            // Workers measure and report.
            Event::Frame { from: Peer::Boss, .. } | Event::Closed { from: Peer::Boss, .. } | Event::Measured { .. } => {
            }
        }
    }

    fn carry_out(&mut self) {
        while let Some(effect) = self.session.poll_effect() {
            match effect {
                BossEffect::Send { to, slots } => {
                    if let Err(reason) = outgoing::take(&self.slots, &slots).and_then(|t| self.send(&to, &t)) {
                        self.unsent(&to, &reason);
                    }
                }
                BossEffect::Reply { request, result } => self.reply(request, result),
                BossEffect::Drop(slots) => slots.into_iter().for_each(|slot| drop(self.slots.take(slot))),
                BossEffect::Hangup { worker, reason } => {
                    self.hang_up(worker, &format!("it broke the protocol: it {reason}"), BROKE_PROTOCOL);
                }
                BossEffect::Dismiss { worker, reason } => self.hang_up(worker, &reason, BROKE_PROTOCOL),
                BossEffect::Notice(text) => (self.notice)(text),
            }
        }
    }

    fn send(&self, to: &[Destination], tensors: &[Payload]) -> Result<(), String> {
        for destination in to {
            let Peer::Worker(worker) = destination.peer else { continue };
            let (way, head) = outgoing::head(destination, tensors)?;
            // A connection that is gone was or will be reported to the session as lost.
            if let Some(connection) = self.connections.get(worker.0 as usize) {
                connection.send(way, head, tensors.iter().map(|t| t.bytes.clone()).collect());
            }
        }
        Ok(())
    }

    /// A frame that cannot be written leaves its receivers waiting: the run ends for them.
    fn unsent(&mut self, to: &[Destination], reason: &str) {
        for destination in to {
            if let Peer::Worker(worker) = destination.peer {
                self.lost(worker, reason);
            }
        }
    }

    fn reply(&mut self, request: u64, result: Result<Answer, Failure>) {
        let Some(reply) = self.replies.remove(&request) else { return };
        // A caller that no longer waits (its future was dropped) leaves tensors behind.
        if let Err(Ok(answer)) = reply.send(result) {
            let slots = answer.outputs.iter().map(|(.., slot)| *slot).chain(answer.state.iter().map(|(_, s)| *s));
            slots.for_each(|slot| drop(self.slots.take(slot)));
        }
    }
}
