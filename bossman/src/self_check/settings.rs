//! What to check.

use crate::self_check::preset::Preset;
use crate::self_check::section::Section;

/// What to check.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The devices. If it is empty, the one that a worker takes.
    pub devices: Vec<String>,
    /// The size of the runs.
    pub preset: Preset,
    /// The sections. If it is empty, all.
    pub only: Vec<Section>,
}

/// The compute threads of each worker of a self-check. They are equal, because some sums depend on
/// them, and two workers share the cores.
pub(super) fn threads() -> usize {
    const MOST: usize = 8;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (cores / 2).clamp(1, MOST)
}
