//! Raw connections, for tests of what this end makes of another that does not keep to the protocol.

use crate::endpoint;
use crate::error::LinkError;
use crate::hello::{self, Hello, Reply, WorkerInfo};
use crate::identity::Identity;
use crate::ticket::Ticket;
use crate::tls::SERVER_NAME;
use quinn::{Connection, Endpoint, RecvStream, SendStream};
use std::net::SocketAddr;

/// Dials a boss as a worker does. The handshake is done; nothing has been said.
pub async fn dial(endpoint: &Endpoint, address: SocketAddr, ticket: &Ticket) -> Result<Connection, LinkError> {
    let failed = |reason: String| LinkError::NoAnswer { address, reason };
    let config = endpoint::client_to_boss(ticket)?;
    let connecting = endpoint.connect_with(config, address, SERVER_NAME).map_err(|e| failed(e.to_string()))?;
    connecting.await.map_err(|e| failed(e.to_string()))
}

/// Asks for a place as a worker does, and gives the control stream.
pub async fn greet(quic: &Connection, info: WorkerInfo) -> Result<(SendStream, RecvStream), LinkError> {
    let lost = |e: quinn::ConnectionError| LinkError::Lost { peer: "the boss".into(), reason: e.to_string() };
    let (mut send, mut recv) = quic.open_bi().await.map_err(lost)?;
    hello::write(&mut send, &Hello::Join(info)).await?;
    match hello::read(&mut recv).await? {
        Reply::Welcome { .. } => Ok((send, recv)),
        other => Err(LinkError::Refused { reason: format!("{other:?}"), retry: false }),
    }
}

/// Listens as a boss does.
pub fn listen(identity: &Identity, address: SocketAddr) -> Result<Endpoint, LinkError> {
    endpoint::listen(identity, address)
}
