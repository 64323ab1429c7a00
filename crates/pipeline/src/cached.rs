//! Forward passes that go on with a sequence: attention remembers the positions that came before (a key-value cache).

use layerspec::LayerId;
use serde::{Deserialize, Serialize};

/// How a forward pass goes on with the one before. Each worker remembers what its own layers need; one sequence of passes is
/// remembered at a time.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Cached {
    /// How many positions came before; 0 begins anew.
    pub past: u64,
    /// Which samples of the pass before go on, in the order of this one; empty where all do as they are.
    pub rows: Vec<u32>,
    /// The layers that are given the new positions alone, ascending. The others are given all of their input each time.
    pub layers: Vec<LayerId>,
}
