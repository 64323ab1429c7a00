//! What a table to train on tells about its columns.

use super::rows::{self, Row};
use super::spec::{ColumnsSpec, Missing};
use crate::shown::shown;
use crate::DataError;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// The most categories of a column, and the longest name of one in bytes.
const MAX_CATEGORIES: usize = 65_536;
const MAX_NAME: usize = 1024;

/// What was learned of each column, by its name. The table to train on decides; other tables of the
/// run are read by it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LearnedTable {
    /// The columns of inputs and of the target.
    pub columns: BTreeMap<String, LearnedColumn>,
}

/// What was learned of a column.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LearnedColumn {
    /// Every value is a number.
    Number {
        /// The mean.
        mean: f64,
        /// The standard deviation (of the whole, not of a sample), or 1 if all values are equal.
        std: f64,
        /// The value in place of a missing one.
        fill: Option<f64>,
    },
    /// Some value is no number.
    Text {
        /// The values in alphabetical order. A category is the position in it.
        categories: Vec<String>,
        /// The category in place of a missing value.
        fill: Option<usize>,
    },
}

/// Learns from all rows.
pub(super) fn learn(path: &Path, spec: &ColumnsSpec) -> Result<LearnedTable, DataError> {
    let mut names: Vec<&str> = spec.inputs.columns().chain([spec.target.column.as_str()]).collect();
    names.sort();
    names.dedup();
    let mut seen: Vec<Seen> = names.iter().map(|_| Seen::default()).collect();
    rows::read(path, &names, &mut |row: Row<'_>| {
        for ((seen, value), name) in seen.iter_mut().zip(row.values()).zip(&names) {
            let Some(value) = value else {
                seen.has_gap = true;
                continue;
            };
            seen.add(value, &row.place).map_err(|problem| {
                DataError::file(path, format!("{}, column `{name}`: {problem}", row.place))
            })?;
        }
        Ok(())
    })?;
    let learned = names.iter().zip(seen).map(|(name, seen)| {
        // Nothing stands in place of a missing target.
        let is_input = spec.inputs.columns().any(|input| input == *name);
        let learned = seen.learned(if is_input { spec.missing } else { Missing::Error });
        let learned = learned
            .map_err(|problem| DataError::file(path, format!("column `{name}`: {problem}")))?;
        Ok((name.to_string(), learned))
    });
    Ok(LearnedTable { columns: learned.collect::<Result<_, DataError>>()? })
}

/// The values of a column so far.
#[derive(Default)]
struct Seen {
    is_text: bool,
    /// The first infinite number, as `inf` or `1e999`, with its place. In a column of texts it is a
    /// text as others are.
    infinite: Option<String>,
    count: u64,
    mean: f64,
    /// The sum of squared distances from the mean (Welford 1962).
    squares: f64,
    /// How often each value is there. `None`: there are too many.
    counts: BTreeMap<String, u64>,
    has_too_many: bool,
    /// Whether a row has no value.
    has_gap: bool,
}

impl Seen {
    fn add(&mut self, value: &str, place: &str) -> Result<(), String> {
        if value.len() > MAX_NAME {
            return Err(format!(
                "a value of {} bytes; at most {MAX_NAME} are allowed",
                value.len()
            ));
        }
        match value.parse::<f64>() {
            Ok(number) if number.is_finite() => {
                self.count += 1;
                let distance = number - self.mean;
                self.mean += distance / self.count as f64;
                self.squares += distance * (number - self.mean);
            }
            Ok(_) => {
                self.infinite.get_or_insert_with(|| {
                    format!("{place} has `{}`, which is no finite number", shown(value))
                });
            }
            Err(_) => self.is_text = true,
        }
        let has_room = self.counts.len() < MAX_CATEGORIES;
        match self.counts.get_mut(value) {
            Some(count) => *count += 1,
            None if has_room => drop(self.counts.insert(value.to_string(), 1)),
            None => self.has_too_many = true,
        }
        if self.is_text && self.has_too_many {
            return Err(format!(
                "it is text with more than {MAX_CATEGORIES} different values; leave the column out"
            ));
        }
        Ok(())
    }

    fn learned(self, missing: Missing) -> Result<LearnedColumn, String> {
        if self.counts.is_empty() {
            return Err("it has no value in any row".into());
        }
        if self.is_text {
            let fill = match missing {
                Missing::MostCommon => {
                    let common = most_common(&self.counts);
                    self.counts.keys().position(|value| Some(value.as_str()) == common)
                }
                Missing::Mean | Missing::Error => None,
            };
            return Ok(LearnedColumn::Text { categories: self.counts.into_keys().collect(), fill });
        }
        if let Some(infinite) = self.infinite {
            return Err(infinite);
        }
        let std = (self.squares / self.count as f64).sqrt();
        if !self.mean.is_finite() || !std.is_finite() {
            return Err("its numbers are too large for a mean and a standard deviation".into());
        }
        let fill = match missing {
            Missing::Error => None,
            Missing::Mean => Some(self.mean),
            Missing::MostCommon if self.has_too_many && !self.has_gap => None,
            Missing::MostCommon if self.has_too_many => {
                return Err(format!(
                    "it has more than {MAX_CATEGORIES} different numbers; use `missing: mean`"
                ))
            }
            Missing::MostCommon => most_common_number(&self.counts),
        };
        let std = if std > 0.0 { std } else { 1.0 };
        Ok(LearnedColumn::Number { mean: self.mean, std, fill })
    }
}

/// The first of the most common values.
fn most_common(counts: &BTreeMap<String, u64>) -> Option<&str> {
    let common = counts.iter().rev().max_by_key(|(_, count)| **count);
    common.map(|(value, _)| value.as_str())
}

/// The first of the most common numbers. `1` and `1.0` are one number.
fn most_common_number(counts: &BTreeMap<String, u64>) -> Option<f64> {
    let mut of_numbers = BTreeMap::new();
    for (value, count) in counts {
        // The sum makes 0 of -0.
        let number = value.parse::<f64>().ok()? + 0.0;
        *of_numbers.entry(number.to_string()).or_insert(0) += count;
    }
    most_common(&of_numbers)?.parse().ok()
}
