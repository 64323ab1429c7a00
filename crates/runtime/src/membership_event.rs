//! An event of a run's members.

use link::WorkerInfo;
use pipeline::ids::WorkerId;
use std::net::SocketAddr;

/// A worker joined or left an open run, or is about to leave.
#[derive(Debug)]
pub enum MembershipEvent {
    /// A worker joined. It has no stages yet.
    Joined {
        /// Its number.
        worker: WorkerId,
        /// The description that it sent.
        info: Box<WorkerInfo>,
        /// Its address.
        address: SocketAddr,
    },
    /// A worker is told to leave.
    Leaving(WorkerId),
    /// A worker left.
    Left {
        /// Its number.
        worker: WorkerId,
        /// Why, as far as known.
        reason: String,
    },
}
