//! The use of the columns of a table.

use serde::{Deserialize, Serialize};

/// The use of the columns of a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColumnsSpec {
    /// The columns of each input of the model.
    pub inputs: InputColumns,
    /// The column of the target.
    pub target: TargetColumn,
    /// The column that names a row in predictions.
    pub id: Option<String>,
    /// What stands in place of a missing value.
    pub missing: Missing,
    /// Whether numbers become mean 0 and standard deviation 1 over the table to train on.
    pub normalize: bool,
}

/// The columns of each input of the model, in their order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum InputColumns {
    /// Those of the model's only input.
    Only(Vec<String>),
    /// Those of inputs by name.
    Named(Vec<(String, Vec<String>)>),
}

impl InputColumns {
    /// Every column, input by input.
    pub fn columns(&self) -> impl Iterator<Item = &str> {
        let (only, named) = match self {
            InputColumns::Only(columns) => (Some(columns), None),
            InputColumns::Named(inputs) => (None, Some(inputs)),
        };
        let named = named.into_iter().flatten().map(|(_, columns)| columns);
        only.into_iter().chain(named).flatten().map(String::as_str)
    }
}

/// The column of the target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetColumn {
    /// Its name.
    pub column: String,
    /// What is computed of it.
    pub transform: Transform,
}

/// What is computed of a target.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Transform {
    /// Nothing.
    #[default]
    None,
    /// The natural logarithm. Predictions are the exponential of outputs.
    Log,
}

/// What stands in place of a missing value.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Missing {
    /// Nothing: it is an error.
    #[default]
    Error,
    /// The mean of the column in the table to train on.
    Mean,
    /// Its most common value there.
    MostCommon,
}
