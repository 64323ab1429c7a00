//! Numbers that name layers and values, and the location in the file where something was written.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A layer's number: its position in file order, counted over the whole model (repeats unrolled).
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct LayerId(pub u32);

/// A value's number: model inputs first, then every layer's outputs in file order.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct ValueId(pub u32);

impl LayerId {
    /// The id as an index into [`crate::LayerGraph::layers`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl ValueId {
    /// The id as an index into [`crate::LayerGraph::values`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A location in a file. Lines and columns count from 1; columns count characters.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Location {
    /// Line, from 1.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
}

impl Location {
    /// The first character of a file.
    pub const START: Location = Location { line: 1, column: 1 };
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}
