//! Feeds the boss's session with what happens and carries out what it wants.

use crate::clock::Clock;
use link::connection::outgoing;
use link::connection::{Connection, ConnectionEvent};
use link::quic::close_codes::{DONE, EVICTED, PROTOCOL_VIOLATION};
use link::quic::listening_endpoint::ListeningEndpoint;
use link::trust::acceptor::{Accept, Acceptor, Caller};
use link::trust::handshake::{Handshake, WorkerInfo};
use link::trust::listener::{Admission, Admitted};
use link::{LinkError, Listener};
use link::{Payload, Slots};
use parking_lot::Mutex;
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
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// Workers close their connections when told to stop; who has not done so after this long is left.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// The most workers of one run, those that have left included.
const MAX_WORKERS: usize = u16::MAX as usize;

type ReplySender = oneshot::Sender<Result<Answer, Failure>>;

enum Input {
    Request(Request, ReplySender),
    Lost(WorkerId, String),
    /// Workers may come and go, and are told of here.
    AdmitWorkers(mpsc::UnboundedSender<MembershipEvent>),
    /// How the run stands, for this worker.
    Progress(WorkerId, Progress),
    /// Closes the connection to a worker.
    Disconnect(WorkerId, String, VarInt),
    DisconnectAll,
    Stop(oneshot::Sender<()>),
}

/// A worker joined or left an open run.
#[derive(Debug)]
pub enum MembershipEvent {
    /// A worker is here. It has no stages yet.
    Joined {
        /// Its number.
        worker: WorkerId,
        /// Its description of itself.
        info: WorkerInfo,
        /// Its address.
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
    /// The slots of tensors of requests and answers.
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
    pub fn report_lost(&self, worker: WorkerId, reason: &str) {
        self.inputs.send(Input::Lost(worker, reason.to_string())).ok();
    }

    /// From now on workers may come and go; who does is told here.
    pub fn admit_workers(&self) -> mpsc::UnboundedReceiver<MembershipEvent> {
        let (sender, events) = mpsc::unbounded_channel();
        self.inputs.send(Input::AdmitWorkers(sender)).ok();
        events
    }

    /// Has a worker print how the run stands.
    pub fn send_progress(&self, worker: WorkerId, progress: Progress) {
        self.inputs.send(Input::Progress(worker, progress)).ok();
    }

    /// Closes the connection to a worker, which is told why and may come again.
    pub fn disconnect(&self, worker: WorkerId, reason: &str) {
        self.inputs.send(Input::Disconnect(worker, reason.to_string(), PROTOCOL_VIOLATION)).ok();
    }

    /// The same, and the worker does not come again.
    pub fn evict(&self, worker: WorkerId, reason: &str) {
        self.inputs.send(Input::Disconnect(worker, reason.to_string(), EVICTED)).ok();
    }

    /// Closes all connections, as when the last clone of the handle is dropped.
    pub fn disconnect_all(&self) {
        self.inputs.send(Input::DisconnectAll).ok();
    }

    /// Sets the JSON status shown to ticket holders.
    pub fn set_status(&self, status: String) {
        *self.status.lock() = status;
    }

    /// Ends the run: every worker is told, and has closed its connection when this returns, or has
    /// been given two seconds.
    pub async fn stop(&self) {
        let (done, stopped) = oneshot::channel();
        if self.inputs.send(Input::Stop(done)).is_ok() {
            stopped.await.ok();
        }
    }

    /// The workers' descriptions of themselves, by number.
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
    replies: BTreeMap<u64, ReplySender>,
    next_request: u64,
    notice: Box<dyn FnMut(String) + Send>,
    admission: Admission,
    /// The receiver of joins and leaves, if the run is open.
    pool: Option<mpsc::UnboundedSender<MembershipEvent>>,
    status: Arc<Mutex<String>>,
}

impl Driver {
    async fn run(
        mut self,
        listening: ListeningEndpoint,
        mut acceptor: Acceptor,
        mut events: mpsc::Receiver<ConnectionEvent>,
        mut inputs: mpsc::UnboundedReceiver<Input>,
    ) {
        loop {
            self.execute_effects();
            let deadline = self.session.poll_timeout();
            tokio::select! {
                Some(event) = events.recv() => self.on_event(event),
                input = inputs.recv() => match input {
                    Some(Input::Request(request, reply)) => self.request(request, reply),
                    Some(Input::Lost(worker, reason)) => self.lost(worker, &reason),
                    Some(Input::AdmitWorkers(pool)) => {
                        self.session.open();
                        for (worker, reason) in self.session.lost() {
                            pool.send(MembershipEvent::Left { worker, reason: reason.to_string() }).ok();
                        }
                        self.pool = Some(pool);
                    }
                    Some(Input::Progress(worker, progress)) => self.session.tell(worker, progress),
                    Some(Input::Disconnect(worker, reason, code)) => self.hang_up(worker, &reason, code),
                    Some(Input::Stop(done)) => {
                        self.stop(&mut events).await;
                        done.send(()).ok();
                        break;
                    }
                    Some(Input::DisconnectAll) | None => {
                        for connection in &self.connections {
                            connection.close(DONE, "the boss left the run");
                        }
                        drop(acceptor);
                        return listening.retain_for_next_run();
                    }
                },
                Some(accept) = acceptor.next() => {
                    if let Accept::Authenticated(caller) = accept {
                        self.on_arrival(caller);
                    }
                }
                // The boss session asks for no timeouts yet; the driver keeps the contract anyway.
                () = self.clock.at(deadline) => {}
            }
        }
        drop(acceptor);
        listening.endpoint.close(DONE, b"the boss left the run");
        tokio::time::timeout(CLOSE_TIMEOUT, listening.endpoint.wait_idle()).await.ok();
    }

    /// Lets a worker in where workers may come and go.
    fn on_arrival(&mut self, caller: Caller) {
        let info = match &caller.handshake {
            Handshake::Status => {
                let status = self.status.lock().clone();
                return caller.send_status(status);
            }
            Handshake::Peer { .. } => return caller.refuse("this is a boss, not a worker".into(), false),
            Handshake::Join(info) => info.clone(),
        };
        let places = self.connections.len();
        match &self.pool {
            None => caller.refuse_full(places),
            Some(_) if places >= MAX_WORKERS => {
                caller.refuse(format!("{places} workers have come in this run, which is as many as can"), false);
            }
            Some(pool) => {
                let worker = WorkerId(places as u16);
                let Some(member) = self.admission.admit(caller, worker, info.clone()) else { return };
                let address = member.address;
                self.connections.push(member.connection);
                self.session.on_joined(info.direct.then_some(address));
                pool.send(MembershipEvent::Joined { worker, info, address }).ok();
            }
        }
    }

    fn lost(&mut self, worker: WorkerId, reason: &str) {
        if let Some(pool) = &self.pool {
            pool.send(MembershipEvent::Left { worker, reason: reason.to_string() }).ok();
        }
        self.session.on_lost(self.clock.now(), worker, reason);
    }

    fn hang_up(&mut self, worker: WorkerId, reason: &str, code: VarInt) {
        if let Some(connection) = self.connections.get(worker.0 as usize) {
            connection.close(code, reason);
        }
        self.lost(worker, reason);
    }

    fn request(&mut self, request: Request, reply: ReplySender) {
        let number = self.next_request;
        self.next_request += 1;
        self.replies.insert(number, reply);
        self.session.on_request(self.clock.now(), number, request);
    }

    /// Tells the workers, once they have cleared up after a request that failed, and hears them out.
    async fn stop(&mut self, events: &mut mpsc::Receiver<ConnectionEvent>) {
        let (reply, _answer) = oneshot::channel();
        self.request(Request::Stop, reply);
        let farewell = async {
            while self.connections.iter().any(|connection| !connection.is_closed()) {
                self.execute_effects();
                // A connection that closes is an event, too.
                let Some(event) = events.recv().await else { return };
                self.on_event(event);
            }
        };
        tokio::time::timeout(CLOSE_TIMEOUT, farewell).await.ok();
    }

    fn on_event(&mut self, event: ConnectionEvent) {
        let now = self.clock.now();
        match event {
            ConnectionEvent::Frame { from: Peer::Worker(from), envelope, payloads } => {
                let slots = payloads.into_iter().map(|p| self.slots.insert(p)).collect();
                self.session.on_frame(now, from, Frame { route: envelope.route, head: envelope.head, slots });
            }
            ConnectionEvent::Closed { from: Peer::Worker(from), reason, .. } => self.lost(from, &reason),
            // Workers measure and report.
            ConnectionEvent::Frame { from: Peer::Boss, .. }
            | ConnectionEvent::Closed { from: Peer::Boss, .. }
            | ConnectionEvent::Measured { .. } => {}
        }
    }

    fn execute_effects(&mut self) {
        while let Some(effect) = self.session.poll_effect() {
            match effect {
                BossEffect::Send { to, slots } => {
                    if let Err(reason) = outgoing::take_payloads(&self.slots, &slots).and_then(|t| self.send(&to, &t)) {
                        self.on_send_failed(&to, &reason);
                    }
                }
                BossEffect::Reply { request, result } => self.reply(request, result),
                BossEffect::Drop(slots) => slots.into_iter().for_each(|slot| drop(self.slots.remove(slot))),
                BossEffect::Hangup { worker, reason } => {
                    self.hang_up(worker, &format!("it broke the protocol: it {reason}"), PROTOCOL_VIOLATION);
                }
                BossEffect::Dismiss { worker, reason } => self.hang_up(worker, &reason, PROTOCOL_VIOLATION),
                BossEffect::Notice(text) => (self.notice)(text),
            }
        }
    }

    fn send(&self, to: &[Destination], tensors: &[Payload]) -> Result<(), String> {
        for destination in to {
            let Peer::Worker(worker) = destination.peer else { continue };
            let (way, head) = outgoing::encode_head(destination, tensors)?;
            // A connection that is gone was or will be reported to the session as lost.
            if let Some(connection) = self.connections.get(worker.0 as usize) {
                connection.send(way, head, tensors.iter().map(|t| t.bytes.clone()).collect());
            }
        }
        Ok(())
    }

    /// A frame that cannot be written leaves its receivers waiting: the run ends for them.
    fn on_send_failed(&mut self, to: &[Destination], reason: &str) {
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
            slots.for_each(|slot| drop(self.slots.remove(slot)));
        }
    }
}
