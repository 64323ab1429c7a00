use super::arguments::{bad, for_each_sample, SIZES};
use super::file::{check_path, HASH, MAX_FILE_BYTES};
use super::{layer, BadArgument, Rules};
use crate::spec::DTYPE;
use crate::yaml::{FLAG, TEXT};
use crate::{DType, Dim, OutOfRange, TensorType};

layer! {
    /// Gives a tensor of a safetensors file that is not learned, as a mask or a table of indices.
    /// Of its input it takes the batch size alone, or nothing, and it passes no gradient to it. The
    /// tensor is no part of the weights: checkpoints and saved weights do not have it.
    Constant {
        /// The file; relative to the model file.
        path: String = TEXT;
        /// The name of the tensor in the file.
        tensor: String = TEXT;
        /// The shape of the tensor. With `expand` it begins with 1, in place of which the output
        /// has the first size of the input.
        shape: Vec<u64> = SIZES;
        /// The dtype of the tensor.
        dtype: DType = DTYPE, or DType::Float32 => "float32";
        /// Whether each sample gets the tensor. Without it the output is the tensor itself, of any
        /// shape and without a batch.
        expand: bool = FLAG, or false;
        /// The SHA-256 of the tensor's bytes, if no other contents are accepted.
        sha256: Option<String> = HASH, or None => "that of the tensor";
    }
}

impl Rules for Constant {
    fn check(&self) -> Result<(), BadArgument> {
        check_path(&self.path)?;
        if self.tensor.is_empty() {
            return Err(bad("tensor", "the name of a tensor"));
        }
        if self.expand && self.shape.first() != Some(&1) {
            let expected = "sizes that begin with 1, in place of which the batch comes";
            return Err(bad("shape", expected));
        }
        let mut sizes = self.shape.iter();
        let bytes = sizes.try_fold(self.dtype.size_bytes(), |bytes, size| bytes.checked_mul(*size));
        match bytes.is_some_and(|bytes| bytes <= MAX_FILE_BYTES) {
            true => Ok(()),
            false => Err(bad("shape", "a tensor of at most 256 MiB")),
        }
    }

    fn passes_gradients(&self) -> bool {
        false
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let dims = match self.expand {
            true => for_each_sample(&self.shape, &inputs[0])?,
            false => self.shape.iter().copied().map(Dim::Fixed).collect(),
        };
        Ok(vec![TensorType::new(self.dtype, dims)])
    }

    fn flops(&self, _: &[TensorType], _: &[TensorType]) -> Result<Dim, OutOfRange> {
        Ok(Dim::Fixed(0))
    }
}
