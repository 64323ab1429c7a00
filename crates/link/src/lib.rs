//! Moves frames between processes: sockets, identity and join ticket, TLS, QUIC connections, shared
//! memory. This crate knows no layers, gradients or sessions.
//!
//! A boss opens a [`Listener`], and a worker [`join`]s it. TLS 1.3 authenticates both ends before
//! the handshake (see [`trust::tls`]). The crate `runtime` then drives the sessions over these
//! connections.
//!
//! ```text
//! admission   listener, acceptor (boss);  addresses, dial, join (worker);  handshake
//!   |
//! connection  ordered_stream, writers, readers;  negotiation, probe;  liveness
//!   |
//! quic        endpoint, socket, network_path          memory   payload, pool, shared (crate shm)
//!   |
//! trust       tls -> identity -> ticket
//! ```

pub mod admission;
pub mod connection;
mod error;
pub mod memory;
mod nccl;
pub mod quic;
#[doc(hidden)]
pub mod testing;
pub mod trust;

pub use admission::addresses::{check_host, host_and_port, resolve};
pub use admission::dial::punch_hole;
pub use admission::handshake::{draw_instance, instance, WorkerInfo};
pub use admission::join::{join, query_status, JoinedRun};
pub use admission::listener::{Listener, ListenerEvent};
pub use admission::StatusText;
pub use error::{IdentityError, LinkError};
pub use memory::payload::{Payload, Slots};
pub use memory::pool::{set_pool_size, PoolSize};
pub use memory::shared::Transport;
pub use nccl::{Nccl, NcclInfo};
pub use quic::endpoint::{own_address, worker_endpoint, EndpointCloser};
pub use quic::report::{Carrier, PathReport};
pub use trust::identity::{local_ticket, Identity, CONFIG_DIR};
pub use trust::ticket::{Ticket, TicketError};
