//! What a source opens as.

use super::column::Column;

/// The columns for the model's inputs, in its order, and for the target.
pub(super) struct Columns {
    pub(super) inputs: Vec<Column>,
    /// Nothing where none was wanted.
    pub(super) target: Option<Column>,
}
