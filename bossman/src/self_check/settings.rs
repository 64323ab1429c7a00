//! What to check.

use crate::self_check::preset::Preset;
use crate::self_check::report::Section;

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
