//! Where the named columns of a table are, and what its rows look like to a reader.

use crate::DataError;
use std::path::Path;

/// Sees the number and the values of each row of a Parquet file.
pub(crate) type EachRow<'a> = dyn FnMut(u64, &[Option<String>]) -> Result<(), DataError> + 'a;

/// The places of columns in a row.
pub(crate) fn column_places(
    path: &Path,
    names: &[&str],
    held: &[String],
) -> Result<Vec<usize>, DataError> {
    let place = |name: &&str| {
        let mut found = held.iter().enumerate().filter(|(_, held)| held == name);
        let first = found.next();
        if found.next().is_some() {
            let problem = format!("has two columns `{name}`; rename one of them");
            return Err(DataError::file(path, problem));
        }
        first.map(|(place, _)| place).ok_or_else(|| {
            if held.is_empty() {
                return DataError::file(path, "is empty");
            }
            let near = layerspec::nearest(name, held.iter().map(String::as_str));
            let near = near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
            let problem = format!("no column `{name}`; it holds {}{near}", held.join(", "));
            DataError::file(path, problem)
        })
    };
    names.iter().map(place).collect()
}
