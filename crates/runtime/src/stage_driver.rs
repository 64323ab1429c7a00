//! Feeds a worker's session with what happens and carries out what it wants.

use crate::clock::Clock;
use crate::compute::{ComputeEvent, ComputeThread};
use crate::reader_thread::{ReaderThread, SampleReader};
use crate::reduction::thread::ReductionThread;
use crate::snapshot_store::SnapshotStore;
use link::connection::outgoing::{self, Channel};
use link::connection::{Connection, ConnectionEvent, SilenceLimit};
use link::quic::close_codes::{DONE, PROTOCOL_VIOLATION};
use link::quic::endpoint::AcceptPolicy;
use link::trust::acceptor::{Accept, Acceptor, Caller};
use link::trust::handshake::{self, Handshake, HandshakeReply};
use link::trust::join::{dial_peer, JoinedRun};
use link::LinkError;
use link::Ticket;
use link::Transport;
use link::{Carrier, PathReport};
use link::{Payload, Slots};
use pipeline::effect::{Destination, Frame, Micros, Peer, StageEffect};
use pipeline::ids::{Slot, WorkerId};
use pipeline::message::{LinkReport, Progress};
use pipeline::replicas::Node;
use pipeline::stage::StageSession;
use quinn::{Endpoint, RecvStream, SendStream};
use std::collections::BTreeMap;
use std::io::Write;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use tokio::sync::mpsc;

/// A connection to another worker, dialled by either end, with its control stream.
type Dialled = Result<(quinn::Connection, SendStream, RecvStream), LinkError>;

/// Works for a boss until it ends the run (`Ok`) or the connection to it is lost (`Err`).
///
/// Other workers are let in, and dialled, as the boss's assignment says. Without `samples` a boss that wants some read breaks
/// the protocol. `kept` is what the worker keeps for the boss that comes next, should it lose this one.
pub async fn serve(
    membership: JoinedRun,
    endpoint: &Endpoint,
    ticket: &Ticket,
    compute: ComputeThread,
    samples: Option<Box<dyn SampleReader>>,
    kept: SnapshotStore,
) -> Result<(), LinkError> {
    let JoinedRun { worker, run, boss, boss_address, sender, mut events, transport } = membership;
    boss.negotiate(transport);
    let (dial_sender, mut dials) = mpsc::channel::<(WorkerId, Dialled)>(16);
    let mut acceptor = Acceptor::open(endpoint.clone(), AcceptPolicy::of_worker(ticket)?);
    let mut driver = Driver {
        session: StageSession::with_kept(kept.list()),
        me: worker,
        run,
        transport,
        boss,
        boss_address,
        peers: BTreeMap::new(),
        slots: Slots::default(),
        clock: Clock::start(),
        compute,
        sums: ReductionThread::default(),
        samples: ReaderThread::new(samples),
        kept,
        endpoint: endpoint.clone(),
        ticket: ticket.clone(),
        events: sender,
        dials: dial_sender,
    };
    driver.session.on_measuring(Peer::Boss);
    let watchdog = driver.compute.watchdog();
    tokio::pin!(watchdog);
    let result = loop {
        match driver.execute_effects() {
            ControlFlow::Continue(()) => {}
            ControlFlow::Break(result) => break result,
        }
        let deadline = driver.session.poll_timeout();
        tokio::select! {
            Some(event) = events.recv() => {
                if let ControlFlow::Break(error) = driver.on_event(event) {
                    break Err(error);
                }
            }
            Some(report) = driver.compute.next() => driver.on_report(report),
            Some((ticket, sums)) = driver.sums.next() => {
                let slots = sums.map(|sums| sums.into_iter().map(|sum| driver.slots.insert(sum)).collect());
                driver.session.on_summed(driver.clock.now(), ticket, slots);
            }
            Some((ticket, tensors)) = driver.samples.next() => {
                let slots = tensors.map(|tensors| tensors.into_iter().map(|tensor| driver.slots.insert(tensor)).collect());
                driver.session.on_data(driver.clock.now(), ticket, slots);
            }
            Some(accept) = acceptor.next() => driver.on_accept(accept),
            Some((peer, dialled)) = dials.recv() => driver.on_dialled(peer, dialled),
            () = driver.clock.at(deadline) => driver.session.on_timeout(driver.clock.now()),
            () = &mut watchdog => {
                driver.compute.abandon();
                break Err(LinkError::Hung { seconds: driver.compute.limit().as_secs() });
            }
        }
    };
    let (code, reason) = match &result {
        Ok(()) => (DONE, "the run is over".to_string()),
        Err(e) => (PROTOCOL_VIOLATION, e.to_string()),
    };
    for connection in driver.peers.values().chain([&driver.boss]) {
        connection.close(code, &reason);
    }
    result
}

struct Driver {
    session: StageSession,
    me: WorkerId,
    run: u64,
    transport: Transport,
    boss: Connection,
    boss_address: SocketAddr,
    peers: BTreeMap<WorkerId, Connection>,
    slots: Slots,
    clock: Clock,
    compute: ComputeThread,
    sums: ReductionThread,
    samples: ReaderThread,
    kept: SnapshotStore,
    endpoint: Endpoint,
    ticket: Ticket,
    events: mpsc::Sender<ConnectionEvent>,
    dials: mpsc::Sender<(WorkerId, Dialled)>,
}

impl Driver {
    fn execute_effects(&mut self) -> ControlFlow<Result<(), LinkError>> {
        while let Some(effect) = self.session.poll_effect() {
            match effect {
                StageEffect::Send { to, slots } => {
                    if let Err(reason) = outgoing::take_payloads(&self.slots, &slots).and_then(|t| self.send(&to, t)) {
                        return ControlFlow::Break(Err(broken("this worker", reason)));
                    }
                }
                StageEffect::Compute { ticket, task } => {
                    let slots = &self.slots;
                    match task.try_map(|slot| slots.remove(slot).ok_or(slot)) {
                        Ok(task) => self.compute.submit(ticket, task),
                        Err(slot) => {
                            let reason = format!("{slot} holds no tensor; please report it");
                            return ControlFlow::Break(Err(broken("this worker", reason)));
                        }
                    }
                }
                StageEffect::Interrupt => self.compute.interrupt(),
                StageEffect::Sum { ticket, summing, sums } => {
                    let take =
                        |(node, slots): (Node, Vec<Slot>)| Ok((node, outgoing::take_payloads(&self.slots, &slots)?));
                    let given = sums.into_iter().map(take).collect::<Result<_, String>>();
                    if let Err(reason) = given.and_then(|sums| self.sums.submit(ticket, summing, sums)) {
                        return ControlFlow::Break(Err(broken("this worker", reason)));
                    }
                }
                StageEffect::Data { ticket, task } => {
                    if let Err(reason) = self.samples.submit(ticket, task) {
                        return ControlFlow::Break(Err(broken("this worker", reason)));
                    }
                }
                StageEffect::ReadAhead(readings) => {
                    if let Err(reason) = self.samples.read_ahead(readings) {
                        return ControlFlow::Break(Err(broken("this worker", reason)));
                    }
                }
                StageEffect::StoreSnapshot { copy, note, part, tensors } => {
                    let (names, slots): (Vec<String>, Vec<Slot>) = tensors.into_iter().unzip();
                    match outgoing::take_payloads(&self.slots, &slots) {
                        Ok(tensors) => self.kept.insert((copy, part), note, names.into_iter().zip(tensors).collect()),
                        Err(reason) => return ControlFlow::Break(Err(broken("this worker", reason))),
                    }
                }
                StageEffect::SendSnapshot { to, copy, part, name } => {
                    let kept = self.kept.get((copy, part), &name).ok_or_else(|| format!("`{name}` is not kept"));
                    if let Err(reason) = kept.and_then(|tensor| self.send(&to, vec![tensor])) {
                        return ControlFlow::Break(Err(broken("this worker", reason)));
                    }
                }
                StageEffect::RetainSnapshots(copies) => self.kept.retain(&copies),
                StageEffect::Residuals(residuals) => self.sums.settle(residuals),
                StageEffect::Dial { peer, address } => self.dial(peer, address),
                StageEffect::Drop(slots) => slots.into_iter().for_each(|slot| drop(self.slots.remove(slot))),
                StageEffect::Hangup { peer: Peer::Boss, reason } => {
                    return ControlFlow::Break(Err(broken("the boss", reason)));
                }
                StageEffect::Hangup { peer: Peer::Worker(peer), reason } => {
                    if let Some(connection) = self.peers.get(&peer) {
                        connection.close(PROTOCOL_VIOLATION, &reason);
                    }
                }
                StageEffect::Finish => return ControlFlow::Break(Ok(())),
                StageEffect::Progress(progress) => print_progress(&progress),
            }
        }
        ControlFlow::Continue(())
    }

    fn on_report(&mut self, report: ComputeEvent) {
        let now = self.clock.now();
        match report {
            ComputeEvent::HandedOut(handed) => {
                let handed = handed.map(|payload| self.slots.insert(payload));
                self.session.on_handed_out(now, handed);
            }
            ComputeEvent::Done(done) => {
                let result = done.result.map(|outcome| outcome.map(|payload| self.slots.insert(payload)));
                let span = (self.clock.of(done.start), self.clock.of(done.end));
                self.session.on_done(now, done.ticket, result, span);
            }
        }
    }

    fn send(&mut self, to: &[Destination], tensors: Vec<Payload>) -> Result<(), String> {
        for destination in to {
            if destination.peer == Peer::Worker(self.me) {
                let slots = tensors.iter().map(|t| self.slots.insert(t.clone())).collect();
                let frame = Frame { route: None, head: destination.head.clone(), slots };
                self.session.on_frame(self.clock.now(), destination.peer, frame);
                continue;
            }
            let (way, head) = outgoing::encode_head(destination, &tensors)?;
            let connection = match destination.peer {
                Peer::Boss => Some(&self.boss),
                Peer::Worker(peer) => self.peers.get(&peer),
            };
            // A connection that is gone was or will be reported to the session as lost.
            if let Some(connection) = connection {
                connection.send(way, head, tensors.iter().map(|t| t.bytes.clone()).collect());
            }
        }
        Ok(())
    }

    fn dial(&self, peer: WorkerId, address: SocketAddr) {
        // A worker on the boss's own machine is known to it by the loopback address.
        let ip = if address.ip().is_loopback() { self.boss_address.ip() } else { address.ip() };
        let address = SocketAddr::new(ip, address.port());
        let (endpoint, ticket, dials) = (self.endpoint.clone(), self.ticket.clone(), self.dials.clone());
        let (me, run) = (self.me, self.run);
        tokio::spawn(async move {
            let dialled = dial_peer(&endpoint, address, &ticket, me, run).await;
            dials.send((peer, dialled)).await.ok();
        });
    }

    fn on_dialled(&mut self, peer: WorkerId, dialled: Dialled) {
        match dialled {
            Ok((quic, send, recv)) => self.connected(peer, quic, (send, recv), None),
            Err(e) => self.session.on_link_down(self.clock.now(), peer, &e.to_string()),
        }
    }

    fn on_accept(&mut self, accept: Accept) {
        let Accept::Authenticated(caller) = accept else { return };
        match caller.handshake {
            Handshake::Peer { worker, run } if run == self.run && self.is_connected_elsewhere(worker, &caller) => {
                caller.refuse(format!("{worker} is here, and calls from elsewhere"), false);
            }
            Handshake::Peer { worker, run } if run == self.run && worker != self.me => {
                if let Ok(accepted) = handshake::encode(&HandshakeReply::Accepted) {
                    self.connected(worker, caller.quic, (caller.send, caller.recv), Some(accepted));
                }
            }
            Handshake::Peer { .. } => caller.refuse("this worker is in another run".into(), false),
            Handshake::Join(_) | Handshake::Status => {
                caller.refuse("this is a worker, not a boss; check MODEL_HOST and MODEL_PORT".into(), false)
            }
        }
    }

    /// Whether a caller says that it is a worker which is connected from another address. One whose old connection is lost
    /// calls again from the same one.
    fn is_connected_elsewhere(&self, worker: WorkerId, caller: &Caller) -> bool {
        let there = self.peers.get(&worker).filter(|connection| !connection.is_closed());
        there.is_some_and(|connection| connection.address() != caller.quic.remote_address())
    }

    fn connected(
        &mut self,
        peer: WorkerId,
        quic: quinn::Connection,
        control: (SendStream, RecvStream),
        greeting: Option<Vec<u8>>,
    ) {
        let connection = Connection::start(
            Peer::Worker(peer),
            quic,
            control,
            &self.events,
            self.transport,
            SilenceLimit::BETWEEN_WORKERS,
        );
        match greeting {
            Some(greeting) => connection.send(Channel::Control, greeting, Vec::new()),
            None => {
                // This end dialled.
                connection.negotiate(self.transport);
                self.session.on_measuring(Peer::Worker(peer));
            }
        }
        self.peers.insert(peer, connection);
        self.session.on_link_up(self.clock.now(), peer);
    }

    fn on_event(&mut self, event: ConnectionEvent) -> ControlFlow<LinkError> {
        let now = self.clock.now();
        match event {
            ConnectionEvent::Frame { from, envelope, payloads } => {
                let slots = payloads.into_iter().map(|p| self.slots.insert(p)).collect();
                self.session.on_frame(now, from, Frame { route: envelope.route, head: envelope.head, slots });
            }
            ConnectionEvent::Measured { from, report } => self.on_measured(from, report),
            ConnectionEvent::Closed { from: Peer::Boss, reason, permanent: true, .. } => {
                return ControlFlow::Break(LinkError::Evicted { reason });
            }
            ConnectionEvent::Closed { from: Peer::Boss, reason, .. } => {
                return ControlFlow::Break(LinkError::Lost { peer: "the boss".into(), reason });
            }
            ConnectionEvent::Closed { from: Peer::Worker(peer), connection, reason, .. } => {
                // A newer connection to the same worker stays.
                if self.peers.get(&peer).is_some_and(|c| c.id() == connection) {
                    self.peers.remove(&peer);
                    self.session.on_link_down(now, peer, &reason);
                }
            }
        }
        ControlFlow::Continue(())
    }
}

impl Driver {
    /// A path was measured: the boss predicts schedules with it.
    fn on_measured(&mut self, peer: Peer, report: Option<PathReport>) {
        let report = report.map(|report| LinkReport {
            rtt: Micros(report.rtt),
            bytes_per_second: report.bytes_per_second,
            packet_bytes: report.packet_bytes.into(),
            shared_memory: report.carrier == Carrier::SharedMemory,
            same_machine: report.same_machine,
        });
        self.session.on_link_report(peer, report);
    }
}

/// Prints one line for the user of a worker in a pool.
fn print_progress(progress: &Progress) {
    let Progress { step, loss, steps, samples, share, bytes_per_second } = progress;
    let link = bytes_per_second.map_or(String::new(), |rate| format!(", link {:.1} MB/s", rate as f64 / 1e6));
    let share = share * 100.0;
    let line = format!("step {step}, loss {loss:.4}; here {steps} steps, {samples} samples, share {share:.0} %{link}");
    drop(writeln!(std::io::stdout(), "{line}"));
}

fn broken(peer: &str, reason: String) -> LinkError {
    LinkError::Protocol { peer: peer.into(), reason }
}
