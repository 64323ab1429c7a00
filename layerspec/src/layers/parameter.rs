use super::arguments::{bad, for_each_sample, SIZES};
use super::{layer, BadArgument, Rules};
use crate::yaml::{FLAG, NON_NEGATIVE};
use crate::{DType, Dim, Init, OutOfRange, ParamSpec, TensorType};

layer! {
    /// Gives a learned tensor, the same for each sample: what a module of PyTorch holds as
    /// `nn.Parameter`. Of its input it takes the batch size alone, or nothing.
    Parameter {
        /// The shape of the tensor. With `expand` it begins with 1, in place of which the output
        /// has the first size of the input.
        shape: Vec<u64> = SIZES;
        /// Standard deviation of the normal numbers that it begins with; with 0, all are zero.
        std: f64 = NON_NEGATIVE, or 0.0;
        /// Whether each sample gets the tensor. Without it the output is the tensor itself, of any
        /// shape and without a batch.
        expand: bool = FLAG, or true;
    }
}

impl Rules for Parameter {
    fn check(&self) -> Result<(), BadArgument> {
        match (self.expand, self.shape.first()) {
            (true, Some(1)) | (false, Some(_)) => Ok(()),
            (true, _) => {
                Err(bad("shape", "sizes that begin with 1, in place of which the batch comes"))
            }
            (false, None) => Err(bad("shape", "one size or more")),
        }
    }

    fn params(&self) -> Vec<ParamSpec> {
        let init = match self.std > 0.0 {
            true => Init::Normal { mean: 0.0, std: self.std },
            false => Init::Zeros,
        };
        vec![ParamSpec::parameter("value", self.shape.clone(), init)]
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let dims = match self.expand {
            true => for_each_sample(&self.shape, &inputs[0])?,
            false => self.shape.iter().copied().map(Dim::Fixed).collect(),
        };
        Ok(vec![TensorType::new(DType::Float32, dims)])
    }

    fn flops(&self, _: &[TensorType], _: &[TensorType]) -> Result<Dim, OutOfRange> {
        Ok(Dim::Fixed(0))
    }
}
