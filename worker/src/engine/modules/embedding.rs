use super::{size, Call, Module};
use layerspec::layers::Embedding;
use tch::Tensor;
use tensor::TensorError;

impl Module for Embedding {
    fn forward(&self, call: &Call<'_>) -> Result<Vec<Tensor>, TensorError> {
        // libtorch takes -1 for no padding row.
        let padding = self.padding_row().map_or(Ok(-1), size)?;
        Ok(vec![Tensor::f_embedding(call.param("weight")?, call.input()?, padding, false, false)?])
    }
}
