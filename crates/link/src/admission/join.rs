//! How a worker joins a run: it dials the boss, sends its handshake, and gets a place.

use crate::admission::dial::{dial, dial_boss, dial_error};
use crate::admission::handshake::{self, Handshake, HandshakeReply, WorkerInfo};
use crate::connection::{self, ConnectionEvent, EstablishedConnection, SilenceLimit};
use crate::error::LinkError;
use crate::memory::shared::Transport;
use crate::quic::close_codes::DONE;
use crate::quic::endpoint::client_to_worker;
use crate::trust::ticket::Ticket;
use pipeline::effect::Peer;
use pipeline::ids::WorkerId;
use pipeline::message::ToWorker;
use quinn::{Connection, ConnectionError, Endpoint};
use std::net::SocketAddr;
use tokio::sync::mpsc;
use tracing::{debug, info, info_span, Span};

/// The most events that wait for the driver. Readers wait if there are more.
pub const EVENTS: usize = 256;

/// A worker's place in a run.
pub struct JoinedRun {
    /// This worker's number.
    pub worker: WorkerId,
    /// The number of the run, which its other workers know, too.
    pub run: u64,
    /// The connection to the boss.
    pub boss: connection::Connection<ToWorker>,
    /// The boss's address.
    pub boss_address: SocketAddr,
    /// The sender of `events`, for further connections.
    pub sender: mpsc::Sender<ConnectionEvent<ToWorker>>,
    /// The events of this worker's connections.
    pub events: mpsc::Receiver<ConnectionEvent<ToWorker>>,
    /// The transport of the run's connections.
    pub transport: Transport,
    /// The span of this worker's log lines in this run.
    pub span: Span,
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

/// Dials the addresses of the boss, and asks for a place in its run at the first that answers.
///
/// # Errors
/// The boss does not answer, or refuses.
pub async fn join(
    endpoint: &Endpoint,
    addresses: &[SocketAddr],
    ticket: &Ticket,
    info: WorkerInfo,
) -> Result<JoinedRun, LinkError> {
    let (quic, address) = dial_boss(endpoint, ticket, addresses).await?;
    let (established, reply) =
        exchange_handshake(quic, address, &Handshake::Join(info.into())).await?;
    match reply {
        HandshakeReply::Welcome { worker, run, transport } => {
            let span = info_span!("run", worker = worker.0);
            let _in_span = span.clone().entered();
            info!(%address, "joined");
            let (sender, events) = mpsc::channel(EVENTS);
            let limit = SilenceLimit::WITH_BOSS;
            let boss = connection::Connection::start::<ToWorker>(
                established,
                Peer::Boss,
                &sender,
                transport,
                limit,
            );
            let boss_address = address;
            Ok(JoinedRun { worker, run, boss, boss_address, sender, events, transport, span })
        }
        HandshakeReply::Refused { reason, retry } => Err(LinkError::Refused { reason, retry }),
        HandshakeReply::Accepted | HandshakeReply::Status(_) => {
            Err(LinkError::Protocol { peer: "the boss".into(), reason: "it gave no place".into() })
        }
    }
}

/// Asks a boss for the status of its run, as JSON, without joining it.
///
/// # Errors
/// The boss does not answer, or refuses.
pub async fn query_status(
    endpoint: &Endpoint,
    addresses: &[SocketAddr],
    ticket: &Ticket,
) -> Result<String, LinkError> {
    let (quic, address) = dial_boss(endpoint, ticket, addresses).await?;
    let (established, reply) = exchange_handshake(quic, address, &Handshake::Status).await?;
    established.quic.close(DONE, b"status received");
    match reply {
        HandshakeReply::Status(status) => Ok(status),
        HandshakeReply::Refused { reason, retry } => Err(LinkError::Refused { reason, retry }),
        HandshakeReply::Welcome { .. } | HandshakeReply::Accepted => Err(LinkError::Protocol {
            peer: "the boss".into(),
            reason: "it gave a place to a caller that only asked for the status".into(),
        }),
    }
}

/// Dials another worker of the same run.
///
/// # Errors
/// The worker does not answer, or refuses.
pub async fn dial_peer(
    endpoint: &Endpoint,
    address: SocketAddr,
    ticket: &Ticket,
    me: WorkerId,
    run: u64,
) -> Result<EstablishedConnection, LinkError> {
    let quic = dial(endpoint, client_to_worker(ticket, address)?, address).await?;
    let handshake = Handshake::Peer { worker: me, run };
    let (established, reply) = exchange_handshake(quic, address, &handshake).await?;
    match reply {
        HandshakeReply::Accepted => Ok(established),
        HandshakeReply::Refused { reason, retry } => Err(LinkError::Refused { reason, retry }),
        HandshakeReply::Welcome { .. } | HandshakeReply::Status(_) => Err(LinkError::Protocol {
            peer: "a worker".into(),
            reason: "it answered as a boss".into(),
        }),
    }
}

/// Sends the handshake and reads the reply.
async fn exchange_handshake(
    quic: Connection,
    address: SocketAddr,
    handshake: &Handshake,
) -> Result<(EstablishedConnection, HandshakeReply), LinkError> {
    debug!(%address, kind = handshake.kind(), "handshake begins");
    let exchange = async {
        let (mut send, mut recv) = quic.open_bi().await.map_err(|e| dial_error(&e, address))?;
        handshake::write(&mut send, handshake).await?;
        let reply: HandshakeReply = handshake::read(&mut recv).await?;
        Ok((send, recv, reply))
    };
    match exchange.await {
        Ok((send, recv, reply)) => {
            debug!(%address, reply = reply.kind(), "handshake done");
            Ok((EstablishedConnection { quic, send, recv }, reply))
        }
        // In TLS 1.3 the callee refuses our key only after our side of the handshake is done.
        Err(LinkError::Lost { .. }) if quic.close_reason().is_some() => {
            let reason = quic.close_reason().unwrap_or(ConnectionError::LocallyClosed);
            Err(dial_error(&reason, address))
        }
        Err(e) => Err(e),
    }
}
