//! QUIC endpoints. Each has one UDP socket, for listening and dialling.

use crate::error::LinkError;
use crate::quic::close_codes::DONE;
use crate::quic::network_path::NetworkPath;
use crate::quic::socket::{self, SmallBuffers};
use crate::trust::identity::Identity;
use crate::trust::ticket::Ticket;
use crate::trust::tls;
use quinn::congestion::CubicConfig;
use quinn::{
    Endpoint, EndpointConfig, IdleTimeout, MtuDiscoveryConfig, TokioRuntime, TransportConfig,
    VarInt,
};
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Once};
use std::time::Duration;

/// The time for close messages to leave.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(300);
/// A silent boss or worker counts as lost after this long.
const IDLE: Duration = Duration::from_secs(3);
/// The same between workers. It is longer, so that the boss is the first to miss a worker. The boss
/// can then name the lost worker, and gets no report of a broken link first.
const IDLE_BETWEEN_WORKERS: Duration = Duration::from_secs(4);
/// The interval of keep-alive messages on an idle connection.
pub const KEEP_ALIVE: Duration = Duration::from_millis(500);
/// The bytes in flight before the first acknowledgement: 32 usual packets, as is common on the web.
/// On a path of 40 ms, the first tensor of 256 KiB arrives after 80 instead of 140 ms. The window
/// also leaves room for the first probe of half of 65,000 bytes, so that its loss delays nothing.
const FIRST_WINDOW: u64 = 32 * 1_452;
/// The assumed round trip within one machine until one is measured. A busy machine is slow.
const INITIAL_RTT_LOCAL: Duration = Duration::from_millis(20);
/// The most bytes of one stream in flight or unread. On a path of 100 ms that is 2.5 Gbit/s.
const STREAM_WINDOW: u32 = 32 << 20;
/// The most bytes of one connection in flight or unread. On a path of 100 ms that is 10 Gbit/s.
const CONNECTION_WINDOW: u32 = 128 << 20;
/// The largest UDP payload.
const LARGEST_PAYLOAD: u16 = 65_527;
/// The most tensors in flight at a time.
const STREAMS: u32 = 256;

/// The callers that a process accepts, and the settings of connections to them.
pub struct AcceptPolicy {
    config: quinn::ServerConfig,
    idle: Duration,
}

impl AcceptPolicy {
    /// The policy of a boss, which accepts workers.
    ///
    /// # Errors
    /// TLS refuses the key.
    pub fn of_boss(identity: &Identity) -> Result<Self, LinkError> {
        Ok(AcceptPolicy { config: tls::boss_server_config(identity)?, idle: IDLE })
    }

    /// The policy of a worker, which accepts other workers.
    ///
    /// # Errors
    /// TLS refuses the key.
    pub fn of_worker(ticket: &Ticket) -> Result<Self, LinkError> {
        Ok(AcceptPolicy { config: tls::worker_server_config(ticket)?, idle: IDLE_BETWEEN_WORKERS })
    }

    /// Makes the configuration for a caller with this address.
    pub fn config(&self, caller: SocketAddr) -> Arc<quinn::ServerConfig> {
        let mut config = self.config.clone();
        config.transport_config(transport(self.idle, NetworkPath::to(caller)));
        Arc::new(config)
    }
}

/// Opens the boss's endpoint. `[::]` stands for all addresses of the machine, IPv6 and IPv4.
///
/// # Errors
/// The address cannot be used.
pub fn listen(
    identity: &Identity,
    address: SocketAddr,
) -> Result<(Endpoint, Option<SmallBuffers>), LinkError> {
    endpoint(address, AcceptPolicy::of_boss(identity)?.config)
}

/// Opens a worker's endpoint, for IPv6 and IPv4. It dials the boss at one of `boss`, and other
/// workers dial it.
///
/// # Errors
/// The system gives no socket.
pub fn worker_endpoint(ticket: &Ticket, boss: &[SocketAddr]) -> Result<Endpoint, LinkError> {
    let any = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0);
    let (endpoint, small) = endpoint(any, AcceptPolicy::of_worker(ticket)?.config)?;
    // A worker on the boss's machine would repeat the boss's warning.
    let is_elsewhere = boss.iter().any(|boss| !NetworkPath::to(*boss).same_machine);
    if let Some(small) = small.filter(|_| is_elsewhere) {
        WARNED.call_once(|| drop(writeln!(std::io::stderr(), "{small}")));
    }
    Ok(endpoint)
}

/// A worker that joins again does not repeat its warning.
static WARNED: Once = Once::new();

/// Makes the configuration by which a worker dials the boss.
///
/// # Errors
/// TLS refuses the key.
pub fn client_to_boss(
    ticket: &Ticket,
    address: SocketAddr,
) -> Result<quinn::ClientConfig, LinkError> {
    let mut config = tls::boss_client_config(ticket)?;
    config.transport_config(transport(IDLE, NetworkPath::to(address)));
    Ok(config)
}

/// Makes the configuration by which a worker dials another worker.
///
/// # Errors
/// TLS refuses the key.
pub fn client_to_worker(
    ticket: &Ticket,
    address: SocketAddr,
) -> Result<quinn::ClientConfig, LinkError> {
    let mut config = tls::worker_client_config(ticket)?;
    config.transport_config(transport(IDLE_BETWEEN_WORKERS, NetworkPath::to(address)));
    Ok(config)
}

fn endpoint(
    address: SocketAddr,
    server: quinn::ServerConfig,
) -> Result<(Endpoint, Option<SmallBuffers>), LinkError> {
    let failed = |e: std::io::Error| match e.kind() {
        std::io::ErrorKind::AddrInUse => LinkError::PortInUse { port: address.port() },
        _ => LinkError::Socket { address, reason: e.to_string() },
    };
    let (socket, small) = socket::bind(address).map_err(failed)?;
    let mut config = EndpointConfig::default();
    // The kernel delivers at most this much at once.
    config.max_udp_payload_size(LARGEST_PAYLOAD).map_err(LinkError::tls)?;
    let endpoint =
        Endpoint::new_with_abstract_socket(config, Some(server), socket, Arc::new(TokioRuntime));
    Ok((endpoint.map_err(failed)?, small))
}

/// Makes the transport settings of a connection.
///
/// The choices were measured in a few runs on a busy machine, so only large differences count:
///
/// - On loopback, Cubic, NewReno, BBR and rarer acknowledgements made no difference. Most send
///   windows from 512 KiB up were equal. A window of 2 MiB was four times slower in three of four
///   runs, for unknown reasons, so windows are wide.
/// - With 20 ms each way and 100 Mbit/s (one run each), Cubic and NewReno reached 75 to 96 %, and
///   lost about a thousand packets. BBR was as fast, and lost over twenty thousand.
///
/// So the congestion controller is quinn's own Cubic, with a larger first window.
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
    // Streams that were opened first are sent first, because the next layer waits for the oldest
    // tensor.
    config.send_fairness(false);
    // Starts at a size that every path carries, and finds the largest packet that arrives.
    let mut discovery = MtuDiscoveryConfig::default();
    discovery.upper_bound(path.largest_packet);
    config.mtu_discovery_config(Some(discovery));
    config.enable_segmentation_offload(path.segmentation_offload());
    let mut congestion = CubicConfig::default();
    congestion.initial_window(FIRST_WINDOW);
    config.congestion_controller_factory(Arc::new(congestion));
    if path.same_machine {
        // Determines when lost packets of the handshake are sent again.
        config.initial_rtt(INITIAL_RTT_LOCAL);
    }
    Arc::new(config)
}

/// Guesses the address by which other machines reach this one: the address that it would send from.
/// IPv4 comes first. Sends nothing.
pub fn own_address() -> Option<IpAddr> {
    // These are reserved for documentation (RFC 5737, RFC 3849).
    let anybody = [
        IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
        IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
    ];
    anybody.into_iter().find_map(|remote| {
        let any = match remote {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let socket = std::net::UdpSocket::bind((any, 0)).ok()?;
        // Connecting a UDP socket only picks a route.
        socket.connect((remote, 9)).ok()?;
        socket.local_addr().ok().map(|address| address.ip())
    })
}

/// Closes all connections of an endpoint, so that the other ends notice at once.
#[derive(Clone)]
pub struct EndpointCloser(Endpoint);

impl EndpointCloser {
    /// Makes a closer of this endpoint.
    pub fn of(endpoint: &Endpoint) -> Self {
        EndpointCloser(endpoint.clone())
    }

    /// Closes the connections, and waits up to 300 ms until the other ends know.
    pub async fn close(self, reason: &str) {
        self.0.close(DONE, reason.as_bytes());
        tokio::time::timeout(CLOSE_TIMEOUT, self.0.wait_idle()).await.ok();
    }
}
