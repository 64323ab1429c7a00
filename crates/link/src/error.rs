//! Errors between processes, in words for the user.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why a connection, an endpoint or an identity could not be had.
#[derive(Debug, Error)]
pub enum LinkError {
    /// A file of the identity cannot be read or written.
    #[error("{path}: {reason}")]
    File {
        /// Which file.
        path: PathBuf,
        /// The system's message.
        reason: String,
    },
    /// A file of the identity is not what it should be.
    #[error("{path}: {reason}; remove it and a new one is made (workers then need the new ticket)")]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// The problem.
        reason: String,
    },
    /// No home folder to keep the identity in.
    #[error("no home folder found to keep the boss's key in; set BOSSMAN_CONFIG_DIR to a folder")]
    NoHome,
    /// A key, certificate or TLS setting was refused.
    #[error("TLS set-up failed: {0}")]
    Tls(String),
    /// The UDP port is taken.
    #[error("UDP port {port} is in use; end the other boss or set MODEL_PORT to a free port")]
    PortInUse {
        /// Which port.
        port: u16,
    },
    /// No socket.
    #[error("cannot listen on {address}: {reason}")]
    Socket {
        /// Where.
        address: SocketAddr,
        /// The system's message.
        reason: String,
    },
    /// The name cannot be looked up.
    #[error("cannot find the host `{host}`: {reason}")]
    Host {
        /// The name.
        host: String,
        /// The system's message.
        reason: String,
    },
    /// Nobody answers there.
    #[error("no answer from {address} ({reason})")]
    NoAnswer {
        /// Where.
        address: SocketAddr,
        /// The observation.
        reason: String,
    },
    /// The other end does not accept our ticket.
    #[error("the boss at {address} does not accept this ticket; copy the MODEL_TICKET that it prints")]
    TicketRefused {
        /// Where.
        address: SocketAddr,
    },
    /// The other end is not the boss the ticket was made for.
    #[error("who answers at {address} is not the boss this ticket was made for; check MODEL_HOST and MODEL_TICKET")]
    WrongBoss {
        /// Where.
        address: SocketAddr,
    },
    /// The two programs are of different protocol versions.
    #[error("protocol versions differ: this program speaks {ours}, the other end {theirs}; install the same BossMan on both")]
    Version {
        /// This program's.
        ours: u32,
        /// The other end's.
        theirs: u32,
    },
    /// The other end said no.
    #[error("{reason}")]
    Refused {
        /// Its words.
        reason: String,
        /// Whether it may say yes later.
        retry: bool,
    },
    /// The other end said something this program does not understand.
    #[error("{peer} broke the protocol: {reason}")]
    Protocol {
        /// Who.
        peer: String,
        /// Its violation.
        reason: String,
    },
    /// The boss does without this worker.
    #[error("the boss sent this worker away ({reason})")]
    Evicted {
        /// Its words.
        reason: String,
    },
    /// The compute thread is in a task that does not end.
    #[error(
        "one task has taken {seconds} s and is not done: the device or its driver seems to hang; a worker that needs longer is \
         started with a longer --task-timeout"
    )]
    Hung {
        /// For how long it has been at it.
        seconds: u64,
    },
    /// A connection that was up is gone.
    #[error("lost {peer} ({reason})")]
    Lost {
        /// Who.
        peer: String,
        /// The observation.
        reason: String,
    },
}

impl LinkError {
    pub(crate) fn tls(reason: impl ToString) -> Self {
        LinkError::Tls(reason.to_string())
    }

    pub(crate) fn file(path: &Path, e: &std::io::Error) -> Self {
        LinkError::File { path: path.to_path_buf(), reason: e.to_string() }
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
