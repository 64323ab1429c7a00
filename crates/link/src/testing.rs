//! Raw connections for tests: of peers that break the protocol, and of transport without a run.

use crate::admission::handshake::{self, Handshake, HandshakeReply, WorkerInfo};
use crate::connection::link_message::LinkMessage;
use crate::connection::outgoing;
use crate::connection::wire::{self, Incoming};
use crate::connection::{Connection as Connected, ConnectionEvent, EstablishedConnection};
use crate::error::LinkError;
use crate::memory::payload::Payload;
use crate::memory::pool::BufferPool;
use crate::memory::shared::{SharedMemory, Transport};
use crate::quic::close_codes::DONE;
use crate::quic::endpoint;
use crate::quic::report::PathReport;
use crate::trust::identity::Identity;
use crate::trust::ticket::Ticket;
use crate::trust::tls::SERVER_NAME;
use pipeline::effect::{Destination, Peer};
use pipeline::frame::FrameMessage;
use pipeline::ids::WorkerId;
use pipeline::message::{TensorHead, ToBoss, ToWorker};
use quinn::{Connection, Endpoint, RecvStream, SendStream};
use std::net::SocketAddr;

/// Dials a boss as a worker does, up to the TLS handshake.
pub async fn dial(
    endpoint: &Endpoint,
    address: SocketAddr,
    ticket: &Ticket,
) -> Result<Connection, LinkError> {
    let failed = |reason: String| LinkError::NoAnswer { address, reason };
    let config = endpoint::client_to_boss(ticket, address)?;
    let connecting =
        endpoint.connect_with(config, address, SERVER_NAME).map_err(|e| failed(e.to_string()))?;
    connecting.await.map_err(|e| failed(e.to_string()))
}

/// Asks for a place as a worker does. Returns the control stream.
pub async fn join_control(
    quic: &Connection,
    info: WorkerInfo,
) -> Result<(SendStream, RecvStream), LinkError> {
    join_raw(quic, info).await.map(|(_, _, control)| control)
}

/// Asks for a place as a worker does. Returns the worker's number, the run's number, and the
/// control stream.
pub async fn join_raw(
    quic: &Connection,
    info: WorkerInfo,
) -> Result<(WorkerId, u64, (SendStream, RecvStream)), LinkError> {
    let lost = |e: quinn::ConnectionError| LinkError::Lost {
        peer: "the boss".into(),
        reason: e.to_string(),
    };
    let (mut send, mut recv) = quic.open_bi().await.map_err(lost)?;
    handshake::write(&mut send, &Handshake::Join(info.into())).await?;
    match handshake::read(&mut recv).await? {
        HandshakeReply::Welcome { worker, run, .. } => Ok((worker, run, (send, recv))),
        other => Err(LinkError::Refused { reason: format!("{other:?}"), retry: false }),
    }
}

/// Dials a worker as another worker of its run.
pub async fn dial_worker(
    endpoint: &Endpoint,
    address: SocketAddr,
    ticket: &Ticket,
    me: WorkerId,
    run: u64,
) -> Result<(Connection, (SendStream, RecvStream)), LinkError> {
    let EstablishedConnection { quic, send, recv } =
        crate::admission::join::dial_peer(endpoint, address, ticket, me, run).await?;
    Ok((quic, (send, recv)))
}

/// Reads the next frame of a stream, and skips link messages.
pub async fn next_message<M: FrameMessage>(recv: &mut RecvStream) -> Result<M, String> {
    loop {
        match wire::read(recv, &SharedMemory::default(), &BufferPool::default()).await? {
            Some(Incoming::Message(message)) => return Ok(message),
            Some(Incoming::Frame(..) | Incoming::LinkMessage(_)) => {}
            None => return Err("the stream has ended".into()),
        }
    }
}

/// Encodes a ping.
pub fn ping(number: u32) -> Vec<u8> {
    LinkMessage::Ping(number).encode()
}

/// Listens as a boss does.
pub fn listen(identity: &Identity, address: SocketAddr) -> Result<Endpoint, LinkError> {
    endpoint::listen(identity, address).map(|(endpoint, _)| endpoint)
}

/// A connection as a run uses it, without a run. It sends and receives frames with tensors.
pub struct TestConnection<M> {
    connection: Connected<M>,
    events: tokio::sync::mpsc::Receiver<ConnectionEvent<M>>,
    _keep_alive: Option<(Endpoint, crate::admission::acceptor::Acceptor)>,
}

impl TestConnection<ToWorker> {
    /// Dials as a worker does, agrees on shared memory, and measures the path.
    pub async fn dial(
        endpoint: &Endpoint,
        address: SocketAddr,
        ticket: &Ticket,
        info: WorkerInfo,
        transport: Transport,
    ) -> Result<Self, LinkError> {
        let mut membership = crate::join(endpoint, &[address], ticket, info).await?;
        membership.boss.negotiate(transport);
        match membership.events.recv().await {
            Some(ConnectionEvent::Measured { .. }) => {}
            other => {
                return Err(LinkError::Lost {
                    peer: "the boss".into(),
                    reason: format!("{other:?}"),
                })
            }
        }
        Ok(TestConnection {
            connection: membership.boss,
            events: membership.events,
            _keep_alive: None,
        })
    }
}

impl TestConnection<ToBoss> {
    /// Waits for a worker as a boss does. Returns the boss's end.
    pub async fn accept(mut listener: crate::Listener) -> Option<Self> {
        while listener.missing() > 0 {
            listener.next().await;
        }
        let (member, events, endpoint, acceptor) = listener.into_first()?;
        Some(TestConnection {
            connection: member.connection,
            events,
            _keep_alive: Some((endpoint, acceptor)),
        })
    }
}

impl<M: Send + 'static> TestConnection<M> {
    /// Sends a frame.
    pub fn send(&self, head: &TensorHead, tensors: &[Payload]) -> Result<(), String> {
        let to = Destination { peer: Peer::Boss, route: None, head: head.clone() };
        let (channel, head) = outgoing::encode_head(&to, tensors)?;
        self.connection.send(channel, head, tensors.iter().map(|t| t.bytes.clone()).collect());
        Ok(())
    }

    /// Receives the next frame.
    ///
    /// # Errors
    /// The connection ended.
    pub async fn receive(&mut self) -> Result<(TensorHead, Vec<Payload>), String> {
        match self.events.recv().await {
            Some(ConnectionEvent::Frame { envelope, payloads, .. }) => {
                Ok((envelope.head, payloads))
            }
            Some(ConnectionEvent::Closed { reason, .. }) => Err(reason),
            Some(ConnectionEvent::Measured { .. }) => Err("measured twice".into()),
            Some(ConnectionEvent::Message { .. }) => Err("a message".into()),
            None => Err("the connection's tasks have ended".into()),
        }
    }

    /// Ends the connection.
    pub fn close(&self) {
        self.connection.close(DONE, "done");
    }

    /// The connection's number, which events name.
    pub fn id(&self) -> u64 {
        self.connection.id()
    }

    /// The current packet size in bytes, and the number of lost packets that were not probes.
    pub fn packets(&self) -> (u16, u64) {
        self.connection.packets()
    }

    /// The measured figures of the path, at the worker's end.
    pub fn report(&self) -> Option<PathReport> {
        self.connection.report()
    }
}
