//! Dials the addresses of the boss, and keeps the first connection (RFC 8305, "happy eyeballs").

use crate::connection::readers::close_reason;
use crate::error::LinkError;
use crate::quic::endpoint::client_to_boss;
use crate::trust::ticket::Ticket;
use crate::trust::tls::SERVER_NAME;
use quinn::{ClientConfig, Connection, ConnectionError, Endpoint};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::task::JoinSet;
use tracing::debug;

/// The time after which the next address is dialled, too (RFC 8305, section 5).
const HEAD_START: Duration = Duration::from_millis(250);

/// Connects to the first address at which the boss answers. Each further address is dialled after
/// 250 ms without an answer, or when the one before it has failed.
///
/// # Errors
/// No address leads to the boss. The error is that of an address that answered, if any did.
pub(crate) async fn dial_boss(
    endpoint: &Endpoint,
    ticket: &Ticket,
    addresses: &[SocketAddr],
) -> Result<(Connection, SocketAddr), LinkError> {
    let mut left = addresses.iter().copied();
    // The attempts that are left end with this set.
    let mut attempts = JoinSet::new();
    let mut errors = Vec::new();
    loop {
        match left.next() {
            Some(address) => {
                let (endpoint, config) = (endpoint.clone(), client_to_boss(ticket, address)?);
                attempts.spawn(async move {
                    dial(&endpoint, config, address).await.map(|quic| (quic, address))
                });
            }
            None if attempts.is_empty() => return Err(most_telling(errors)),
            None => {}
        }
        let ended = tokio::select! {
            Some(ended) = attempts.join_next() => ended,
            () = tokio::time::sleep(HEAD_START), if left.len() > 0 => continue,
        };
        match ended {
            Ok(Ok(connected)) => return Ok(connected),
            Ok(Err(error)) => errors.push(error),
            Err(failed) => debug!(%failed, "an attempt to connect ended early"),
        }
    }
}

/// Connects to one address.
pub(crate) async fn dial(
    endpoint: &Endpoint,
    config: ClientConfig,
    address: SocketAddr,
) -> Result<Connection, LinkError> {
    debug!(%address, "connecting");
    let no_answer = |reason: String| LinkError::NoAnswer { address, reason };
    let connecting = endpoint
        .connect_with(config, address, SERVER_NAME)
        .map_err(|e| no_answer(e.to_string()))?;
    let quic = connecting.await.map_err(|e| dial_error(&e, address))?;
    debug!(%address, "connected");
    Ok(quic)
}

/// An answer says more than silence. Silence at several addresses names them all.
fn most_telling(mut errors: Vec<LinkError>) -> LinkError {
    let is_answer = |error: &LinkError| !matches!(error, LinkError::NoAnswer { .. });
    if let Some(place) = errors.iter().position(is_answer) {
        return errors.swap_remove(place);
    }
    let mut silent = errors.into_iter().filter_map(|error| match error {
        LinkError::NoAnswer { address, reason } => Some((address, reason)),
        _ => None,
    });
    let Some((address, mut reason)) = silent.next() else {
        return LinkError::Host { host: String::new(), reason: "it has no address".into() };
    };
    for (other, _) in silent {
        reason += &format!("; nor from {other}");
    }
    LinkError::NoAnswer { address, reason }
}

/// Explains why a connection could not be made. TLS alerts travel as QUIC error codes 0x100 to
/// 0x1ff (RFC 9001, section 4.8).
pub(crate) fn dial_error(e: &ConnectionError, address: SocketAddr) -> LinkError {
    let is_tls = |code: u64| (0x100..0x200).contains(&code);
    match e {
        ConnectionError::TransportError(e) if is_tls(u64::from(e.code)) => {
            LinkError::WrongBoss { address }
        }
        ConnectionError::ConnectionClosed(c) if is_tls(u64::from(c.error_code)) => {
            LinkError::TicketRefused { address }
        }
        other => LinkError::NoAnswer { address, reason: close_reason(other) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn silence(address: &str) -> LinkError {
        LinkError::NoAnswer { address: address.parse().unwrap(), reason: "timed out".into() }
    }

    #[test]
    fn the_error_is_that_of_an_address_that_answered() {
        let address = "10.0.0.2:1".parse().unwrap();
        let error =
            most_telling(vec![silence("[fd00::1]:1"), LinkError::TicketRefused { address }]);
        assert!(matches!(error, LinkError::TicketRefused { .. }), "{error}");
        let error = most_telling(vec![silence("[fd00::1]:1"), silence("10.0.0.2:1")]).to_string();
        assert_eq!(error, "no answer from [fd00::1]:1 (timed out; nor from 10.0.0.2:1)");
    }
}
