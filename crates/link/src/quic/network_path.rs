//! The figures of the path to another process that are known before the first packet: whether it
//! stays within this machine, and how large packets may be.
//!
//! | path | packets up to | segmentation offload |
//! | --- | --- | --- |
//! | this machine (loopback) | 65,000 bytes | off: a call takes less than ten of them |
//! | with jumbo frames | the route's size less headers | off, for the same reason |
//! | any other network | the route's size less headers | on |
//!
//! The route only limits the search. Every connection begins with packets of 1,200 bytes, which
//! every path carries. QUIC's probes (RFC 8899) find the largest packets that arrive. If these stop
//! arriving later, QUIC returns to 1,200 bytes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// The largest packet that is tried: a little below 65,507 bytes, the largest UDP payload over
/// IPv4.
pub(crate) const LARGEST_PACKET: u16 = 65_000;
/// The largest packet that is tried if the system gives no figures: Ethernet's 1500 bytes less the
/// headers of IPv6 and UDP.
const USUAL_PACKET: u16 = 1_452;
/// The packet size that QUIC requires of every path.
const SMALLEST_PACKET: u16 = 1_200;
/// The most bytes that the kernel takes in one call with segmentation offload.
const LARGEST_BATCH: u16 = 65_507;
/// The number of packets that quinn sends in one call.
const BATCH: u16 = 10;

/// The path to another process.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct NetworkPath {
    /// Whether both ends have the same address, or a loopback address.
    pub(crate) same_machine: bool,
    /// The largest UDP payload worth trying.
    pub(crate) largest_packet: u16,
}

/// The usual form of an address. A socket for both IPv6 and IPv4 writes an IPv4 address as an IPv6
/// one.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => SocketAddr::new(ip.into(), address.port()),
        // It may have a zone, as link-local ones have.
        IpAddr::V6(_) => address,
    }
}

impl NetworkPath {
    /// Asks the kernel for its route. Sends nothing. Without figures, the path counts as usual.
    pub(crate) fn to(remote: SocketAddr) -> Self {
        let remote = canonical(remote);
        Self::ask(remote).unwrap_or(NetworkPath {
            same_machine: remote.ip().is_loopback(),
            largest_packet: USUAL_PACKET,
        })
    }

    fn ask(remote: SocketAddr) -> Option<Self> {
        let any: IpAddr = match remote {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = UdpSocket::bind((any, 0)).ok()?;
        // Connecting a UDP socket only picks a route.
        socket.connect(remote).ok()?;
        let same_machine =
            remote.ip().is_loopback() || socket.local_addr().ok()?.ip() == remote.ip();
        Some(NetworkPath {
            same_machine,
            largest_packet: packet(mtu(&socket, remote).unwrap_or(0)),
        })
    }

    /// Whether several packets go to the kernel in one call.
    pub(crate) fn segmentation_offload(&self) -> bool {
        self.largest_packet <= LARGEST_BATCH / BATCH
    }
}

/// Asks for the largest IP packet of the route.
#[cfg(target_os = "linux")]
fn mtu(socket: &UdpSocket, remote: SocketAddr) -> Option<u32> {
    use rustix::net::sockopt::{ip_mtu, ipv6_mtu};
    if remote.is_ipv4() { ip_mtu(socket) } else { ipv6_mtu(socket) }.ok()
}

/// Only Linux is asked.
#[cfg(not(target_os = "linux"))]
fn mtu(_socket: &UdpSocket, _remote: SocketAddr) -> Option<u32> {
    None
}

/// Computes the UDP payload that fits an IP packet with the headers of IPv6, which are the larger
/// ones.
fn packet(mtu: u32) -> u16 {
    if mtu == 0 {
        return USUAL_PACKET;
    }
    let packet = u16::try_from(mtu.saturating_sub(48)).unwrap_or(u16::MAX);
    packet.clamp(SMALLEST_PACKET, LARGEST_PACKET)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_by_route() {
        let path = |mtu| NetworkPath { same_machine: false, largest_packet: packet(mtu) };
        let tried = |mtu| (path(mtu).largest_packet, path(mtu).segmentation_offload());
        assert_eq!(tried(0), (1_452, true));
        assert_eq!(tried(576), (1_200, true));
        assert_eq!(tried(1_500), (1_452, true));
        assert_eq!(tried(9_000), (8_952, false));
        assert_eq!(tried(65_536), (65_000, false));
        assert_eq!(tried(u32::MAX), (65_000, false));
    }

    #[test]
    fn this_machine_is_known_by_all_its_addresses() {
        let loopback = NetworkPath::to(([127, 0, 0, 1], 9).into());
        assert!(loopback.same_machine);
        assert!(loopback.largest_packet > 1_452 || cfg!(not(target_os = "linux")), "{loopback:?}");
        if let Some(own) = crate::own_address() {
            assert!(NetworkPath::to((own, 9).into()).same_machine, "{own}");
        }
        assert!(!NetworkPath::to(([192, 0, 2, 1], 9).into()).same_machine);
    }
}
