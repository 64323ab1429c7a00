//! The first messages on a connection: the caller states its version and what it wants, and the
//! callee accepts or refuses.
//!
//! ```text
//! caller -> | "BOSSMAN\n" | version: u32 LE | length: u32 LE | MessagePack of Handshake |
//! callee -> | "BOSSMAN\n" | version: u32 LE | length: u32 LE | MessagePack of HandshakeReply |
//! ```
//!
//! The first twelve bytes have the same meaning in every version. So two programs can report that
//! their versions differ.

use crate::error::LinkError;
use crate::memory::shared::Transport;
use crate::nccl::Nccl;
use pipeline::ids::WorkerId;
use pipeline::message::PROTOCOL_VERSION;
use pipeline::recovery::{Applicant, Candidate};
use quinn::{RecvStream, SendStream};
use serde::{de::DeserializeOwned, Deserialize, Serialize};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::OnceLock;

const MAGIC: &[u8; 8] = b"BOSSMAN\n";
const MAX_BYTES: usize = 64 << 10;

/// The first message of a caller.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Handshake {
    /// From a worker to the boss: it wants a place in the run.
    Join(Box<WorkerInfo>),
    /// From a worker to another worker of the same run.
    Peer {
        /// The caller's number.
        worker: WorkerId,
        /// The number of the run, from [`HandshakeReply::Welcome`].
        run: u64,
    },
    /// Asks for the status of the run.
    Status,
}

impl Handshake {
    /// Names it in the log.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Handshake::Join(_) => "join",
            Handshake::Peer { .. } => "peer",
            Handshake::Status => "status",
        }
    }
}

/// A worker's description of its machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerInfo {
    /// The device that it computes on, such as `cpu` or `cuda:0`.
    pub device: String,
    /// The kind of its processor. Results are equal to the bit on processors of one kind.
    pub processor: String,
    /// The number of compute threads.
    pub threads: u32,
    /// The memory of the device in bytes, if known.
    pub memory_bytes: Option<u64>,
    /// The version of the program.
    pub version: String,
    /// Whether other workers may connect to it directly.
    pub direct: bool,
    /// The name of the machine.
    pub host: String,
    /// Identifies the machine until it restarts, if known. Machines may have one name.
    pub machine: String,
    /// Identifies the device on its machine. Processes may name their GPUs alike, for example if
    /// `CUDA_VISIBLE_DEVICES` shows each another one.
    pub device_id: String,
    /// The process id on that machine.
    pub process: u32,
    /// A random number that no other process has. Containers may have one name, and the same
    /// process ids.
    pub instance: u64,
    /// Whether it can sum gradients with NCCL.
    pub nccl: Nccl,
}

impl WorkerInfo {
    /// Whether both describe the same process.
    pub fn is_same_process(&self, other: &WorkerInfo) -> bool {
        self.instance == other.instance && self.process == other.process && self.host == other.host
    }

    /// Whether both compute on one device, as far as known, and so share its memory. Processes and
    /// containers may call it by several names.
    pub fn is_on_same_device(&self, other: &WorkerInfo) -> bool {
        let is_same = match self.device_id.is_empty() {
            true => self.device == other.device,
            false => self.device_id == other.device_id,
        };
        is_same && self.machine() == other.machine()
    }

    /// What identifies its machine as far as known.
    pub fn machine(&self) -> &str {
        match self.machine.as_str() {
            "" => &self.host,
            machine => machine,
        }
    }

    /// The kind of its device, as the worker names it. CPUs are one kind: their results rarely
    /// differ, and the comparison of replicas finds where they do.
    pub fn device_kind(&self) -> &str {
        let device = self.device.as_str();
        let kind = device.split_once(':').map_or(device, |(kind, _)| kind);
        match kind {
            "cpu" => kind,
            _ if self.processor.is_empty() => kind,
            _ => self.processor.as_str(),
        }
    }
}

impl Applicant for WorkerInfo {
    fn is_same_process(&self, other: &Self) -> bool {
        WorkerInfo::is_same_process(self, other)
    }

    fn instance(&self) -> u64 {
        self.instance
    }
}

impl Candidate for WorkerInfo {
    fn is_device_alike(&self, other: &Self) -> bool {
        self.device_kind() == other.device_kind()
    }

    fn memory_bytes(&self) -> Option<u64> {
        self.memory_bytes
    }

    /// Workers of one machine share its memory, and those of one GPU sum no gradients with NCCL. So
    /// this one has another machine and GPU.
    fn another(&self, number: usize) -> Self {
        let (host, machine) = (&self.host, &self.machine);
        let (host, machine) = (format!("{host}/{number}"), format!("{machine}/{number}"));
        let mut info = WorkerInfo { host, machine, ..self.clone() };
        if let Nccl::Here(nccl) = &mut info.nccl {
            nccl.gpu = format!("{}/{number}", nccl.gpu);
        }
        info
    }
}

/// The random number of this process, for [`WorkerInfo::instance`].
pub fn instance() -> u64 {
    static INSTANCE: OnceLock<u64> = OnceLock::new();
    *INSTANCE.get_or_init(draw_instance)
}

/// Draws the random number of a process.
pub fn draw_instance() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// A worker with one CPU thread, on a machine without a name, that others may connect to.
impl Default for WorkerInfo {
    fn default() -> Self {
        WorkerInfo {
            device: "cpu".into(),
            processor: String::new(),
            threads: 1,
            memory_bytes: None,
            version: env!("CARGO_PKG_VERSION").into(),
            direct: true,
            host: String::new(),
            machine: String::new(),
            device_id: String::new(),
            process: 0,
            instance: 0,
            nccl: Nccl::Missing("it computes on a CPU".into()),
        }
    }
}

/// The callee's answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum HandshakeReply {
    /// To a worker: it has a place in the run.
    Welcome {
        /// The worker's number.
        worker: WorkerId,
        /// The number of the run, which other workers check.
        run: u64,
        /// The transport of the run's connections.
        transport: Transport,
    },
    /// To another worker: frames may follow.
    Accepted,
    /// The status of the run, as JSON.
    Status(String),
    /// The caller is refused.
    Refused {
        /// The reason, in words for the other end's user.
        reason: String,
        /// Whether the caller may be accepted later.
        retry: bool,
    },
}

impl HandshakeReply {
    /// Names it in the log.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            HandshakeReply::Welcome { .. } => "welcome",
            HandshakeReply::Accepted => "accepted",
            HandshakeReply::Status(_) => "status",
            HandshakeReply::Refused { .. } => "refused",
        }
    }
}

/// Encodes a message of the handshake.
///
/// # Errors
/// The message has no encoding.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, LinkError> {
    let body = rmp_serde::to_vec(message).map_err(|e| broken(e.to_string()))?;
    let mut bytes = MAGIC.to_vec();
    bytes.extend(PROTOCOL_VERSION.to_le_bytes());
    bytes.extend((body.len() as u32).to_le_bytes());
    bytes.extend(body);
    Ok(bytes)
}

/// Sends a message of the handshake.
///
/// # Errors
/// The connection is lost.
pub async fn write<T: Serialize>(send: &mut SendStream, message: &T) -> Result<(), LinkError> {
    send.write_all(&encode(message)?).await.map_err(|e| lost(&e.to_string()))
}

/// Receives a message of the handshake, of at most 64 KiB.
///
/// # Errors
/// The connection is lost, or the other end has another protocol or version.
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
        return Err(broken(format!("a handshake of {len} bytes; at most {MAX_BYTES} are allowed")));
    }
    let mut body = vec![0; len];
    recv.read_exact(&mut body).await.map_err(|e| lost(&e.to_string()))?;
    rmp_serde::from_slice(&body)
        .map_err(|e| broken(format!("a handshake that cannot be read: {e}")))
}

fn broken(reason: String) -> LinkError {
    LinkError::Protocol { peer: "the other end".into(), reason }
}

fn lost(reason: &str) -> LinkError {
    LinkError::Lost { peer: "the other end".into(), reason: reason.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page of joining shows these bytes. JOIN-4.
    #[test]
    fn a_handshake_has_the_bytes_of_its_page() {
        let version = PROTOCOL_VERSION.to_le_bytes();
        let expected =
            [MAGIC.as_slice(), version.as_slice(), b"\x07\0\0\0", b"\xa6Status"].concat();
        assert_eq!(encode(&Handshake::Status).unwrap(), expected);
    }

    /// Process 1 of a container is not that of another one. JOIN-9.
    #[test]
    fn a_process_is_known_by_all_that_identifies_it() {
        let info = WorkerInfo { process: 1, instance: 7, ..WorkerInfo::default() };
        let again = WorkerInfo { threads: 9, device: "cuda:0".into(), ..info.clone() };
        assert!(info.is_same_process(&again));
        for other in [
            WorkerInfo { instance: 8, ..info.clone() },
            WorkerInfo { process: 2, ..info.clone() },
            WorkerInfo { host: "attic".into(), ..info.clone() },
        ] {
            assert!(!info.is_same_process(&other), "{other:?}");
        }
        assert_eq!(instance(), instance());
        assert_ne!(draw_instance(), draw_instance());
    }
}
