//! The columns of an opened source.

use super::column::Column;

/// The columns for the model's inputs, in the model's order, and for the target.
pub(super) struct Columns {
    pub(super) inputs: Vec<Column>,
    /// `None` if no target is requested.
    pub(super) target: Option<Column>,
}
