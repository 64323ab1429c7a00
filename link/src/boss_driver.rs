//! Feeds the boss's session with what happens and carries out what it wants.

use crate::clock::Clock;
use crate::connection::{Connection, Event, BROKE_PROTOCOL, DONE};
use crate::door::{Door, Knock};
use crate::hello::WorkerInfo;
use crate::outgoing;
use crate::payload::{Payload, Slots};
use pipeline::boss::{BossSession, Request, Setup};
use pipeline::effect::{Answer, Destination, Effect, Frame, Peer};
use pipeline::ids::WorkerId;
use pipeline::message::Failure;
use quinn::Endpoint;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// Workers close their connections when told to stop; who has not done so after this long is left.
const FAREWELL: Duration = Duration::from_secs(2);

/// A worker with its place.
pub(crate) struct Member {
    pub(crate) info: WorkerInfo,
    pub(crate) address: SocketAddr,
    pub(crate) connection: Connection,
}

type Reply = oneshot::Sender<Result<Answer, Failure>>;

enum Input {
    Request(Request, Reply),
    Lost(WorkerId, String),
    Stop(oneshot::Sender<()>),
}

/// The user's end of a running boss. When the last clone is dropped the connections are closed.
#[derive(Clone)]
pub struct Handle {
    inputs: mpsc::UnboundedSender<Input>,
    /// Where tensors of requests and answers are kept.
    pub slots: Slots,
    workers: Vec<WorkerInfo>,
}

impl Handle {
    /// Has a request carried out. Tensors in it, and in the answer, are in [`Handle::slots`].
    pub async fn call(&self, request: Request) -> Result<Answer, Failure> {
        let (reply, answer) = oneshot::channel();
        let ended = || Failure::new("the run has ended");
        self.inputs.send(Input::Request(request, reply)).map_err(|_| ended())?;
        answer.await.unwrap_or_else(|_| Err(ended()))
    }

    /// Tells that a worker is known to be gone, sooner than its connection shows it.
    pub fn lost(&self, worker: WorkerId, reason: &str) {
        self.inputs.send(Input::Lost(worker, reason.to_string())).ok();
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

pub(crate) fn drive(
    setup: Setup,
    members: Vec<Member>,
    endpoint: Endpoint,
    door: Door,
    events: (mpsc::Sender<Event>, mpsc::Receiver<Event>),
    notice: Box<dyn FnMut(String) + Send>,
) -> Handle {
    let (inputs, requests) = mpsc::unbounded_channel();
    let slots = Slots::default();
    let workers = members.iter().map(|m| m.info.clone()).collect();
    let driver = Driver {
        session: BossSession::new(setup),
        connections: members.into_iter().map(|m| m.connection).collect(),
        slots: slots.clone(),
        clock: Clock::start(),
        replies: BTreeMap::new(),
        next_request: 0,
        notice,
    };
    tokio::spawn(driver.run(endpoint, door, events, requests));
    Handle { inputs, slots, workers }
}

struct Driver {
    session: BossSession,
    connections: Vec<Connection>,
    slots: Slots,
    clock: Clock,
    replies: BTreeMap<u64, Reply>,
    next_request: u64,
    notice: Box<dyn FnMut(String) + Send>,
}

impl Driver {
    async fn run(
        mut self,
        endpoint: Endpoint,
        mut door: Door,
        (sender, mut events): (mpsc::Sender<Event>, mpsc::Receiver<Event>),
        mut inputs: mpsc::UnboundedReceiver<Input>,
    ) {
        loop {
            self.carry_out();
            let deadline = self.session.poll_timeout();
            tokio::select! {
                Some(event) = events.recv() => self.on_event(event),
                input = inputs.recv() => match input {
                    Some(Input::Request(request, reply)) => self.request(request, reply),
                    Some(Input::Lost(worker, reason)) => self.session.on_lost(self.clock.now(), worker, &reason),
                    Some(Input::Stop(done)) => {
                        self.stop(&mut events).await;
                        done.send(()).ok();
                        break;
                    }
                    None => {
                        for connection in &self.connections {
                            connection.close(DONE, "the boss left the run");
                        }
                        break;
                    }
                },
                Some(knock) = door.next() => {
                    if let Knock::Arrived(arrival) = knock {
                        arrival.refuse_late(self.connections.len());
                    }
                }
                // The boss session asks for no timeouts yet; the driver keeps the contract anyway.
                () = self.clock.at(deadline) => {}
            }
        }
        drop((door, sender));
        endpoint.close(DONE, b"the boss left the run");
        tokio::time::timeout(FAREWELL, endpoint.wait_idle()).await.ok();
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
            Event::Closed { from: Peer::Worker(from), reason, .. } => self.session.on_lost(now, from, &reason),
            // Workers measure and report.
            Event::Frame { from: Peer::Boss, .. } | Event::Closed { from: Peer::Boss, .. } | Event::Measured { .. } => {
            }
        }
    }

    fn carry_out(&mut self) {
        while let Some(effect) = self.session.poll_effect() {
            match effect {
                Effect::Send { to, slots } => {
                    if let Err(reason) = outgoing::take(&self.slots, &slots).and_then(|t| self.send(&to, &t)) {
                        self.unsent(&to, &reason);
                    }
                }
                Effect::Reply { request, result } => self.reply(request, result),
                Effect::Drop(slots) => slots.into_iter().for_each(|slot| drop(self.slots.take(slot))),
                Effect::Hangup { peer: Peer::Worker(worker), reason } => {
                    if let Some(connection) = self.connections.get(worker.0 as usize) {
                        connection.close(BROKE_PROTOCOL, &reason);
                    }
                    self.session.on_lost(self.clock.now(), worker, &format!("it broke the protocol: it {reason}"));
                }
                Effect::Notice(text) => (self.notice)(text),
                // A boss computes nothing, dials nobody and has no boss.
                Effect::Compute { .. }
                | Effect::Sum { .. }
                | Effect::Residuals(_)
                | Effect::Dial { .. }
                | Effect::Hangup { .. }
                | Effect::Finish => {}
            }
        }
    }

    fn send(&self, to: &[Destination], tensors: &[Payload]) -> Result<(), String> {
        for destination in to {
            let Peer::Worker(worker) = destination.peer else { continue };
            let (is_data, head) = outgoing::head(destination, tensors)?;
            // A connection that is gone was or will be reported to the session as lost.
            if let Some(connection) = self.connections.get(worker.0 as usize) {
                connection.send(is_data, head, tensors.iter().map(|t| t.bytes.clone()).collect());
            }
        }
        Ok(())
    }

    /// A frame that cannot be written leaves its receivers waiting: the run ends for them.
    fn unsent(&mut self, to: &[Destination], reason: &str) {
        for destination in to {
            if let Peer::Worker(worker) = destination.peer {
                self.session.on_lost(self.clock.now(), worker, reason);
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
