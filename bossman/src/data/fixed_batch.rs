//! Models with a fixed batch size: an input begins with a number, not with a word such as `batch`.

use crate::run_file::RunFile;
use crate::BossManError;
use layerspec::LayerGraph;

/// The batch size of a model.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FixedBatch {
    pub(crate) samples: u64,
    /// The input with this size, and its type.
    input: String,
    /// Whether the first input has it, so that a batch cannot be cut.
    first: bool,
}

impl FixedBatch {
    /// The fixed batch size of a model, if it has one.
    pub(crate) fn of(graph: &LayerGraph) -> Option<Self> {
        let mut inputs = graph.inputs().iter().map(|id| graph.value(*id)).enumerate();
        inputs.find_map(|(place, value)| {
            let samples = value.ty.dims().first()?.as_fixed()?;
            Some(FixedBatch {
                samples,
                input: format!("`{}` is {}", value.name, value.ty),
                first: place == 0,
            })
        })
    }

    /// Checks that every batch of `steps` steps over `samples` samples has this size.
    pub(crate) fn check_run(
        &self,
        file: &RunFile,
        samples: u64,
        steps: u64,
    ) -> Result<(), BossManError> {
        let FixedBatch { samples: size, input, first } = self;
        if file.batch_size != *size {
            return Err(BossManError::Usage(format!(
                "`batch_size: {}`, but the model's input {input}; give the batches {size} \
                 samples, {}",
                file.batch_size,
                self.alternative()
            )));
        }
        if *first && file.microbatches > 1 {
            return Err(BossManError::Usage(format!(
                "`microbatches: {}`, but the model's input {input}, which cannot be cut; leave \
                 `microbatches` out, {}",
                file.microbatches,
                self.alternative()
            )));
        }
        // The run then reaches the last batch of an epoch, which may be smaller.
        if steps > samples / size {
            self.check_divisible("the training data", samples)?;
        }
        Ok(())
    }

    /// Checks that the workers of a pool can share such a batch.
    pub(crate) fn check_pool(&self) -> Result<(), BossManError> {
        match self.first {
            true => Err(BossManError::Usage(format!(
                "workers that come and go share out a batch's microbatches, but the model's input \
                 {}, which cannot be cut; train with a fixed number of workers, {}",
                self.input,
                self.alternative()
            ))),
            false => Ok(()),
        }
    }

    /// Checks that the batch size divides the samples.
    pub(crate) fn check_divisible(&self, what: &str, samples: u64) -> Result<(), BossManError> {
        let left = samples % self.samples;
        if left == 0 {
            return Ok(());
        }
        Err(BossManError::Usage(format!(
            "the model's input {}, but the last batch of {what}, {samples} samples, would have \
             {left}; leave {left} out, {}",
            self.input,
            self.alternative()
        )))
    }

    fn alternative(&self) -> &'static str {
        "or write a word as `batch` for the size in the model file"
    }
}
