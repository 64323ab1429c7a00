//! The activations that a layer recomputes.

use serde::{Deserialize, Serialize};

/// The activations that a layer recomputes in its backward pass instead of storing them (Chen et
/// al. 2016, arXiv:1604.06174). The bits are the same either way.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Recompute {
    /// No activations: the fastest.
    #[default]
    None,
    /// Activations that take much memory and little time, such as those of activation functions and
    /// attention weights (Korthikanti et al. 2022, arXiv:2205.05198).
    Selective,
    /// All activations: only the layer's inputs are stored.
    Full,
}
