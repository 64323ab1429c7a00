use super::arguments::bad;
use super::{layer, BadArgument, Rules};
use crate::yaml::{Kind, Reader, INTEGER, SIZE};
use crate::{DType, Dim, Init, OutOfRange, ParamSpec, TensorType};

const ROW: Reader<Option<i64>> = Reader::new("a whole number, or null", |node| match node.kind {
    Kind::Null => Some(None),
    _ => (INTEGER.read)(node).map(Some),
});

layer! {
    /// Looks up a learned row for every whole number of the input.
    Embedding {
        /// Number of rows; inputs are below it.
        num_embeddings: u64 = SIZE;
        /// Size of each row.
        embedding_dim: u64 = SIZE;
        /// A row that stays zero and is not trained; `-1` is the last.
        padding_idx: Option<i64> = ROW, or None => "null";
    }
    unsupported {
        max_norm: "rows are never rescaled; leave it out";
        norm_type: "it means something only with `max_norm`; leave it out";
        scale_grad_by_freq: "gradients are plain sums; leave it out";
        sparse: "gradients are dense; leave it out";
    }
}

impl Embedding {
    /// The row that stays zero, counted from 0.
    pub fn padding_row(&self) -> Option<u64> {
        match self.padding_idx? {
            index if index < 0 => self.num_embeddings.checked_add_signed(index),
            index => u64::try_from(index).ok(),
        }
    }
}

impl Rules for Embedding {
    fn check(&self) -> Result<(), BadArgument> {
        let inside = self.padding_row().is_some_and(|row| row < self.num_embeddings);
        if self.padding_idx.is_none() || inside {
            return Ok(());
        }
        Err(bad("padding_idx", format!("one of the {} rows", self.num_embeddings)))
    }

    fn params(&self) -> Vec<ParamSpec> {
        let (mean, std) = (0.0, 1.0);
        let init = match self.padding_row() {
            Some(zero_row) => Init::NormalZeroRow { mean, std, zero_row },
            None => Init::Normal { mean, std },
        };
        vec![ParamSpec::parameter("weight", vec![self.num_embeddings, self.embedding_dim], init)]
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let input = &inputs[0];
        if !matches!(input.dtype, DType::Int64 | DType::Int32) {
            return Err(format!("expected an int64 or int32 input, found {}", input.dtype));
        }
        let dims = [input.dims(), &[Dim::Fixed(self.embedding_dim)]].concat();
        Ok(vec![TensorType::new(DType::Float32, dims)])
    }

    fn flops(&self, _: &[TensorType], _: &[TensorType]) -> Result<Dim, OutOfRange> {
        Ok(Dim::Fixed(0))
    }
}
