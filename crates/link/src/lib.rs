//! The only sockets and the only clock: QUIC endpoints, identity and join ticket, framed streams, and
//! the drivers that feed a session and carry out its effects.
//!
//! A boss opens a [`Listener`] and starts the run with the workers that joined; a worker [`join`]s and
//! [`serve`]s. Both ends are proven by TLS 1.3 before the first byte of ours (see [`tls`]).

mod acceptor;
mod boss_driver;
mod clock;
mod compressed;
mod compression;
mod compute;
mod connection;
mod endpoint;
mod ends;
mod error;
mod handshake;
mod hung;
mod identity;
mod interrupt;
mod join;
mod kept;
mod lane;
mod link_message;
mod listener;
mod listening;
mod memory;
mod nccl;
mod outgoing;
mod path;
mod payload;
mod pool;
mod probe;
mod report;
mod residuals;
mod sample_thread;
mod socket;
mod stage_driver;
mod sum_thread;
mod summing;
mod sums;
mod taking;
#[doc(hidden)]
pub mod testing;
mod ticket;
pub mod tls;
mod wire;

pub use boss_driver::{Handle, PoolEvent};
pub use compression::decompressed;
pub use compute::{Compute, ComputeThread};
pub use endpoint::{own_address, worker_endpoint, Farewell};
pub use error::LinkError;
pub use handshake::WorkerInfo;
pub use identity::{ticket_on_this_machine, Identity, CONFIG_DIR};
pub use interrupt::Interrupt;
pub use join::{join, look, resolve, Membership};
pub use kept::Kept;
pub use listener::{Listener, ListenerEvent};
pub use memory::Transport;
pub use nccl::{Nccl, NcclInfo};
pub use payload::{Payload, Slots};
pub use pool::keep_received_memory;
pub use report::{Carrier, PathReport};
pub use sample_thread::ReadSamples;
pub use stage_driver::serve;
pub use ticket::{Ticket, TicketError};
