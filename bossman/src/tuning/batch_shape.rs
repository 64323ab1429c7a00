//! The sizes of a batch on which costs depend.

use layerspec::Bindings;

/// A batch, as far as costs depend on it.
#[derive(Clone, Debug)]
pub(crate) struct BatchShape {
    pub(crate) microbatch: MicrobatchSizes,
    pub(crate) microbatches: u32,
}

/// A microbatch, as far as costs depend on it.
#[derive(Clone, Debug)]
pub(crate) struct MicrobatchSizes {
    pub(crate) sizes: Bindings,
    pub(crate) target_bytes: Option<u64>,
}
