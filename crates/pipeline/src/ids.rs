//! Ids of workers, stages, tensors and requests. They are newtypes, so that they cannot be
//! confused.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty), $word:literal) => {
        $(#[$doc])*
        #[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($word, " {}"), self.0)
            }
        }
    };
}

id!(/// A worker, numbered from 0 in the order of joining.
    WorkerId(u16), "worker");
id!(/// A stage: a contiguous run of layers, numbered from 0 in the order of the model.
    StageId(u16), "stage");
id!(/// A tensor that the driver holds for a session. Each slot is consumed exactly once.
    Slot(u64), "slot");
id!(/// One request to the compute thread; its answer carries the same number.
    Ticket(u64), "task");

/// One microbatch of one batch.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct MicrobatchKey {
    /// The batch it is part of.
    pub batch: u64,
    /// Its place in the batch, from 0.
    pub index: u32,
}

impl fmt::Display for MicrobatchKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "batch {}, microbatch {}", self.batch, self.index)
    }
}
