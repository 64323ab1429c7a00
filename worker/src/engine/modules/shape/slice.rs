//! Parts of a tensor, and reductions over elements.

use crate::engine::error::layer_error;
use crate::engine::layers::op_context::OpContext;
use crate::engine::modules::by_autograd::Differentiable;
use crate::engine::modules::helpers::single_input_ref;
use crate::engine::sizes::{size, sizes};
use layerspec::layers::{Chunk, Mean, Sections, Select, Slice, Split, Sum};
use tch::{Kind, Tensor};
use tensor::TensorError;

impl Differentiable for Split {
    fn compute(&self, _: &OpContext<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let input = single_input_ref(inputs)?;
        Ok(match &self.split_size_or_sections {
            Sections::Each(each) => input.f_split(size(*each)?, self.dim)?,
            Sections::Sizes(parts) => input.f_split_with_sizes(sizes(parts)?, self.dim)?,
        })
    }
}

impl Differentiable for Chunk {
    fn compute(&self, _: &OpContext<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        Ok(single_input_ref(inputs)?.f_chunk(size(self.chunks)?, self.dim)?)
    }
}

impl Differentiable for Slice {
    /// Checks the bounds, because libtorch would shorten a slice outside the tensor. A named
    /// dimension may be too small.
    fn compute(&self, _: &OpContext<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let input = single_input_ref(inputs)?;
        let of = input.f_size_along(self.dim)?;
        let place = |number: i64| if number < 0 { number.saturating_add(of) } else { number };
        let (start, end) = (place(self.start.unwrap_or(0)), self.end.map_or(of, place));
        if start < 0 || end <= start || end > of {
            let size = input.size();
            return Err(layer_error(format!(
                "there is no part [{start}:{end}] in dimension {} of {size:?}",
                self.dim
            )));
        }
        Ok(vec![input.f_slice(self.dim, start, end, size(self.step)?)?])
    }
}

impl Differentiable for Select {
    fn compute(&self, _: &OpContext<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        Ok(vec![single_input_ref(inputs)?.f_select(self.dim, self.index)?])
    }
}

impl Differentiable for Mean {
    fn compute(&self, _: &OpContext<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        Ok(vec![single_input_ref(inputs)?.f_mean_dim(&self.dim[..], self.keepdim, None::<Kind>)?])
    }
}

impl Differentiable for Sum {
    fn compute(&self, _: &OpContext<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        Ok(vec![single_input_ref(inputs)?.f_sum_dim_intlist(
            &self.dim[..],
            self.keepdim,
            None::<Kind>,
        )?])
    }
}

/// The size of a dimension. A negative one counts from the last.
trait SizeAlong {
    fn f_size_along(&self, dim: i64) -> Result<i64, TensorError>;
}

impl SizeAlong for Tensor {
    fn f_size_along(&self, dim: i64) -> Result<i64, TensorError> {
        let size = self.size();
        let rank = i64::try_from(size.len()).unwrap_or(i64::MAX);
        let index = usize::try_from(if dim < 0 { dim.saturating_add(rank) } else { dim }).ok();
        let found = index.and_then(|index| size.get(index).copied());
        found.ok_or_else(|| layer_error(format!("there is no dimension {dim} in {size:?}")))
    }
}
