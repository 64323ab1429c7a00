//! A worker's way in: dial the boss, greet, get a place.

use crate::connection::{close_reason, Connection, ConnectionEvent, SilenceLimit};
use crate::error::LinkError;
use crate::memory::shared::Transport;
use crate::quic::close_codes::DONE;
use crate::quic::endpoint::{client_to_boss, client_to_worker};
use crate::trust::handshake::{self, Handshake, HandshakeReply, WorkerInfo};
use crate::trust::ticket::Ticket;
use crate::trust::tls::SERVER_NAME;
use pipeline::effect::Peer;
use pipeline::ids::WorkerId;
use quinn::{ConnectionError, Endpoint, RecvStream, SendStream};
use std::net::SocketAddr;
use tokio::sync::mpsc;

/// The most frames that wait for the driver. Readers wait when it is reached.
pub const EVENTS: usize = 256;

/// A place in a run.
pub struct JoinedRun {
    /// This worker's number.
    pub worker: WorkerId,
    /// The number of the run, which its other workers name, too.
    pub run: u64,
    /// The connection to the boss.
    pub boss: Connection,
    /// The boss's address.
    pub boss_address: SocketAddr,
    /// The sender to which further connections report.
    pub sender: mpsc::Sender<ConnectionEvent>,
    /// The events of this worker's connections.
    pub events: mpsc::Receiver<ConnectionEvent>,
    /// The transport of the run's connections.
    pub transport: Transport,
}

impl JoinedRun {
    /// Sets the transport of this worker's connections. Shared memory is off if the boss or the
    /// worker turns it off.
    pub fn transport(self, transport: Transport) -> Self {
        match transport {
            Transport::Auto => self,
            Transport::Quic => JoinedRun { transport, ..self },
        }
    }
}

/// Looks up the boss's address: the first IPv4 one, since a boss listens on IPv4, else the first.
pub async fn resolve(host: &str, port: u16) -> Result<SocketAddr, LinkError> {
    let failed = |reason: String| LinkError::Host { host: host.to_string(), reason };
    let found = tokio::net::lookup_host((host, port)).await.map_err(|e| failed(e.to_string()))?;
    let found: Vec<SocketAddr> = found.collect();
    let address = found.iter().find(|address| address.is_ipv4()).or(found.first());
    address.copied().ok_or_else(|| failed("it has no address".into()))
}

/// Dials the boss and asks for a place.
pub async fn join(
    endpoint: &Endpoint,
    address: SocketAddr,
    ticket: &Ticket,
    info: WorkerInfo,
) -> Result<JoinedRun, LinkError> {
    let config = client_to_boss(ticket, address)?;
    let (quic, send, recv, reply) = exchange_handshake(endpoint, config, address, &Handshake::Join(info)).await?;
    match reply {
        HandshakeReply::Welcome { worker, run, transport } => {
            let (sender, events) = mpsc::channel(EVENTS);
            let boss = Connection::start(Peer::Boss, quic, (send, recv), &sender, transport, SilenceLimit::WITH_BOSS);
            Ok(JoinedRun { worker, run, boss, boss_address: address, sender, events, transport })
        }
        HandshakeReply::Refused { reason, retry } => Err(LinkError::Refused { reason, retry }),
        HandshakeReply::Accepted | HandshakeReply::Status(_) => {
            Err(LinkError::Protocol { peer: "the boss".into(), reason: "it gave no place".into() })
        }
    }
}

/// Asks a boss how its run stands, without taking part: JSON, as the boss's side wrote it.
pub async fn query_status(endpoint: &Endpoint, address: SocketAddr, ticket: &Ticket) -> Result<String, LinkError> {
    let config = client_to_boss(ticket, address)?;
    let (quic, _, _, reply) = exchange_handshake(endpoint, config, address, &Handshake::Status).await?;
    quic.close(DONE, b"seen");
    match reply {
        HandshakeReply::Status(status) => Ok(status),
        HandshakeReply::Refused { reason, retry } => Err(LinkError::Refused { reason, retry }),
        HandshakeReply::Welcome { .. } | HandshakeReply::Accepted => {
            Err(LinkError::Protocol { peer: "the boss".into(), reason: "it let in who only looks".into() })
        }
    }
}

/// Dials another worker of the same run.
pub async fn dial_peer(
    endpoint: &Endpoint,
    address: SocketAddr,
    ticket: &Ticket,
    me: WorkerId,
    run: u64,
) -> Result<(quinn::Connection, SendStream, RecvStream), LinkError> {
    let config = client_to_worker(ticket, address)?;
    let (quic, send, recv, reply) =
        exchange_handshake(endpoint, config, address, &Handshake::Peer { worker: me, run }).await?;
    match reply {
        HandshakeReply::Accepted => Ok((quic, send, recv)),
        HandshakeReply::Refused { reason, retry } => Err(LinkError::Refused { reason, retry }),
        HandshakeReply::Welcome { .. } | HandshakeReply::Status(_) => {
            Err(LinkError::Protocol { peer: "a worker".into(), reason: "it answered as a boss".into() })
        }
    }
}

async fn exchange_handshake(
    endpoint: &Endpoint,
    config: quinn::ClientConfig,
    address: SocketAddr,
    handshake: &Handshake,
) -> Result<(quinn::Connection, SendStream, RecvStream, HandshakeReply), LinkError> {
    let no_answer = |reason: String| LinkError::NoAnswer { address, reason };
    let connecting = endpoint.connect_with(config, address, SERVER_NAME).map_err(|e| no_answer(e.to_string()))?;
    let quic = connecting.await.map_err(|e| dial_error(&e, address))?;
    let exchange = async {
        let (mut send, mut recv) = quic.open_bi().await.map_err(|e| dial_error(&e, address))?;
        handshake::write(&mut send, handshake).await?;
        let reply = handshake::read(&mut recv).await?;
        Ok((send, recv, reply))
    };
    match exchange.await {
        Ok((send, recv, reply)) => Ok((quic, send, recv, reply)),
        // In TLS 1.3 the callee's refusal of our key comes after our side of the handshake.
        Err(LinkError::Lost { .. }) if quic.close_reason().is_some() => {
            let reason = quic.close_reason().unwrap_or(ConnectionError::LocallyClosed);
            Err(dial_error(&reason, address))
        }
        Err(e) => Err(e),
    }
}

/// TLS alerts travel as QUIC error codes 0x100 to 0x1ff (RFC 9001, section 4.8).
fn dial_error(e: &ConnectionError, address: SocketAddr) -> LinkError {
    let is_tls = |code: u64| (0x100..0x200).contains(&code);
    match e {
        ConnectionError::TransportError(e) if is_tls(u64::from(e.code)) => LinkError::WrongBoss { address },
        ConnectionError::ConnectionClosed(c) if is_tls(u64::from(c.error_code)) => LinkError::TicketRefused { address },
        other => LinkError::NoAnswer { address, reason: close_reason(other) },
    }
}
