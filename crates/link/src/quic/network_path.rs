//! The known figures of the path to another process before the first packet: whether it stays on
//! this machine, and how large packets may be.
//!
//! | way | packets up to | segmentation offload |
//! | --- | --- | --- |
//! | this machine (loopback) | 65,000 bytes | off: ten of them in one call are more than the kernel takes |
//! | a network with jumbo frames | what the route says, less the headers | off, for the same reason |
//! | any other network | what the route says, less the headers | on |
//!
//! The route only says how far to try. Every connection begins with packets of 1,200 bytes, which every
//! path carries, and QUIC's own probes (RFC 8899) find the largest that arrive; where they stop arriving
//! later, it goes back to 1,200 bytes by itself.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// Packets beyond this are not tried: a little below the 65,507 bytes of the largest UDP payload.
pub(crate) const LARGEST_PACKET: u16 = 65_000;
/// Tried if the system has no figures of the route: Ethernet's 1500 bytes less IPv6 and UDP
/// headers.
const USUAL_PACKET: u16 = 1_452;
/// QUIC asks this much of every path.
const SMALLEST_PACKET: u16 = 1_200;
/// The most that the kernel takes in one call with segmentation offload.
const LARGEST_BATCH: u16 = 65_507;
/// The number of packets that quinn puts into one call.
const BATCH: u16 = 10;

/// The way to another process.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct NetworkPath {
    /// Both ends have the same address, or one that never leaves the machine.
    pub(crate) same_machine: bool,
    /// The largest UDP payload worth trying.
    pub(crate) largest_packet: u16,
}

impl NetworkPath {
    /// Asks the kernel for its route; sends nothing. Without figures, a path counts as a usual one.
    pub(crate) fn to(remote: SocketAddr) -> Self {
        // A socket for both IPv4 and IPv6 writes an IPv4 address as an IPv6 one.
        let remote = SocketAddr::new(remote.ip().to_canonical(), remote.port());
        Self::ask(remote)
            .unwrap_or(NetworkPath { same_machine: remote.ip().is_loopback(), largest_packet: USUAL_PACKET })
    }

    fn ask(remote: SocketAddr) -> Option<Self> {
        let any: IpAddr = match remote {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = UdpSocket::bind((any, 0)).ok()?;
        // Connecting a UDP socket only picks a route.
        socket.connect(remote).ok()?;
        let same_machine = remote.ip().is_loopback() || socket.local_addr().ok()?.ip() == remote.ip();
        Some(NetworkPath { same_machine, largest_packet: packet(mtu(&socket, remote).unwrap_or(0)) })
    }

    /// Whether several packets go to the kernel as one.
    pub(crate) fn segmentation_offload(&self) -> bool {
        self.largest_packet <= LARGEST_BATCH / BATCH
    }
}

/// The route's largest IP packet.
#[cfg(target_os = "linux")]
fn mtu(socket: &UdpSocket, remote: SocketAddr) -> Option<u32> {
    use rustix::net::sockopt::{ip_mtu, ipv6_mtu};
    if remote.is_ipv4() { ip_mtu(socket) } else { ipv6_mtu(socket) }.ok()
}

/// Other systems have other ways to ask.
#[cfg(not(target_os = "linux"))]
fn mtu(_socket: &UdpSocket, _remote: SocketAddr) -> Option<u32> {
    None
}

/// The UDP payload that fits an IP packet of that size, with the headers of IPv6, the larger ones.
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
