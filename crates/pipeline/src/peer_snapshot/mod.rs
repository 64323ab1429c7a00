//! Peer snapshots: copies of a run's state that workers store for each other.
//!
//! Between two steps each worker copies the part of the state that no worker before it has. It
//! stores the copy and sends it to a neighbour, which stores it, too. A neighbour that is a replica
//! of the same stages has the same state and makes the copy itself. So the state of a step survives
//! if each worker or its neighbour survives. The next membership does not matter: a worker's
//! process keeps its snapshots after the run that made them.
//!
//! ```text
//! store:    Plan -> parts (which worker makes which part) --+
//!                   neighbours (who stores it, too) --------+-> stored::StoreSnapshot -> workers
//!
//! restore:  stored::PeerSnapshot of each worker -> complete (is every part there?)
//!                   -> recall (which worker sends what to which stage) -> stored::SendSnapshot
//! ```

mod complete;
mod neighbours;
mod parts;
mod recall;
mod stored;

pub use complete::{CompleteSnapshot, StoredPart};
pub use neighbours::neighbours;
pub(crate) use parts::{holders_of_parts, state_senders, PartHolders, PartNumbers};
pub use recall::{recall, UnknownParameter};
pub use stored::{
    PartToMake, PeerSnapshot, SendSnapshot, SnapshotId, SnapshotNote, StoreSnapshot, StoredTensor,
    MAX_SNAPSHOTS,
};
