//! A tensor of the source that is a parameter of the model, or some of its rows.

use crate::weights::rename_rules::Source;
use crate::{BossManError, StateDict};
use layerspec::DType;
use pipeline::TensorMeta;
use tch::{Kind, Tensor};
use tensor::TensorError;

/// Where a tensor of the source is found in the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) parameter: String,
    /// The first row and the number of rows. `None` is the whole parameter.
    rows: Option<(u64, u64)>,
    /// Its name in the source, and whether it is stored transposed there.
    source: Source,
    /// Its type in the source.
    dtype: DType,
}

impl Part {
    /// The tensor of this name, which is a whole parameter.
    ///
    /// # Errors
    /// It has another shape, or is not of numbers of the same kind.
    pub(super) fn whole(
        parameter: &str,
        wanted: &[u64],
        source: Source,
        header: &TensorMeta,
    ) -> Result<Self, String> {
        let shape = source.turned_shape(&header.shape)?;
        if shape != wanted {
            return Err(format!("`{}`: expected {wanted:?}, got {shape:?}", source.name));
        }
        Ok(Part { parameter: parameter.into(), rows: None, source, dtype: header.dtype })
    }

    /// The tensor of this name, which is rows of a parameter from `first` on. Also returns the row
    /// after the last.
    ///
    /// # Errors
    /// The parameter has no such rows.
    pub(super) fn rows(
        parameter: &str,
        wanted: &[u64],
        source: Source,
        header: &TensorMeta,
        first: u64,
    ) -> Result<(Self, u64), String> {
        let shape = source.turned_shape(&header.shape)?;
        let end = shape.first().and_then(|rows| first.checked_add(*rows));
        match (end, shape.first(), wanted.first()) {
            (Some(end), Some(rows), Some(all))
                if end <= *all && shape.get(1..) == wanted.get(1..) =>
            {
                let (parameter, rows) = (parameter.into(), Some((first, *rows)));
                Ok((Part { parameter, rows, source, dtype: header.dtype }, end))
            }
            _ => Err(format!(
                "`{}`: {shape:?} is no part of `{parameter}`, which has {wanted:?} and {first} \
                 rows of others",
                source.name
            )),
        }
    }

    /// The tensor as the source has it, or floating-point numbers of another type.
    ///
    /// # Errors
    /// The weights lack the parameter.
    pub(super) fn of(
        &self,
        weights: &StateDict,
        dtype: Option<Kind>,
    ) -> Result<Tensor, BossManError> {
        let Some(parameter) = weights.get(&self.parameter) else {
            return Err(BossManError::StateDict(vec![format!("`{}`: missing", self.parameter)]));
        };
        let rows = match self.rows {
            None => parameter.shallow_clone(),
            Some((first, count)) => {
                let number = |row: u64| {
                    let problem = || format!("`{}`: has too many rows", self.parameter);
                    i64::try_from(row).map_err(|_| BossManError::StateDict(vec![problem()]))
                };
                let rows = parameter.f_narrow(0, number(first)?, number(count)?);
                rows.map_err(TensorError::from)?
            }
        };
        // Transposed twice, a matrix is itself.
        let turned = self.source.turned(&rows)?;
        let kind = tensor::kind_of(self.dtype);
        let kind = dtype.filter(|_| self.dtype.is_floating()).unwrap_or(kind);
        Ok(turned.f_to_kind(kind).map_err(TensorError::from)?)
    }
}
