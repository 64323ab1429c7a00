//! Forward passes that continue a sequence with cached keys and values of attention.

use layerspec::LayerId;
use serde::{Deserialize, Serialize};

/// Continues the sequence of the previous forward pass. Each worker caches keys and values for its
/// own layers, for one sequence of passes at a time.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KvCacheStep {
    /// The number of cached positions. 0 starts a new sequence.
    pub past: u64,
    /// The samples of the previous pass that continue, in the order of this pass. If empty, all
    /// continue in the same order.
    pub rows: Vec<u32>,
    /// The layers that receive only the new positions, ascending. The others receive their whole
    /// input each time.
    pub layers: Vec<LayerId>,
}
