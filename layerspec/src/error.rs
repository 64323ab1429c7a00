//! One mistake in a file: its location, the expectation, and the nearest valid name.

use crate::Location;
use std::fmt;

/// A mistake at a location of a file whose name is not known yet; see [`Diagnostic::in_file`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Diagnostic {
    /// The location of the mistake.
    pub location: Location,
    /// The layer it is in, if any.
    pub layer: Option<Box<LayerLabel>>,
    /// The problem and the expectation.
    pub message: String,
    /// The nearest right name, if one is near enough.
    pub suggestion: Option<String>,
}

impl Diagnostic {
    /// A mistake at `location`.
    pub fn new(location: Location, message: impl Into<String>) -> Self {
        Diagnostic { location, layer: None, message: message.into(), suggestion: None }
    }

    /// The same mistake with the nearest right name, if any.
    #[must_use]
    pub fn suggesting(mut self, suggestion: Option<&str>) -> Self {
        self.suggestion = suggestion.map(str::to_owned);
        self
    }

    /// The same mistake as one of layer `name`, a `kind`; the innermost layer wins.
    #[must_use]
    pub fn in_layer(mut self, name: &str, kind: Option<&str>) -> Self {
        let label = || LayerLabel { name: name.to_owned(), kind: kind.map(str::to_owned) };
        self.layer.get_or_insert_with(|| Box::new(label()));
        self
    }

    /// The mistake as the user reads it.
    pub fn in_file(self, file: &str) -> SpecError {
        SpecError {
            file: file.to_owned(),
            location: Some(self.location),
            layer: self.layer,
            message: self.message,
            suggestion: self.suggestion,
        }
    }
}

/// A layer as an error names it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LayerLabel {
    /// The layer's name, by default its position.
    pub name: String,
    /// The layer's kind, if known.
    pub kind: Option<String>,
}

/// Why a model file (or a run file) was refused. It is shown as one line: ``model.yaml:7:13: layer
/// 2 (Linear): unknown argument `out_feature`; did you mean `out_features`?``
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub struct SpecError {
    /// The file, as the caller named it.
    pub file: String,
    /// Line and column; None when the file as a whole is at fault, as when it can't be read.
    pub location: Option<Location>,
    /// The layer at fault, if known.
    pub layer: Option<Box<LayerLabel>>,
    /// The problem and the expectation.
    pub message: String,
    /// The nearest right name, if one is near enough.
    pub suggestion: Option<String>,
}

impl SpecError {
    /// An error about a whole file.
    pub fn of_file(file: &str, message: impl Into<String>) -> Self {
        let (location, layer, suggestion) = (None, None, None);
        SpecError { file: file.to_owned(), location, layer, message: message.into(), suggestion }
    }
}

/// A text of the file, quoted for an error: on one line, and truncated if it is long.
pub(crate) fn quoted(text: &str) -> String {
    let escaped = text.chars().flat_map(|letter| {
        let escape = letter.is_control().then(|| letter.escape_default());
        let plain = escape.is_none().then_some(letter);
        escape.into_iter().flatten().chain(plain)
    });
    let mut shown: String = escaped.take(60).collect();
    if text.len() > shown.len() {
        shown.push_str("...");
    }
    format!("`{shown}`")
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(location) = self.location {
            write!(f, ":{location}")?;
        }
        if let Some(layer) = &self.layer {
            write!(f, ": layer {layer}")?;
        }
        write!(f, ": {}", self.message)?;
        match &self.suggestion {
            Some(name) => write!(f, "; did you mean {}?", quoted(name)),
            None => Ok(()),
        }
    }
}

impl fmt::Display for LayerLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        match &self.kind {
            Some(kind) => write!(f, " ({kind})"),
            None => Ok(()),
        }
    }
}

/// An entry of a model file that is valid but probably not intended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Warning {
    /// The file, as the caller named it.
    pub file: String,
    /// Its location.
    pub location: Location,
    /// The oddity and the remedy.
    pub message: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.location, self.message)
    }
}
