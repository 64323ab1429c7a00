//! The first words on a connection: versions, who calls, and whether it is let in.
//!
//! ```text
//! caller -> | "BOSSMAN\n" | version: u32 LE | length: u32 LE | MessagePack of handshake |
//! callee -> | "BOSSMAN\n" | version: u32 LE | length: u32 LE | MessagePack of HandshakeReply |
//! ```
//!
//! The first twelve bytes are the same in every version, so that two versions can name each other.

use crate::error::LinkError;
use crate::memory::shared::Transport;
use crate::nccl::Nccl;
use pipeline::ids::WorkerId;
use pipeline::message::PROTOCOL_VERSION;
use quinn::{RecvStream, SendStream};
use serde::{de::DeserializeOwned, Deserialize, Serialize};

const MAGIC: &[u8; 8] = b"BOSSMAN\n";
const MAX_BYTES: usize = 64 << 10;

/// A caller's statement of itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Handshake {
    /// A worker to the boss: it wants a place.
    Join(WorkerInfo),
    /// A worker to another one of the same run.
    Peer {
        /// Its number.
        worker: WorkerId,
        /// The run, as the boss named it.
        run: u64,
    },
    /// Somebody who wants to know how the run stands.
    Status,
}

/// A worker's description of its machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerInfo {
    /// The device on which it computes, such as `cpu` or `cuda:0`.
    pub device: String,
    /// Compute threads.
    pub threads: u32,
    /// Memory of the device, in bytes, where known.
    pub memory_bytes: Option<u64>,
    /// Version of the program.
    pub version: String,
    /// Whether other workers may connect to it directly.
    pub direct: bool,
    /// The machine's name.
    pub host: String,
    /// The process's number on that machine.
    pub process: u32,
    /// Whether it can sum gradients with NCCL.
    pub nccl: Nccl,
}

/// One thread of a CPU, on a machine without a name, that others may connect to.
impl Default for WorkerInfo {
    fn default() -> Self {
        WorkerInfo {
            device: "cpu".into(),
            threads: 1,
            memory_bytes: None,
            version: env!("CARGO_PKG_VERSION").into(),
            direct: true,
            host: String::new(),
            process: 0,
            nccl: Nccl::Missing("it computes on a CPU".into()),
        }
    }
}

/// The callee's answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum HandshakeReply {
    /// To a worker: it has a place.
    Welcome {
        /// Its number.
        worker: WorkerId,
        /// Names the run to other workers.
        run: u64,
        /// The transport of the run's connections.
        transport: Transport,
    },
    /// To a peer: go ahead.
    Accepted,
    /// To who asked how the run stands: what the boss has to say, in its own words.
    Status(String),
    /// No, and why.
    Refused {
        /// In words for the person at the other end.
        reason: String,
        /// Whether it may be different later.
        retry: bool,
    },
}

/// A greeting as bytes for the control stream.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, LinkError> {
    let body = rmp_serde::to_vec(message).map_err(|e| broken(e.to_string()))?;
    let mut bytes = MAGIC.to_vec();
    bytes.extend(PROTOCOL_VERSION.to_le_bytes());
    bytes.extend((body.len() as u32).to_le_bytes());
    bytes.extend(body);
    Ok(bytes)
}

/// Sends a greeting.
///
/// # Errors
/// The connection is lost.
pub async fn write<T: Serialize>(send: &mut SendStream, message: &T) -> Result<(), LinkError> {
    send.write_all(&encode(message)?).await.map_err(|e| lost(&e.to_string()))
}

/// Receives a greeting of at most 64 KiB.
///
/// # Errors
/// The connection is lost, or the other end speaks another protocol or version.
pub async fn read<T: DeserializeOwned>(recv: &mut RecvStream) -> Result<T, LinkError> {
    let mut start = [0u8; 12];
    recv.read_exact(&mut start).await.map_err(|e| lost(&e.to_string()))?;
    let (magic, version) = start.split_at(8);
    if magic != MAGIC {
        return Err(broken("it does not speak BossMan".into()));
    }
    let theirs = u32::from_le_bytes([version[0], version[1], version[2], version[3]]);
    if theirs != PROTOCOL_VERSION {
        return Err(LinkError::Version { ours: PROTOCOL_VERSION, theirs });
    }
    let mut len = [0u8; 4];
    recv.read_exact(&mut len).await.map_err(|e| lost(&e.to_string()))?;
    let len = u32::from_le_bytes(len) as usize;
    if len > MAX_BYTES {
        return Err(broken(format!("a greeting of {len} bytes; at most {MAX_BYTES} are allowed")));
    }
    let mut body = vec![0; len];
    recv.read_exact(&mut body).await.map_err(|e| lost(&e.to_string()))?;
    rmp_serde::from_slice(&body).map_err(|e| broken(format!("a greeting that cannot be read: {e}")))
}

fn broken(reason: String) -> LinkError {
    LinkError::Protocol { peer: "the other end".into(), reason }
}

fn lost(reason: &str) -> LinkError {
    LinkError::Lost { peer: "the other end".into(), reason: reason.to_string() }
}
