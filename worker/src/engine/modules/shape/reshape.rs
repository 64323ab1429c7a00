use crate::engine::error::layer_error;
use crate::engine::layers::op::{BackwardOutput, ForwardOutput, Op, SavePolicy, SavedForBackward};
use crate::engine::layers::op_context::OpContext;
use crate::engine::modules::helpers::{single_grad, single_input};
use layerspec::layers::{Flatten, Permute, Reshape, Squeeze, Transpose, Unflatten, Unsqueeze};
use tch::Tensor;
use tensor::TensorError;

/// A layer that reshapes its input. Backward reshapes the gradient back.
macro_rules! reshaping {
    ($($Name:ident: $function:expr),*) => {$(
        impl Op for $Name {
            fn forward(
                &self,
                _: &OpContext<'_>,
                inputs: Vec<Tensor>,
            ) -> Result<ForwardOutput, TensorError> {
                let input = single_input(inputs)?;
                let output = $function(self, &input)?;
                Ok(ForwardOutput::with_sizes(output, vec![input.size()]))
            }

            fn backward(
                &self,
                _: &OpContext<'_>,
                saved: SavedForBackward,
                grads: Vec<Option<Tensor>>,
            ) -> Result<BackwardOutput, TensorError> {
                let size = saved
                    .sizes
                    .first()
                    .ok_or_else(|| layer_error("its input's size was not kept"))?;
                Ok(BackwardOutput::single_input_grad(single_grad(grads)?.f_reshape(&size[..])?))
            }
        }
    )*};
}

reshaping! {
    Flatten: |layer: &Flatten, input: &Tensor| input.f_flatten(layer.start_dim, layer.end_dim),
    Reshape: |layer: &Reshape, input: &Tensor| input.f_reshape(&layer.shape[..]),
    Unflatten: |layer: &Unflatten, input: &Tensor| {
        input.f_unflatten(layer.dim, &layer.unflattened_size[..])
    },
    Squeeze: |layer: &Squeeze, input: &Tensor| input.f_squeeze_dim(layer.dim),
    Unsqueeze: |layer: &Unsqueeze, input: &Tensor| input.f_unsqueeze(layer.dim)
}

impl Op for Transpose {
    fn forward(
        &self,
        _: &OpContext<'_>,
        inputs: Vec<Tensor>,
    ) -> Result<ForwardOutput, TensorError> {
        Ok(ForwardOutput::with_tensors(
            single_input(inputs)?.f_transpose(self.dim0, self.dim1)?,
            Vec::new(),
        ))
    }

    fn backward(
        &self,
        _: &OpContext<'_>,
        _: SavedForBackward,
        grads: Vec<Option<Tensor>>,
    ) -> Result<BackwardOutput, TensorError> {
        Ok(BackwardOutput::single_input_grad(
            single_grad(grads)?.f_transpose(self.dim0, self.dim1)?,
        ))
    }

    fn save_policy(&self) -> SavePolicy {
        SavePolicy::Nothing
    }
}

impl Op for Permute {
    fn forward(
        &self,
        _: &OpContext<'_>,
        inputs: Vec<Tensor>,
    ) -> Result<ForwardOutput, TensorError> {
        Ok(ForwardOutput::with_tensors(
            single_input(inputs)?.f_permute(&self.dims[..])?,
            Vec::new(),
        ))
    }

    fn backward(
        &self,
        _: &OpContext<'_>,
        _: SavedForBackward,
        grads: Vec<Option<Tensor>>,
    ) -> Result<BackwardOutput, TensorError> {
        let rank = i64::try_from(self.dims.len()).unwrap_or(i64::MAX);
        let counted = |dim: &i64| if *dim < 0 { dim + rank } else { *dim };
        let order: Vec<i64> = self.dims.iter().map(counted).collect();
        let place = |dim: i64| {
            order.iter().position(|other| *other == dim).and_then(|place| i64::try_from(place).ok())
        };
        let back: Option<Vec<i64>> = (0..rank).map(place).collect();
        let back =
            back.ok_or_else(|| layer_error(format!("{:?} is no order of dimensions", self.dims)))?;
        Ok(BackwardOutput::single_input_grad(single_grad(grads)?.f_permute(back)?))
    }

    fn save_policy(&self) -> SavePolicy {
        SavePolicy::Nothing
    }
}
