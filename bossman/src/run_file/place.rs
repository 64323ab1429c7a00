//! The place of a key, for errors that are found after the file was read.

use crate::BossManError;
use layerspec::{Diagnostic, Location};
use std::path::{Path, PathBuf};

/// The place of a key in a run file. All places are equal, because a run stays the same if its file
/// moves or gets a comment.
#[derive(Clone, Debug)]
pub struct Place {
    file: PathBuf,
    location: Location,
}

impl PartialEq for Place {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Place {
    /// A place in a file whose name is not known yet.
    pub(super) fn new(location: Location) -> Self {
        Place { file: PathBuf::new(), location }
    }

    pub(super) fn set_file(&mut self, file: &Path) {
        self.file = file.to_path_buf();
    }

    /// The file.
    pub(crate) fn file(&self) -> &Path {
        &self.file
    }

    /// An error about the key, with file, line and column.
    pub(crate) fn error(&self, problem: String) -> BossManError {
        Diagnostic::new(self.location, problem).in_file(&self.file.display().to_string()).into()
    }
}
