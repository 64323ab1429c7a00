//! Files that hold several columns, and the mapping of columns to inputs.

use crate::DataError;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A file with columns by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Table {
    /// The file.
    pub path: PathBuf,
    /// The column for each input of the model. An input that is missing here uses the column of its
    /// own name.
    pub inputs: BTreeMap<String, String>,
    /// The column for the target.
    pub target: String,
}

impl Table {
    /// Makes a table whose columns are named after the model's inputs, and `target`.
    pub fn with_default_names(path: PathBuf) -> Self {
        Table { path, inputs: BTreeMap::new(), target: "target".into() }
    }

    /// Fills in a column for every input of the model.
    pub(super) fn resolved(&self, inputs: &[&str]) -> Result<Self, DataError> {
        if let Some(unknown) = self.inputs.keys().find(|name| !inputs.contains(&name.as_str())) {
            let problem =
                format!("the model has no input `{unknown}`; its inputs are {}", inputs.join(", "));
            return Err(DataError::file(&self.path, problem));
        }
        let column =
            |name: &str| self.inputs.get(name).cloned().unwrap_or_else(|| name.to_string());
        let inputs = inputs.iter().map(|name| (name.to_string(), column(name))).collect();
        Ok(Table { inputs, ..self.clone() })
    }

    /// Returns the names of the requested columns, each once.
    pub(super) fn columns(&self) -> impl Iterator<Item = &str> {
        let names: std::collections::BTreeSet<&str> =
            self.inputs.values().chain([&self.target]).map(String::as_str).collect();
        names.into_iter()
    }

    /// Makes the error for a missing column.
    pub(super) fn missing(&self, noun: &str, name: &str, held: &[String]) -> DataError {
        let near = layerspec::nearest(name, held.iter().map(String::as_str));
        let near = near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
        DataError::file(
            &self.path,
            format!("no {noun} `{name}`; it holds {}{near}", held.join(", ")),
        )
    }
}
