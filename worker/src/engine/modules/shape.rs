use super::{missing, of_one, one, Back, Call, Keeps, Kept, Op, Run};
use layerspec::layers::{Flatten, Permute, Reshape, Squeeze, Transpose, Unflatten, Unsqueeze};
use tch::Tensor;
use tensor::TensorError;

/// A layer that gives its input another shape, which backward takes from the gradient again.
macro_rules! reshaping {
    ($($Name:ident: $function:expr),*) => {$(
        impl Op for $Name {
            fn forward(&self, _: &Call<'_>, inputs: Vec<Tensor>) -> Result<Run, TensorError> {
                let input = one(inputs)?;
                let output = $function(self, &input)?;
                Ok(Run::knowing(output, vec![input.size()]))
            }

            fn backward(&self, _: &Call<'_>, kept: Kept, grads: Vec<Option<Tensor>>) -> Result<Back, TensorError> {
                let size = kept.sizes.first().ok_or_else(|| missing("its input's size was not kept"))?;
                Ok(Back::to(of_one(grads)?.f_reshape(&size[..])?))
            }
        }
    )*};
}

reshaping! {
    Flatten: |layer: &Flatten, input: &Tensor| input.f_flatten(layer.start_dim, layer.end_dim),
    Reshape: |layer: &Reshape, input: &Tensor| input.f_reshape(&layer.shape[..]),
    Unflatten: |layer: &Unflatten, input: &Tensor| input.f_unflatten(layer.dim, &layer.unflattened_size[..]),
    Squeeze: |layer: &Squeeze, input: &Tensor| input.f_squeeze_dim(layer.dim),
    Unsqueeze: |layer: &Unsqueeze, input: &Tensor| input.f_unsqueeze(layer.dim)
}

impl Op for Transpose {
    fn forward(&self, _: &Call<'_>, inputs: Vec<Tensor>) -> Result<Run, TensorError> {
        Ok(Run::keeping(one(inputs)?.f_transpose(self.dim0, self.dim1)?, Vec::new()))
    }

    fn backward(&self, _: &Call<'_>, _: Kept, grads: Vec<Option<Tensor>>) -> Result<Back, TensorError> {
        Ok(Back::to(of_one(grads)?.f_transpose(self.dim0, self.dim1)?))
    }

    fn keeps(&self) -> Keeps {
        Keeps::Nothing
    }
}

impl Op for Permute {
    fn forward(&self, _: &Call<'_>, inputs: Vec<Tensor>) -> Result<Run, TensorError> {
        Ok(Run::keeping(one(inputs)?.f_permute(&self.dims[..])?, Vec::new()))
    }

    fn backward(&self, _: &Call<'_>, _: Kept, grads: Vec<Option<Tensor>>) -> Result<Back, TensorError> {
        let rank = i64::try_from(self.dims.len()).unwrap_or(i64::MAX);
        let counted = |dim: &i64| if *dim < 0 { dim + rank } else { *dim };
        let order: Vec<i64> = self.dims.iter().map(counted).collect();
        let place = |dim: i64| order.iter().position(|other| *other == dim).and_then(|place| i64::try_from(place).ok());
        let back: Option<Vec<i64>> = (0..rank).map(place).collect();
        let back = back.ok_or_else(|| missing(format!("{:?} is no order of dimensions", self.dims)))?;
        Ok(Back::to(of_one(grads)?.f_permute(back)?))
    }

    fn keeps(&self) -> Keeps {
        Keeps::Nothing
    }
}
