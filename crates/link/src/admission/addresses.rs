//! The addresses of a boss, from the name that the user gave.

use crate::error::LinkError;
use std::net::{Ipv6Addr, SocketAddr};

/// The most addresses that are dialled. A name rarely has more than four.
const MAX_ADDRESSES: usize = 8;

/// Resolves the name or address of the boss's machine. Returns all its addresses in the order of
/// the system, with IPv6 and IPv4 in turns, so that one broken family costs little (RFC 8305,
/// section 4).
///
/// # Errors
/// The host cannot be resolved.
pub async fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, LinkError> {
    let host = host.trim();
    let failed = |reason: String| LinkError::Host { host: host.to_string(), reason };
    check_host(host).map_err(|hint| failed(hint.into()))?;
    let name = without_brackets(host);
    let found = tokio::net::lookup_host((name, port)).await.map_err(|e| failed(e.to_string()))?;
    let addresses = in_turns(found);
    match addresses.is_empty() {
        true => Err(failed("it has no address".into())),
        false => Ok(addresses),
    }
}

/// Checks that a text may be the name or the address of a machine: no URL, and without a port.
///
/// # Errors
/// It is none. The text is advice.
pub fn check_host(text: &str) -> Result<(), &'static str> {
    match is_host(text.trim()) {
        true => Ok(()),
        false => Err("name the machine alone, as 192.168.1.20; MODEL_PORT has the port"),
    }
}

/// The host and the port as one text, such as `[fd00::2]:1024`.
pub fn host_and_port(host: &str, port: u16) -> String {
    match without_brackets(host) {
        host if is_ipv6(host) => format!("[{host}]:{port}"),
        host => format!("{host}:{port}"),
    }
}

fn is_host(text: &str) -> bool {
    let has_port = match text.rsplit_once(':') {
        Some((name, port)) => !name.contains(':') && port.parse::<u16>().is_ok(),
        None => false,
    };
    !text.contains('/') && !has_port && text.parse::<SocketAddr>().is_err()
}

/// Whether a text is an IPv6 address. It may have a zone, as in `fe80::1%eth0`.
fn is_ipv6(text: &str) -> bool {
    text.split('%').next().is_some_and(|address| address.parse::<Ipv6Addr>().is_ok())
}

/// An IPv6 address as it is written in an URL may be given, too.
fn without_brackets(host: &str) -> &str {
    let inside = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    inside.unwrap_or(host)
}

/// Each address once. The families alternate, and the first stays first.
fn in_turns(found: impl Iterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let mut addresses: Vec<SocketAddr> = Vec::new();
    for address in found {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    let is_first_kind = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let (first, second): (Vec<_>, Vec<_>) =
        addresses.into_iter().partition(|address| address.is_ipv6() == is_first_kind);
    let longest = first.len().max(second.len());
    let pair = |place: usize| first.get(place).into_iter().chain(second.get(place)).copied();
    (0..longest).flat_map(pair).take(MAX_ADDRESSES).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(texts: &[&str]) -> Vec<SocketAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn families_alternate_and_each_address_comes_once() {
        let found = ["[fd00::1]:1", "[fd00::2]:1", "[fd00::1]:1", "10.0.0.1:1", "[fd00::3]:1"];
        let expected = ["[fd00::1]:1", "10.0.0.1:1", "[fd00::2]:1", "[fd00::3]:1"];
        assert_eq!(in_turns(addresses(&found).into_iter()), addresses(&expected));
        let found = ["10.0.0.1:1", "10.0.0.2:1", "[fd00::1]:1"];
        let expected = ["10.0.0.1:1", "[fd00::1]:1", "10.0.0.2:1"];
        assert_eq!(in_turns(addresses(&found).into_iter()), addresses(&expected));
        let many = (1..=20).map(|last| SocketAddr::from(([10, 0, 0, last], 1)));
        assert_eq!(in_turns(many).len(), MAX_ADDRESSES);
    }

    #[test]
    fn a_host_and_a_port_are_written_as_in_an_url() {
        assert_eq!(host_and_port("lab.local", 1024), "lab.local:1024");
        assert_eq!(host_and_port("10.0.0.1", 1), "10.0.0.1:1");
        assert_eq!(host_and_port("fd00::2", 1024), "[fd00::2]:1024");
        assert_eq!(host_and_port("[fd00::2]", 1024), "[fd00::2]:1024");
        assert_eq!(host_and_port("fe80::1%eth0", 1024), "[fe80::1%eth0]:1024");
        assert_eq!(host_and_port("lab.local:1024", 1024), "lab.local:1024:1024");
    }

    #[test]
    fn a_name_with_a_port_is_no_host() {
        for host in ["lab", "lab.local", "10.0.0.1", "::1", "fd00::2", "[fd00::2]", "fe80::1%eth0"]
        {
            assert!(is_host(host), "{host}");
        }
        let others = ["lab:1024", "lab.local:1024", "10.0.0.1:1", "[fd00::2]:1024", "quic://lab"];
        assert!(!others.iter().any(|text| is_host(text)));
    }

    #[tokio::test]
    async fn addresses_need_no_name_and_may_have_brackets() {
        for (host, expected) in
            [("127.0.0.1", "127.0.0.1:7"), ("::1", "[::1]:7"), ("[::1]", "[::1]:7")]
        {
            assert_eq!(resolve(host, 7).await.unwrap(), addresses(&[expected]), "{host}");
        }
        let error = resolve("", 7).await.unwrap_err().to_string();
        assert!(error.starts_with("cannot find the host ``: "), "{error}");
        let error = resolve("nowhere.invalid:1024", 7).await.unwrap_err().to_string();
        let hint = "name the machine alone, as 192.168.1.20; MODEL_PORT has the port";
        assert!(error.ends_with(hint), "{error}");
    }
}
