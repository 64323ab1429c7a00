use crate::engine::layers::op::{BackwardOutput, ForwardOutput, Op, SavePolicy, SavedForBackward};
use crate::engine::layers::op_context::OpContext;
use crate::engine::layers::op_gradients::OpGradients;
use crate::engine::modules::helpers::{single_grad, single_input};
use crate::engine::sizes::size;
use layerspec::layers::Embedding;
use tch::{Device, Tensor};
use tensor::TensorError;

/// The most rows of a table for each id for which a gradient as large as the table is made.
const MOST_ROWS_FOR_AN_ID: i64 = 8;

impl Op for Embedding {
    fn forward(
        &self,
        ctx: &OpContext<'_>,
        inputs: Vec<Tensor>,
    ) -> Result<ForwardOutput, TensorError> {
        let ids = single_input(inputs)?;
        let rows = Tensor::f_embedding(ctx.param("weight")?, &ids, self.padding()?, false, false)?;
        Ok(ForwardOutput::with_tensors(
            rows,
            if ctx.saves_for_backward() { vec![ids] } else { Vec::new() },
        ))
    }

    fn backward(
        &self,
        _: &OpContext<'_>,
        saved: SavedForBackward,
        grads: Vec<Option<Tensor>>,
    ) -> Result<BackwardOutput, TensorError> {
        let [ids] = saved.tensors()?;
        Ok(BackwardOutput { inputs: vec![None], weight_inputs: vec![ids, single_grad(grads)?] })
    }

    /// Adds row after row to the sum. GPUs sort many rows first, and sum those of each id.
    fn backward_weight(
        &self,
        ctx: &OpContext<'_>,
        weight_inputs: Vec<Tensor>,
        grads: &mut OpGradients<'_>,
    ) -> Result<(), TensorError> {
        let [ids, grad] =
            SavedForBackward { tensors: weight_inputs, sizes: Vec::new() }.tensors()?;
        let Some(sum) = grads.buffer("weight") else { return Ok(()) };
        let (rows, is_on_gpu) =
            (size(self.num_embeddings)?, matches!(grad.device(), Device::Cuda(_)));
        // The term has memory for the whole table.
        if is_on_gpu && ids.numel() as i64 >= rows / MOST_ROWS_FOR_AN_ID {
            let padding = self.padding()?;
            let term = Tensor::f_embedding_dense_backward(&grad, &ids, rows, padding, false)?;
            return sum.add(term);
        }
        let (ids, rows) = (ids.f_flatten(0, -1)?, grad.f_reshape([-1, size(self.embedding_dim)?])?);
        let mut sum = sum.or_zeros(ctx.param("weight")?)?;
        let _same = sum.f_index_add_(0, &ids, &rows)?;
        if self.padding_idx.is_some() {
            let _row = sum.f_select(0, self.padding()?)?.f_zero_()?;
        }
        Ok(())
    }

    fn save_policy(&self) -> SavePolicy {
        SavePolicy::FromInputs
    }

    fn save_inputs(
        &self,
        _: &OpContext<'_>,
        inputs: &[Tensor],
    ) -> Result<SavedForBackward, TensorError> {
        Ok(SavedForBackward {
            tensors: inputs.iter().map(Tensor::shallow_clone).collect(),
            sizes: Vec::new(),
        })
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
