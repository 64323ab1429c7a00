//! The errors between processes, in words for the user.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why a connection, an endpoint or a run of a worker failed.
#[derive(Debug, Error)]
pub enum LinkError {
    /// The boss's key or ticket cannot be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// A key, certificate or TLS setting was refused.
    #[error("TLS set-up failed: {0}")]
    Tls(String),
    /// Another process uses the UDP port.
    #[error(
        "UDP port {port} is in use; end the other boss or use another port (--port or MODEL_PORT)"
    )]
    PortInUse {
        /// The port.
        port: u16,
    },
    /// The system gives no socket.
    #[error("cannot listen on {address}: {reason}")]
    Socket {
        /// The address to listen on.
        address: SocketAddr,
        /// The system's message.
        reason: String,
    },
    /// The host name cannot be resolved.
    #[error("cannot find the host `{host}`: {reason}")]
    Host {
        /// The name.
        host: String,
        /// The system's message.
        reason: String,
    },
    /// No process answers at the address.
    #[error("no answer from {address} ({reason})")]
    NoAnswer {
        /// The address.
        address: SocketAddr,
        /// The event that ended the attempt.
        reason: String,
    },
    /// The other end does not accept our ticket.
    #[error(
        "the boss at {address} does not accept this ticket; copy the MODEL_TICKET that it prints"
    )]
    TicketRefused {
        /// The address of the other end.
        address: SocketAddr,
    },
    /// The other end is not the boss that the ticket was made for.
    #[error(
        "the process at {address} is not the boss that this ticket was made for; check MODEL_HOST \
         and MODEL_TICKET"
    )]
    WrongBoss {
        /// The address of the other end.
        address: SocketAddr,
    },
    /// The two programs have different protocol versions.
    #[error(
        "protocol versions differ: this program has {ours}, the other end {theirs}; install the \
         same BossMan on both"
    )]
    Version {
        /// This program's version.
        ours: u32,
        /// The other end's version.
        theirs: u32,
    },
    /// The other end refused the connection.
    #[error("{reason}")]
    Refused {
        /// Its reason.
        reason: String,
        /// Whether it may accept later.
        retry: bool,
    },
    /// The other end broke the protocol.
    #[error("{peer} broke the protocol: {reason}")]
    Protocol {
        /// The party at fault.
        peer: String,
        /// The violation.
        reason: String,
    },
    /// The boss removed this worker from the run, and does not want it back.
    #[error("the boss removed this worker ({reason})")]
    Evicted {
        /// Its reason.
        reason: String,
    },
    /// The compute thread is in a task that does not end.
    #[error(
        "one task has taken {seconds} s and is not done: the device or its driver seems to hang; \
         a worker that needs longer is started with a longer --task-timeout"
    )]
    Hung {
        /// The seconds since the task began.
        seconds: u64,
    },
    /// The thread that reads samples is in a reading that does not end.
    #[error(
        "samples have not been read after {seconds} s: the disk or the file server that holds them \
         seems to hang; a worker that needs longer is started with a longer --task-timeout"
    )]
    ReadingHung {
        /// The seconds since the reading began.
        seconds: u64,
    },
    /// A task found that the device fails every later task in this process.
    #[error("its device is broken for this process, so it ends: {failure}")]
    DeviceBroken {
        /// The task and its error.
        failure: String,
    },
    /// An established connection is lost.
    #[error("lost {peer} ({reason})")]
    Lost {
        /// The other end.
        peer: String,
        /// Why, as far as known.
        reason: String,
    },
}

impl LinkError {
    pub(crate) fn tls(reason: impl ToString) -> Self {
        LinkError::Tls(reason.to_string())
    }

    /// Whether trying again later can help.
    pub fn is_transient(&self) -> bool {
        match self {
            LinkError::NoAnswer { .. } | LinkError::Lost { .. } | LinkError::Host { .. } => true,
            LinkError::Refused { retry, .. } => *retry,
            _ => false,
        }
    }
}

/// Why the boss's key or ticket cannot be used.
#[derive(Debug, Error)]
pub enum IdentityError {
    /// A file cannot be read or written.
    #[error("{path}: {reason}; the boss's key is kept there, or where BOSSMAN_CONFIG_DIR says")]
    File {
        /// The file.
        path: PathBuf,
        /// The system's message.
        reason: String,
    },
    /// A file has the wrong content.
    #[error(
        "{path}: {reason}; remove it and a new one is made (workers then need the new ticket)"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The problem with it.
        reason: String,
    },
    /// The user has no home folder.
    #[error("no home folder found for the boss's key; set BOSSMAN_CONFIG_DIR to a folder")]
    NoHome,
}

impl IdentityError {
    pub(crate) fn file(path: &Path, e: &std::io::Error) -> Self {
        IdentityError::File { path: path.to_path_buf(), reason: e.to_string() }
    }
}
