//! When the random initial values of parameters are drawn.

use serde::{Deserialize, Serialize};

/// When workers draw the random initial values of parameters.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Initialization {
    /// All of them when a stage is built.
    #[default]
    AtOnce,
    /// When they are needed, and only if nothing has been loaded in their place. For a run that
    /// loads its state.
    Deferred,
}
