//! Time, as sessions are told it.

use serde::{Deserialize, Serialize};

/// A moment on the driver's clock, in microseconds from any fixed start.
#[derive(
    Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Micros(pub u64);

impl Micros {
    /// This number of seconds later.
    pub fn plus_seconds(self, seconds: u64) -> Self {
        Micros(self.0.saturating_add(seconds.saturating_mul(1_000_000)))
    }
}
