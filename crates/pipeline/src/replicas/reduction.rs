//! The order in which the gradients of microbatches are summed.

use super::Compress;
use serde::{Deserialize, Serialize};

/// How the gradients of a batch's microbatches are summed.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Reduction {
    /// One microbatch after the other. Takes the least memory. Replicas cannot share the work.
    #[default]
    Sequential,
    /// Along a [tree](super::Tree) over the microbatches. Replicas sum branches of it.
    Tree,
    /// Along the tree within each replica, and then replica by replica, so that each replica sends
    /// one sum. The result depends on the assignment of microbatches.
    Fast,
    /// As [`Reduction::Fast`], with gradients sent in fewer bits.
    Compressed(Compress),
    /// Along the tree within each replica, and then by a collective operation among the devices
    /// ([`Command::Communicate`](crate::message::Command)). No gradient travels in frames.
    Collective,
}

impl Reduction {
    /// Whether the gradients of each microbatch are computed separately and summed at the end.
    pub fn is_apart(self) -> bool {
        self != Reduction::Sequential
    }

    /// The form in which gradients travel, if not float32.
    pub fn compress(self) -> Option<Compress> {
        match self {
            Reduction::Compressed(compress) => Some(compress),
            Reduction::Sequential | Reduction::Tree | Reduction::Fast | Reduction::Collective => {
                None
            }
        }
    }

    /// Whether a replica sums the gradients of all its microbatches before it sends.
    pub fn adds_up_first(self) -> bool {
        matches!(self, Reduction::Fast | Reduction::Compressed(_) | Reduction::Collective)
    }

    /// Whether a collective operation of the compute threads sums over replicas.
    pub fn is_collective(self) -> bool {
        self == Reduction::Collective
    }
}
