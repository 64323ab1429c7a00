//! A tensor of the source that is a parameter of the model, or some of its rows.

use crate::weights::export::written;
use crate::weights::rename_rules::Source;
use crate::weights::tensor_source::{as_type, element_count, narrowed, shaped, TensorSource};
use crate::BossManError;
use layerspec::DType;
use pipeline::TensorMeta;
use std::ops::Range;
use tch::Tensor;
use tensor::TensorError;

/// Where a tensor of the source is found in the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) parameter: String,
    /// Its first element in the parameter. The others follow.
    first: u64,
    /// Its name in the source, and whether it is stored transposed there.
    source: Source,
    /// Its type and shape in the source.
    meta: TensorMeta,
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
        Ok(Part { parameter: parameter.into(), first: 0, source, meta: header.clone() })
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
        let columns = shape.get(1..).unwrap_or_default();
        let start = columns.iter().try_fold(first, |start, size| start.checked_mul(*size));
        match (start, end, wanted.split_first()) {
            (Some(start), Some(end), Some((all, others))) if end <= *all && columns == others => {
                let (parameter, meta) = (parameter.into(), header.clone());
                Ok((Part { parameter, first: start, source, meta }, end))
            }
            _ => Err(format!(
                "`{}`: {shape:?} is no part of `{parameter}`, which has {wanted:?} and {first} \
                 rows of others",
                source.name
            )),
        }
    }

    /// Its type and shape when it is written: those of the source, or floating-point numbers of
    /// another type.
    pub(super) fn meta(&self, dtype: Option<DType>) -> TensorMeta {
        let shape = self.meta.shape.clone();
        TensorMeta { dtype: written(self.meta.dtype, dtype), shape }
    }

    /// Whether elements of it are read without the others.
    pub(super) fn has_slices(&self, weights: &dyn TensorSource) -> bool {
        !self.source.is_transposed && weights.has_slices(&self.parameter)
    }

    /// Elements of the tensor as the source has it, of these weights.
    ///
    /// # Errors
    /// The weights lack the parameter, or cannot be read.
    pub(super) fn elements(
        &self,
        weights: &dyn TensorSource,
        elements: Range<u64>,
        dtype: Option<DType>,
    ) -> Result<Tensor, BossManError> {
        let dtype = written(self.meta.dtype, dtype);
        let of_parameter = |elements: Range<u64>| {
            let place = |element: u64| self.first.saturating_add(element);
            let place = place(elements.start)..place(elements.end);
            as_type(&self.parameter, &weights.elements(&self.parameter, place)?, dtype)
        };
        if !self.source.is_transposed {
            return of_parameter(elements);
        }
        let wrong = |problem: String| BossManError::StateDict(vec![problem]);
        let shape = self.source.turned_shape(&self.meta.shape).map_err(wrong)?;
        let rows = shaped(&of_parameter(0..element_count(&self.meta))?, &shape)?;
        // Transposed twice, a matrix is itself.
        let turned = self.source.turned(&rows)?;
        narrowed(&turned.f_flatten(0, -1).map_err(TensorError::from)?, elements)
    }
}
