//! Moves frames between processes: sockets, identity and join ticket, TLS, QUIC connections, shared
//! memory. It knows nothing of layers or gradients, and of sessions only the frames.
//!
//! A boss opens a [`Listener`]; a worker [`join`]s it. TLS 1.3 proves both ends before the first byte
//! of ours (see [`trust::tls`]). Crate `runtime` then drives the sessions over these connections.

pub mod connection;
mod error;
pub mod memory;
mod nccl;
pub mod quic;
#[doc(hidden)]
pub mod testing;
pub mod trust;

pub use error::LinkError;
pub use memory::payload::{Payload, Slots};
pub use memory::pool::keep_received_memory;
pub use memory::shared::Transport;
pub use nccl::{Nccl, NcclInfo};
pub use quic::endpoint::{own_address, worker_endpoint, EndpointCloser};
pub use quic::report::{Carrier, PathReport};
pub use trust::handshake::WorkerInfo;
pub use trust::identity::{local_ticket, Identity, CONFIG_DIR};
pub use trust::join::{join, query_status, resolve, JoinedRun};
pub use trust::listener::{Listener, ListenerEvent};
pub use trust::ticket::{Ticket, TicketError};
