//! Drives the boss's session: reports events to it, and executes its effects.

use crate::clock::Clock;
use crate::handle::Handle;
use crate::handle_input::{Input, ReplySender};
use crate::log_fields::{log_message, log_received, log_request, log_sent, REQUESTS};
use crate::membership_event::MembershipEvent;
use crate::state_event::{FetchId, StateEvent, StateHead, StatePart};
use crate::waiting_workers::WaitingWorkers;
use link::admission::acceptor::{Accept, Acceptor, Caller};
use link::admission::handshake::Handshake;
use link::admission::listener::{Admission, Admitted};
use link::connection::outgoing::{self, Channel};
use link::connection::{Connection, ConnectionEvent};
use link::quic::close_codes::{DONE, PROTOCOL_VIOLATION};
use link::quic::listening_endpoint::ListeningEndpoint;
use link::{LinkError, Listener, Payload, Slots, StatusText};
use pipeline::boss::{Answer, BossSession, Instruction, IntoRequest, Request, SendState, Setup};
use pipeline::effect::{BossEffect, BossNotice, Destination, Frame, Message, Peer};
use pipeline::ids::WorkerId;
use pipeline::message::{Failure, ToBoss};
use quinn::VarInt;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};
use tracing::{debug, info};

/// Workers close their connections when the run ends. The boss waits this long for them.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// The reason of a boss that gives none.
const LEFT: &str = "the boss left the run";

/// The most workers of one run, including those that left.
const MAX_WORKERS: usize = u16::MAX as usize;

/// The answer to a worker that may be taken in. A plan may need more workers than have asked.
const TAKES_IN_LATER: &str =
    "the run has a free place; it takes workers in when a plan fits their number";

/// Starts a run with the first workers that have joined, whose addresses replace those of `setup`.
/// Workers beyond the plan's number wait for a place. Notices for the user go to `notice`.
///
/// # Errors
/// Fewer workers have joined than the plan has.
pub fn start(
    listener: Listener,
    setup: Setup,
    mut notice: impl FnMut(BossNotice) + Send + 'static,
) -> Result<Handle, LinkError> {
    let Admitted { members, listening, acceptor, admission, events, status } =
        listener.finish(setup.plan.workers())?;
    if let Some(small) = &listening.small_buffers {
        notice(BossNotice { text: small.to_string(), workers: Vec::new() });
    }
    let addresses = members.iter().map(|m| m.info.direct.then_some(m.address)).collect();
    let setup = Setup { addresses, ..setup };
    let (inputs, requests) = mpsc::unbounded_channel();
    let slots = Slots::default();
    let waiting = WaitingWorkers::default();
    let workers = members.iter().map(|m| m.info.clone()).collect();
    let driver = Driver {
        session: BossSession::new(setup),
        connections: members.into_iter().map(|m| Some(m.connection)).collect(),
        slots: slots.clone(),
        clock: Clock::start(),
        replies: BTreeMap::new(),
        fetches: BTreeMap::new(),
        next_request: 0,
        notice: Box::new(notice),
        admission,
        pool: None,
        status,
        waiting: waiting.clone(),
    };
    tokio::spawn(driver.run(listening, acceptor, events, requests));
    Ok(Handle { inputs, slots, workers, waiting })
}

struct Driver {
    session: BossSession,
    /// By number of the worker. `None` if it is lost: frames that wait for it are dropped.
    connections: Vec<Option<Connection<ToBoss>>>,
    slots: Slots,
    clock: Clock,
    replies: BTreeMap<u64, ReplySender>,
    /// The receivers of state, by request.
    fetches: BTreeMap<u64, (FetchId, mpsc::UnboundedSender<StateEvent>)>,
    next_request: u64,
    notice: Box<dyn FnMut(BossNotice) + Send>,
    admission: Admission,
    /// The receiver of membership events, if the run is a pool.
    pool: Option<mpsc::UnboundedSender<MembershipEvent>>,
    status: StatusText,
    /// The callers that got no place.
    waiting: WaitingWorkers,
}

/// Closes the port once all workers know the reason, or after two seconds.
async fn close(listening: &ListeningEndpoint, reason: &str) {
    listening.endpoint.close(DONE, reason.as_bytes());
    tokio::time::timeout(CLOSE_TIMEOUT, listening.endpoint.wait_idle()).await.ok();
}

impl Driver {
    async fn run(
        mut self,
        listening: ListeningEndpoint,
        mut acceptor: Acceptor,
        mut events: mpsc::Receiver<ConnectionEvent<ToBoss>>,
        mut inputs: mpsc::UnboundedReceiver<Input>,
    ) {
        loop {
            self.execute_effects();
            let deadline = self.session.poll_timeout();
            tokio::select! {
                Some(event) = events.recv() => self.on_event(event),
                input = inputs.recv() => match input {
                    Some(Input::Request(request, reply)) => self.request(request, reply),
                    Some(Input::Fetch(request, id, events)) => self.fetch(request, id, events),
                    Some(Input::FetchDropped(id)) => self.drop_fetch(id),
                    Some(Input::StateTaken { request, worker }) => {
                        self.session.on_state_taken(request, worker)
                    }
                    Some(Input::Lost(worker, reason)) => self.lost(worker, &reason),
                    Some(Input::AdmitWorkers(pool)) => self.open_pool(pool),
                    Some(Input::Progress(worker, progress)) => self.session.tell(worker, progress),
                    Some(Input::Disconnect { worker, reason, code }) => {
                        self.disconnect(worker, &reason, code)
                    }
                    Some(Input::Stop(done)) => {
                        self.stop(&mut events).await;
                        done.send(()).ok();
                        break;
                    }
                    Some(Input::Leave { reason, done }) => {
                        self.close_all(&reason);
                        drop(acceptor);
                        close(&listening, &reason).await;
                        done.send(()).ok();
                        return;
                    }
                    Some(Input::DisconnectAll) | None => {
                        self.close_all(LEFT);
                        drop(acceptor);
                        return listening.retain_for_next_run();
                    }
                },
                Some(accept) = acceptor.next() => {
                    if let Accept::Authenticated(caller) = accept {
                        self.on_caller(*caller);
                    }
                }
                // The boss's session asks for no timeouts yet. The driver keeps the contract
                // anyway.
                () = self.clock.at(deadline) => {}
            }
        }
        drop(acceptor);
        close(&listening, LEFT).await;
    }

    fn close_all(&self, reason: &str) {
        for connection in self.connections.iter().flatten() {
            connection.close(DONE, reason);
        }
    }

    fn open_pool(&mut self, pool: mpsc::UnboundedSender<MembershipEvent>) {
        self.session.open();
        for (worker, reason) in self.session.lost() {
            pool.send(MembershipEvent::Left { worker, reason: reason.to_string() }).ok();
        }
        self.pool = Some(pool);
    }

    /// Admits a worker if the run is a pool, and answers other callers.
    fn on_caller(&mut self, caller: Caller) {
        let info = match &caller.handshake {
            Handshake::Status => return caller.send_status(&self.status),
            Handshake::Peer { .. } => return caller.refuse("this is a boss, not a worker".into()),
            Handshake::Join(info) => (**info).clone(),
        };
        let places = self.connections.len();
        match &self.pool {
            None => {
                self.waiting.note(info, Instant::now());
                match self.waiting.has_free_place() {
                    true => caller.refuse_until_later(TAKES_IN_LATER.into()),
                    false => caller.refuse_full(places),
                }
            }
            Some(_) if places >= MAX_WORKERS => {
                caller.refuse(format!(
                    "{places} workers have joined this run, which is the most that can"
                ));
            }
            Some(pool) => {
                let worker = WorkerId(places as u16);
                let Some(member) = self.admission.admit(caller, worker, info.clone()) else {
                    return;
                };
                let address = member.address;
                info!(worker = worker.0, %address, device = info.device, "worker joined the pool");
                self.connections.push(Some(member.connection));
                self.session.on_joined(info.direct.then_some(address));
                pool.send(MembershipEvent::Joined { worker, info: info.into(), address }).ok();
            }
        }
    }

    fn lost(&mut self, worker: WorkerId, reason: &str) {
        info!(worker = worker.0, reason, "worker lost");
        if let Some(pool) = &self.pool {
            pool.send(MembershipEvent::Left { worker, reason: reason.to_string() }).ok();
        }
        let connection = self.connections.get_mut(worker.0 as usize).and_then(Option::take);
        if let Some(connection) = connection {
            connection.close(DONE, reason);
        }
        self.session.on_lost(self.clock.now(), worker, reason);
    }

    fn disconnect(&mut self, worker: WorkerId, reason: &str, code: VarInt) {
        if let Some(connection) = self.connection(worker) {
            connection.close(code, reason);
        }
        self.lost(worker, reason);
    }

    fn connection(&self, worker: WorkerId) -> Option<&Connection<ToBoss>> {
        self.connections.get(worker.0 as usize)?.as_ref()
    }

    fn request(&mut self, request: Request, reply: ReplySender) {
        self.replies.insert(self.next_request, reply);
        self.begin(request);
    }

    fn fetch(
        &mut self,
        request: SendState,
        id: FetchId,
        events: mpsc::UnboundedSender<StateEvent>,
    ) {
        self.fetches.insert(self.next_request, (id, events));
        self.begin(request.into_request());
    }

    /// Ends a request for state, if it has begun. Else its parts are dropped as they come.
    fn drop_fetch(&mut self, id: FetchId) {
        let dropped = self.fetches.iter().find(|(_, (of, _))| *of == id);
        if let Some(request) = dropped.map(|(request, _)| *request) {
            self.fetches.remove(&request);
            self.session.cancel_fetch(request);
        }
    }

    fn begin(&mut self, request: Request) {
        let number = self.next_request;
        self.next_request += 1;
        log_request(number, &request);
        self.session.on_request(self.clock.now(), number, request);
    }

    /// Hands an event to the receiver of state. Returns whether there is one.
    fn hand_over(&self, request: u64, event: StateEvent) -> bool {
        self.fetches.get(&request).is_some_and(|(_, events)| events.send(event).is_ok())
    }

    /// Ends the run at the workers, after they have cleaned up a failed request. Handles their last
    /// events.
    async fn stop(&mut self, events: &mut mpsc::Receiver<ConnectionEvent<ToBoss>>) {
        let (reply, _answer) = oneshot::channel();
        self.request(Request::Instruct(Instruction::Stop), reply);
        let closing = async {
            while self.connections.iter().flatten().any(|connection| !connection.is_closed()) {
                self.execute_effects();
                // A connection that closes reports an event, too.
                let Some(event) = events.recv().await else { return };
                self.on_event(event);
            }
        };
        tokio::time::timeout(CLOSE_TIMEOUT, closing).await.ok();
    }

    fn on_event(&mut self, event: ConnectionEvent<ToBoss>) {
        let now = self.clock.now();
        match event {
            ConnectionEvent::Message { from: Peer::Worker(from), message } => {
                log_message("received", Peer::Worker(from), &message);
                self.session.on_message(now, from, message);
            }
            ConnectionEvent::Frame { from: Peer::Worker(from), envelope, payloads, .. } => {
                log_received(Peer::Worker(from), &envelope.head, &payloads);
                let slots = payloads.into_iter().map(|p| self.slots.insert(p)).collect();
                self.session.on_frame(
                    now,
                    from,
                    Frame { route: envelope.route, head: envelope.head, slots },
                );
            }
            ConnectionEvent::Closed { from: Peer::Worker(from), reason, .. } => {
                self.lost(from, &reason)
            }
            // Workers measure their paths, and the boss has no connection to itself.
            ConnectionEvent::Message { from: Peer::Boss, .. }
            | ConnectionEvent::Frame { from: Peer::Boss, .. }
            | ConnectionEvent::Closed { from: Peer::Boss, .. }
            | ConnectionEvent::Measured { .. } => {}
        }
    }

    fn execute_effects(&mut self) {
        while let Some(effect) = self.session.poll_effect() {
            match effect {
                BossEffect::Tell(messages) => messages.into_iter().for_each(|one| self.tell(one)),
                BossEffect::Send { to, slots } => {
                    if let Err(reason) = self.slots.take(&slots).and_then(|t| self.send(&to, &t)) {
                        self.on_send_failed(&to, &reason);
                    }
                }
                BossEffect::Reply { request, result } => self.reply(request, result),
                BossEffect::Drop(slots) => {
                    slots.into_iter().for_each(|slot| drop(self.slots.remove(slot)))
                }
                BossEffect::Hangup { worker, reason } => {
                    self.disconnect(
                        worker,
                        &format!("it broke the protocol: it {reason}"),
                        PROTOCOL_VIOLATION,
                    );
                }
                BossEffect::Dismiss { worker, reason } => {
                    self.disconnect(worker, &reason, PROTOCOL_VIOLATION)
                }
                BossEffect::Leaving(worker) => {
                    if let Some(pool) = &self.pool {
                        pool.send(MembershipEvent::Leaving(worker)).ok();
                    }
                }
                BossEffect::StateHeads { request, heads } => {
                    let head = |(worker, name, meta)| StateHead { worker, name, meta };
                    let heads = heads.into_iter().map(head).collect();
                    self.hand_over(request, StateEvent::Heads(heads));
                }
                BossEffect::State { request, worker, name, slot } => {
                    let part = |payload| StatePart { worker, name, payload };
                    let part = self.slots.remove(slot).map(part);
                    let event = part.map(|part| StateEvent::Part { request, part });
                    // If nobody receives it, its worker must not keep the rest.
                    if !event.is_some_and(|event| self.hand_over(request, event)) {
                        self.session.on_state_taken(request, worker);
                    }
                }
                BossEffect::Notice(notice) => (self.notice)(notice),
            }
        }
    }

    fn tell(&mut self, Message { to, body }: Message) {
        let Some(connection) = self.connection(to) else { return };
        log_message("sent", Peer::Worker(to), &body);
        match outgoing::encode_message(body) {
            Ok(head) => connection.send(Channel::Control, head, Vec::new()),
            // The worker would wait for it.
            Err(reason) => self.lost(to, &reason),
        }
    }

    fn send(&self, to: &[Destination], tensors: &[Payload]) -> Result<(), String> {
        for destination in to {
            let Peer::Worker(worker) = destination.peer else { continue };
            let (channel, head) = outgoing::encode_head(destination, tensors)?;
            // The session knows, or will soon know, that a missing connection is lost.
            if let Some(connection) = self.connection(worker) {
                log_sent(destination.peer, &destination.head, tensors);
                connection.send(channel, head, tensors.iter().map(|t| t.bytes.clone()).collect());
            }
        }
        Ok(())
    }

    /// Treats the receivers of a frame that cannot be encoded as lost, because they would wait for
    /// it.
    fn on_send_failed(&mut self, to: &[Destination], reason: &str) {
        for destination in to {
            if let Peer::Worker(worker) = destination.peer {
                self.lost(worker, reason);
            }
        }
    }

    fn reply(&mut self, request: u64, result: Result<Answer, Failure>) {
        match &result {
            Ok(_) => debug!(target: REQUESTS, request, "answered"),
            Err(failure) => debug!(target: REQUESTS, request, error = failure.message, "failed"),
        }
        if let Some((_, events)) = self.fetches.remove(&request) {
            // If the stream was dropped, nobody waits for the end.
            return drop(events.send(StateEvent::End(result.map(drop))));
        }
        let Some(reply) = self.replies.remove(&request) else { return };
        // If the caller's future was dropped, nobody else frees the tensors of the answer.
        if let Err(Ok(answer)) = reply.send(result) {
            answer.into_slots().into_iter().for_each(|slot| drop(self.slots.remove(slot)));
        }
    }
}
