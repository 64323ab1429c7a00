//! Dials the addresses of the boss, and keeps the first connection (RFC 8305, "happy eyeballs").

use crate::connection::readers::close_reason;
use crate::error::LinkError;
use crate::quic::endpoint::{client_to_boss, client_to_worker};
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
/// No address leads to the boss. The error is that of an address that answered, if any did, but not
/// that of another boss while an address is silent.
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

/// Sends a packet to the address of a worker that dials this one. Stateful firewalls, and routers
/// that translate addresses, then let its packets pass, because they look like answers (UDP hole
/// punching, RFC 5128).
///
/// # Errors
/// No packet can be sent to the address.
pub fn punch_hole(
    endpoint: &Endpoint,
    ticket: &Ticket,
    address: SocketAddr,
) -> Result<(), LinkError> {
    let attempt = endpoint.connect_with(client_to_worker(ticket, address)?, address, SERVER_NAME);
    // The end of the attempt is the packet.
    attempt.map(drop).map_err(|e| LinkError::NoAnswer { address, reason: e.to_string() })
}

/// The error of an address that answered says more than silence. But another boss at one address
/// says nothing of the true one, which may only be silent at its own, so that a later try can help.
/// Silence at several addresses names them all.
fn most_telling(mut errors: Vec<LinkError>) -> LinkError {
    let (mut silent, mut others) = (Vec::new(), Vec::new());
    let mut telling = None;
    for (place, error) in errors.iter().enumerate() {
        match error {
            LinkError::NoAnswer { address, reason } => silent.push((*address, reason.clone())),
            LinkError::WrongBoss { address } => others.push(*address),
            _ => telling = telling.or(Some(place)),
        }
    }
    if let Some(place) = telling {
        return errors.swap_remove(place);
    }
    let mut silent = silent.into_iter();
    let Some((address, mut reason)) = silent.next() else {
        return match others.first() {
            Some(&address) => LinkError::WrongBoss { address },
            None => LinkError::Host { host: String::new(), reason: "it has no address".into() },
        };
    };
    for (other, _) in silent {
        reason += &format!("; nor from {other}");
    }
    for other in others {
        reason += &format!("; the process at {other} is another boss");
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

    /// A name may have an old address, at which somebody else's boss is now.
    #[test]
    fn another_boss_at_one_address_is_no_error_while_the_boss_may_be_at_another() {
        let other = |address: &str| LinkError::WrongBoss { address: address.parse().unwrap() };
        let (first, second) = ("10.0.0.2:1", "10.0.0.3:1");
        for errors in [vec![other(first), silence(second)], vec![silence(second), other(first)]] {
            let error = most_telling(errors);
            assert!(error.is_transient());
            assert_eq!(
                error.to_string(),
                "no answer from 10.0.0.3:1 (timed out; the process at 10.0.0.2:1 is another boss)"
            );
        }
        let error = most_telling(vec![other(first), other(second)]);
        assert!(matches!(error, LinkError::WrongBoss { .. }), "{error}");
        assert!(!error.is_transient());
        let address = second.parse().unwrap();
        let error = most_telling(vec![other(first), LinkError::TicketRefused { address }]);
        assert!(matches!(error, LinkError::TicketRefused { .. }), "{error}");
    }
}
