//! QUIC endpoints: one UDP socket each, for listening and dialling.

use crate::error::LinkError;
use crate::identity::Identity;
use crate::ticket::Ticket;
use crate::tls;
use quinn::{Endpoint, EndpointConfig, IdleTimeout, TokioRuntime, TransportConfig, VarInt};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// A silent boss or worker counts as gone after this long.
const IDLE: Duration = Duration::from_secs(3);
/// The same between workers: longer, so that the boss is the first to miss a worker and can say which
/// one is lost, rather than hear of a broken link.
const IDLE_BETWEEN_WORKERS: Duration = Duration::from_secs(4);
/// An idle connection says that it is alive this often.
const KEEP_ALIVE: Duration = Duration::from_millis(500);
/// Kernel buffers asked for; the system may grant less.
const SOCKET_BUFFER: usize = 8 << 20;
/// Bytes of one stream on their way or unread.
const STREAM_WINDOW: u32 = 32 << 20;
/// Bytes of one connection on their way or unread.
const CONNECTION_WINDOW: u32 = 128 << 20;
/// Tensors on their way at a time.
const STREAMS: u32 = 256;

/// Where the boss listens.
pub(crate) fn listen(identity: &Identity, address: SocketAddr) -> Result<Endpoint, LinkError> {
    let mut config = tls::boss_server(identity)?;
    config.transport_config(transport(IDLE));
    endpoint(address, config)
}

/// A worker's endpoint: it dials the boss at `boss`, and other workers dial it.
pub fn worker_endpoint(ticket: &Ticket, boss: SocketAddr) -> Result<Endpoint, LinkError> {
    let mut config = tls::worker_server(ticket)?;
    config.transport_config(transport(IDLE_BETWEEN_WORKERS));
    let any = match boss.ip() {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    endpoint(SocketAddr::new(any, 0), config)
}

/// How a worker dials the boss.
pub(crate) fn client_to_boss(ticket: &Ticket) -> Result<quinn::ClientConfig, LinkError> {
    let mut config = tls::to_boss(ticket)?;
    config.transport_config(transport(IDLE));
    Ok(config)
}

/// How a worker dials another worker.
pub(crate) fn client_to_worker(ticket: &Ticket) -> Result<quinn::ClientConfig, LinkError> {
    let mut config = tls::to_worker(ticket)?;
    config.transport_config(transport(IDLE_BETWEEN_WORKERS));
    Ok(config)
}

fn endpoint(address: SocketAddr, server: quinn::ServerConfig) -> Result<Endpoint, LinkError> {
    let failed = |e: std::io::Error| match e.kind() {
        std::io::ErrorKind::AddrInUse => LinkError::PortInUse { port: address.port() },
        _ => LinkError::Socket { address, reason: e.to_string() },
    };
    let socket = socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::DGRAM, None);
    let socket = socket.map_err(failed)?;
    // Larger buffers help; a system that grants less still works.
    socket.set_recv_buffer_size(SOCKET_BUFFER).ok();
    socket.set_send_buffer_size(SOCKET_BUFFER).ok();
    if address.is_ipv6() {
        socket.set_only_v6(false).ok();
    }
    socket.bind(&address.into()).map_err(failed)?;
    socket.set_nonblocking(true).map_err(failed)?;
    let runtime = Arc::new(TokioRuntime);
    Endpoint::new(EndpointConfig::default(), Some(server), socket.into(), runtime).map_err(failed)
}

fn transport(idle: Duration) -> Arc<TransportConfig> {
    let mut config = TransportConfig::default();
    config.max_idle_timeout(IdleTimeout::try_from(idle).ok());
    config.keep_alive_interval(Some(KEEP_ALIVE));
    config.stream_receive_window(VarInt::from_u32(STREAM_WINDOW));
    config.receive_window(VarInt::from_u32(CONNECTION_WINDOW));
    config.send_window(u64::from(CONNECTION_WINDOW));
    config.max_concurrent_uni_streams(VarInt::from_u32(STREAMS));
    config.max_concurrent_bidi_streams(VarInt::from_u32(1));
    config.datagram_receive_buffer_size(None);
    // Streams that were opened first are sent first: the next layer waits for the oldest tensor.
    config.send_fairness(false);
    Arc::new(config)
}

/// The address by which other machines most likely reach this one: the one it would send from. Sends
/// nothing.
pub fn own_address() -> Option<IpAddr> {
    let socket = std::net::UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    // 192.0.2.1 is kept for documentation (RFC 5737); connecting a UDP socket only picks a route.
    socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
    socket.local_addr().ok().map(|address| address.ip())
}
