use super::{missing, of_one, one, Back, Call, Keeps, Kept, Op, Run};
use layerspec::layers::{Flatten, Reshape, Transpose};
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
    Reshape: |layer: &Reshape, input: &Tensor| input.f_reshape(&layer.shape[..])
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
