use super::{of_one, one, size, Back, Call, Gradients, Keeps, Kept, Op, Run};
use layerspec::layers::Embedding;
use tch::Tensor;
use tensor::TensorError;

impl Op for Embedding {
    fn forward(&self, call: &Call<'_>, inputs: Vec<Tensor>) -> Result<Run, TensorError> {
        let ids = one(inputs)?;
        let rows = Tensor::f_embedding(call.param("weight")?, &ids, self.padding()?, false, false)?;
        Ok(Run::keeping(rows, if call.keeps() { vec![ids] } else { Vec::new() }))
    }

    fn backward(&self, _: &Call<'_>, kept: Kept, grads: Vec<Option<Tensor>>) -> Result<Back, TensorError> {
        let [ids] = kept.tensors()?;
        Ok(Back { inputs: vec![None], rest: vec![ids, of_one(grads)?] })
    }

    /// Row after row, straight into the sum.
    fn backward_weight(
        &self,
        call: &Call<'_>,
        rest: Vec<Tensor>,
        grads: &mut Gradients<'_>,
    ) -> Result<(), TensorError> {
        let [ids, grad] = Kept { tensors: rest, sizes: Vec::new() }.tensors()?;
        let Some(sum) = grads.of("weight") else { return Ok(()) };
        let (ids, rows) = (ids.f_flatten(0, -1)?, grad.f_reshape([-1, size(self.embedding_dim)?])?);
        let mut sum = sum.or_zeros(call.param("weight")?)?;
        let _same = sum.f_index_add_(0, &ids, &rows)?;
        if self.padding_idx.is_some() {
            let _row = sum.f_select(0, self.padding()?)?.f_zero_()?;
        }
        Ok(())
    }

    fn keeps(&self) -> Keeps {
        Keeps::Inputs
    }

    fn keep(&self, _: &Call<'_>, inputs: &[Tensor]) -> Result<Kept, TensorError> {
        Ok(Kept { tensors: inputs.iter().map(Tensor::shallow_clone).collect(), sizes: Vec::new() })
    }
}

/// libtorch takes -1 for no padding row.
trait PaddingRow {
    fn padding(&self) -> Result<i64, TensorError>;
}

impl PaddingRow for Embedding {
    fn padding(&self) -> Result<i64, TensorError> {
        self.padding_row().map_or(Ok(-1), size)
    }
}
