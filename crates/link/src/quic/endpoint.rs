//! QUIC endpoints: one UDP socket each, for listening and dialling.

use crate::error::LinkError;
use crate::quic::close_codes::DONE;
use crate::quic::network_path::NetworkPath;
use crate::quic::socket::{self, SmallBuffers};
use crate::trust::identity::Identity;
use crate::trust::ticket::Ticket;
use crate::trust::tls;
use quinn::congestion::CubicConfig;
use quinn::{Endpoint, EndpointConfig, IdleTimeout, MtuDiscoveryConfig, TokioRuntime, TransportConfig, VarInt};
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Once};
use std::time::Duration;

/// Last words are given so long to get out.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(300);
/// A silent boss or worker counts as gone after this long.
const IDLE: Duration = Duration::from_secs(3);
/// The same between workers: longer, so that the boss is the first to miss a worker and can say which
/// one is lost, rather than hear of a broken link.
const IDLE_BETWEEN_WORKERS: Duration = Duration::from_secs(4);
/// An idle connection says that it is alive this often.
pub const KEEP_ALIVE: Duration = Duration::from_millis(500);
/// Bytes on their way before the first acknowledgement: 32 usual packets, as others on the web do. The first
/// tensor of 256 KiB arrives after 80 instead of 140 ms on a path of 40 ms; and a search for packets of up to
/// 65,000 bytes holds nothing up where the first of them, of half that size, is lost.
const FIRST_WINDOW: u64 = 32 * 1_452;
/// A round trip on one machine, before one was measured; a busy machine takes its time.
const INITIAL_RTT_LOCAL: Duration = Duration::from_millis(20);
/// Bytes of one stream on their way or unread: on a path of 100 ms, 2.5 Gbit/s.
const STREAM_WINDOW: u32 = 32 << 20;
/// Bytes of one connection on their way or unread: on a path of 100 ms, 10 Gbit/s.
const CONNECTION_WINDOW: u32 = 128 << 20;
/// The largest UDP payload there is.
const LARGEST_PAYLOAD: u16 = 65_527;
/// Tensors on their way at a time.
const STREAMS: u32 = 256;

/// Whom a process lets in, and how it talks to each.
pub struct AcceptPolicy {
    config: quinn::ServerConfig,
    idle: Duration,
}

impl AcceptPolicy {
    /// A boss's: workers.
    pub fn of_boss(identity: &Identity) -> Result<Self, LinkError> {
        Ok(AcceptPolicy { config: tls::boss_server_config(identity)?, idle: IDLE })
    }

    /// A worker's: other workers.
    pub fn of_worker(ticket: &Ticket) -> Result<Self, LinkError> {
        Ok(AcceptPolicy { config: tls::worker_server_config(ticket)?, idle: IDLE_BETWEEN_WORKERS })
    }

    /// The configuration for a caller from there.
    pub fn config(&self, caller: SocketAddr) -> Arc<quinn::ServerConfig> {
        let mut config = self.config.clone();
        config.transport_config(transport(self.idle, NetworkPath::to(caller)));
        Arc::new(config)
    }
}

/// The boss's address.
pub fn listen(identity: &Identity, address: SocketAddr) -> Result<(Endpoint, Option<SmallBuffers>), LinkError> {
    endpoint(address, AcceptPolicy::of_boss(identity)?.config)
}

/// A worker's endpoint: it dials the boss at `boss`, and other workers dial it.
pub fn worker_endpoint(ticket: &Ticket, boss: SocketAddr) -> Result<Endpoint, LinkError> {
    let any = match boss.ip() {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let (endpoint, small) = endpoint(SocketAddr::new(any, 0), AcceptPolicy::of_worker(ticket)?.config)?;
    // A worker on the boss's machine would say what the boss says.
    if let Some(small) = small.filter(|_| !NetworkPath::to(boss).same_machine) {
        SAID.call_once(|| drop(writeln!(std::io::stderr(), "{small}")));
    }
    Ok(endpoint)
}

/// A worker that joins again does not say it again.
static SAID: Once = Once::new();

/// How a worker dials the boss at that address.
pub fn client_to_boss(ticket: &Ticket, address: SocketAddr) -> Result<quinn::ClientConfig, LinkError> {
    let mut config = tls::boss_client_config(ticket)?;
    config.transport_config(transport(IDLE, NetworkPath::to(address)));
    Ok(config)
}

/// How a worker dials another worker at that address.
pub fn client_to_worker(ticket: &Ticket, address: SocketAddr) -> Result<quinn::ClientConfig, LinkError> {
    let mut config = tls::worker_client_config(ticket)?;
    config.transport_config(transport(IDLE_BETWEEN_WORKERS, NetworkPath::to(address)));
    Ok(config)
}

fn endpoint(address: SocketAddr, server: quinn::ServerConfig) -> Result<(Endpoint, Option<SmallBuffers>), LinkError> {
    let failed = |e: std::io::Error| match e.kind() {
        std::io::ErrorKind::AddrInUse => LinkError::PortInUse { port: address.port() },
        _ => LinkError::Socket { address, reason: e.to_string() },
    };
    let (socket, small) = socket::bind(address).map_err(failed)?;
    let mut config = EndpointConfig::default();
    // The most that the kernel hands over at once.
    config.max_udp_payload_size(LARGEST_PAYLOAD).map_err(LinkError::tls)?;
    let endpoint = Endpoint::new_with_abstract_socket(config, Some(server), socket, Arc::new(TokioRuntime));
    Ok((endpoint.map_err(failed)?, small))
}

/// How a connection sends.
///
/// Measured on a busy machine, a few runs each, so only large differences count. On loopback Cubic, NewReno, BBR
/// and rarer acknowledgements could not be told apart, nor could most send windows from 512 KiB up; 2 MiB was
/// four times slower in three runs of four, for reasons not known, so windows are left wide. With 20 ms each
/// way and 100 Mbit/s, once each, Cubic and NewReno reached 75 to 96 % with about a thousand packets lost; BBR
/// was as fast and lost over twenty thousand. So it is quinn's own Cubic, with a larger first window.
fn transport(idle: Duration, path: NetworkPath) -> Arc<TransportConfig> {
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
    // Starts at what every path carries, and finds the largest packet that arrives.
    let mut discovery = MtuDiscoveryConfig::default();
    discovery.upper_bound(path.largest_packet);
    config.mtu_discovery_config(Some(discovery));
    config.enable_segmentation_offload(path.segmentation_offload());
    let mut congestion = CubicConfig::default();
    congestion.initial_window(FIRST_WINDOW);
    config.congestion_controller_factory(Arc::new(congestion));
    if path.same_machine {
        // The time after which the first packets are sent again.
        config.initial_rtt(INITIAL_RTT_LOCAL);
    }
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

/// Closes all connections of an endpoint, so that the other ends know at once.
#[derive(Clone)]
pub struct EndpointCloser(Endpoint);

impl EndpointCloser {
    /// Of this endpoint.
    pub fn of(endpoint: &Endpoint) -> Self {
        EndpointCloser(endpoint.clone())
    }

    /// Closes the connections and gives the word some time to get out.
    pub async fn close(self, reason: &str) {
        self.0.close(DONE, reason.as_bytes());
        tokio::time::timeout(CLOSE_TIMEOUT, self.0.wait_idle()).await.ok();
    }
}
